"""When a program of several ranks may be run once more."""

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
        pytest.param(GLOO + OWN + BOTH, False, id="one raised something else"),
        pytest.param(GLOO + BOTH, False, id="one died without a word"),
        pytest.param(OWN, False, id="no rank is said to have failed"),
    ],
)
def test_a_rank_that_crashes_is_no_lost_connection(text, again):
    assert lost_connection(text) == again
