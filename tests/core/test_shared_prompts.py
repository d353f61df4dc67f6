"""Distinct and shared tokens of a round's prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.prefix_tree import distinct_tokens
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.shared_prompts import engine_prompts, shared_tokens
from marsrl_verl.core.trajectory import FinishReason, Trajectory


def nodes_of_the_trie(prompts) -> int:
    return len({tuple(prompt[: end + 1]) for prompt in prompts for end in range(len(prompt))})


@pytest.mark.parametrize(
    ("prompts", "distinct"),
    [
        ([], 0),
        ([[]], 0),
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2], []], 3),
        ([[1, 2, 3], [1, 9, 3]], 5),
        # Little-endian bytes would put 256 before 1, and the two that begin alike apart.
        ([[1, 5], [256, 5], [1, 7], [256, 7]], 6),
        ([[4294967295], [0]], 2),
    ],
)
def test_tokens_after_one_beginning_count_once(prompts, distinct):
    assert distinct_tokens(prompts) == distinct
    assert shared_tokens(prompts) == sum(map(len, prompts)) - distinct


@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 70000]), max_size=6), max_size=12))
def test_the_count_is_that_of_the_tries_nodes(prompts):
    assert distinct_tokens(prompts) == nodes_of_the_trie(prompts)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_number_that_is_no_token_id_is_refused(token):
    with pytest.raises(ValueError, match="token ids are from 0"):
        distinct_tokens([[token]])


def trajectory(*parts, finish=FinishReason.STOP) -> Trajectory:
    """Sequences of a response and its versions each."""
    sequences = [
        Sequence("solver", [1, 2], ids, [0.0] * len(ids), versions=versions) for ids, versions in parts
    ]
    return Trajectory("g#0", sequences, finish)


NOT_ASKED = (FinishReason.PROMPT_TOO_LONG, FinishReason.ERROR, FinishReason.REFUSED)


@pytest.mark.parametrize(
    ("one", "sent"),
    [
        (trajectory(([3, 4], [(2, 0)])), [[1, 2]]),
        (trajectory(([3, 4, 5], [(2, 0), (3, 1)])), [[1, 2, 3, 4]]),
        (trajectory(([3, 4], [(2, 0), (2, 2)]), finish=FinishReason.ABORTED), [[1, 2, 3, 4]]),
        (trajectory(([3], [(1, 0)]), ([4, 5], [(1, 0), (2, 1)])), [[1, 2], [1, 2, 4]]),
        *[(trajectory(([], [(0, 0)]), finish=reason), []) for reason in NOT_ASKED],
        (trajectory(), []),
    ],
    ids=["fresh", "continued", "aborted", "dialogue", *NOT_ASKED, "frozen"],
)
def test_a_sequence_was_asked_with_its_prompt_and_what_earlier_rounds_had_added(one, sent):
    assert [prompt.tolist() for prompt in engine_prompts([one])] == sent
