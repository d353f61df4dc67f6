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


def sequence(response, versions) -> Sequence:
    return Sequence("solver", [1, 2], response, [0.0] * len(response), versions=versions)


def trajectory(*sequences, finish=FinishReason.STOP) -> Trajectory:
    return Trajectory("g#0", list(sequences), finish)


def test_a_sequence_was_asked_with_its_prompt_and_what_earlier_rounds_had_added():
    fresh = trajectory(sequence([3, 4], [(2, 0)]))
    continued = trajectory(sequence([3, 4, 5], [(2, 0), (3, 1)]))
    aborted = trajectory(sequence([3, 4], [(2, 0), (2, 2)]), finish=FinishReason.ABORTED)
    sent = engine_prompts([fresh, continued, aborted])
    assert [one.tolist() for one in sent] == [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4]]


def test_every_sequence_of_a_dialogue_was_asked():
    sent = engine_prompts([trajectory(sequence([3], [(1, 0)]), sequence([4, 5], [(1, 0), (2, 1)]))])
    assert [one.tolist() for one in sent] == [[1, 2], [1, 2, 4]]


def test_what_reached_no_engine_is_left_out():
    reasons = (FinishReason.PROMPT_TOO_LONG, FinishReason.ERROR, FinishReason.REFUSED)
    found = [trajectory(sequence([], [(0, 0)]), finish=reason) for reason in reasons]
    assert engine_prompts([*found, trajectory()]) == []
