"""When a program of several ranks may be run once more: never to hide a rank that crashes."""

from __future__ import annotations

import pytest
from fresh_python import lost_connection

GLOO = (
    "[rank0]: Traceback (most recent call last):\n"
    "[rank0]: RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer\n"
)
OWN = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: 3 rows, expected 4\n"
BOTH = "with 2 ranks, rank [0, 1] failed\n"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        pytest.param(GLOO + GLOO + BOTH, True, id="all lost it"),
        pytest.param(GLOO + OWN + BOTH, False, id="the second raises"),
        pytest.param(OWN + GLOO + BOTH, False, id="the first raises"),
        pytest.param(GLOO + BOTH, False, id="one dies without a word"),
        pytest.param(OWN + "with 1 ranks, rank [0] failed\n", False, id="one rank"),
        pytest.param(GLOO, False, id="who failed is not said"),
    ],
)
def test_ranks_that_lost_their_connection_and_nothing_else(text, again):
    assert lost_connection(text) == again
