"""Metrics of a step: of pools and groups, of advantages, of how responses are written; by hand."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation_tools import trajectory
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows, token_advantages
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.pipeline_metrics import pipeline_metrics
from marsrl_verl.evaluation.text_metrics import distinct_frac, text_figures
from marsrl_verl.evaluation.training_metrics import advantage_metrics


def sample(k: int, versions: list[int], tokens: int = 2) -> Trajectory:
    """A response with one segment of `tokens` tokens by each of the versions."""
    parts = [((i + 1) * tokens, version) for i, version in enumerate(versions)]
    return trajectory(f"g#{k}", ids=[2] * tokens * len(versions), versions=parts)


def group(stage: str, members: list[Trajectory], before: tuple[str, ...] = ()) -> Group:
    request = RolloutRequest("g", Problem("p", "q", "a"), stage, stage, (), n=len(members))
    return Group(request, members, frozenset(before))


def metrics(*groups: Group, ended: tuple[Ended, ...] = ()) -> dict[str, float]:
    return pipeline_metrics(
        StepResult(
            step=9,
            trained=[],
            completed=list(groups),
            ended=list(ended),
            waiting={"solver": 1, "verifier_1": 0},
            in_flight=2,
            paused=3,
            deferred=4,
            stale=6,
            oldest_waiting={"solver": 5, "verifier_1": 0},
            request_ages={"verifier_1": 1.5},
        )
    )


def test_pools_and_ends():
    ends = [Ended(f"p{i}", "verifier_1", EndReason.NO_REQUESTS) for i in range(2)]
    assert metrics(ended=(*ends, Ended("p9", "corrector_2", EndReason.FINISHED))) == {
        "pipeline/in_flight": 2,
        "pipeline/unfinished_samples": 3,
        "pipeline/held_groups": 4,
        "pipeline/stale_requests": 6,
        "pipeline/waiting/solver": 1,
        "pipeline/waiting/verifier_1": 0,
        "pipeline/oldest_waiting/solver": 5,
        "pipeline/oldest_waiting/verifier_1": 0,
        "pipeline/request_age/verifier_1": 1.5,
        "pipeline/ended/verifier_1/no_requests": 2,
        "pipeline/ended/corrector_2/finished": 1,
    }


def test_segments_and_waits_by_hand():
    found = metrics(
        group("solver", [sample(0, [4]), sample(1, [4, 5, 6]), sample(2, [4, 5])]),  # waits 2, 0, 1
        group("solver", [sample(0, [6]), sample(1, [6])]),  # 0, 0
        group("verifier_1", [sample(0, [3]), sample(1, [3, 4])], before=("g#0",)),  # trained at once: 0
    )
    assert {name: found[name] for name in found if "/segments/" in name or "wait/" in name} == {
        "pipeline/segments/1": 4,
        "pipeline/segments/2": 2,
        "pipeline/segments/3": 1,
        "pipeline/group_wait/solver": 3 / 5,
        "pipeline/group_wait/verifier_1": 0.0,
    }
    assert found["pipeline/group_wait_max"] == 2


def test_responses_without_a_token_do_not_wait():
    refused = group("solver", [sample(0, [0], tokens=0), sample(1, [0], tokens=0)])
    assert not [name for name in metrics(refused) if "group_wait" in name]
    mixed = group("solver", [sample(0, [0], tokens=0), sample(1, [7])])
    assert metrics(mixed)["pipeline/group_wait_max"] == 0


def test_a_group_trained_in_parts_before_it_completed_waits_for_nothing():
    members = [sample(0, [3]), sample(1, [3])]
    assert "pipeline/group_wait_max" not in metrics(group("solver", members, before=("g#0", "g#1")))


def rows(*lengths: int, masked: tuple[int, ...] = ()) -> Rows:
    """Rows of such lengths, each a trajectory of its own; `masked` are tokens that nobody chose, in row 0."""
    members = []
    for k, length in enumerate(lengths):
        mask = [int(k > 0 or i not in masked) for i in range(length)]
        sequence = Sequence("solver", [1], [2] * length, [0.0] * length, mask)
        members.append(Trajectory(f"g#{k}", [sequence], FinishReason.STOP))
    request = RolloutRequest("g", Problem("p", "q", "a"), "solver", "solver", (), len(members))
    return Rows.of([Group(request, members)], [RowRef(0, k) for k in range(len(members))])


def values(*parts: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(length, value, dtype=np.float32) for length, value in parts])


def test_tokens_weigh_equally():
    found = advantage_metrics(rows(4, 4, 2), values((3, 0.5), (1, 0.0), (4, -1.0), (2, 0.0)))
    assert found == {
        "batch/advantage_mean": pytest.approx((3 * 0.5 - 4) / 10),
        "batch/advantage_min": -1.0,
        "batch/advantage_max": 0.5,
        "batch/samples_with_advantage_frac": pytest.approx(2 / 3),
        "batch/tokens_with_advantage_frac": pytest.approx(7 / 10),
    }


def test_tokens_that_nobody_chose_do_not_count():
    found = advantage_metrics(rows(3, 2, masked=(0,)), values((1, 9.0), (2, 0.0), (2, 1.0)))
    assert (found["batch/advantage_max"], found["batch/advantage_mean"]) == (1.0, 0.5)
    assert found["batch/samples_with_advantage_frac"] == 0.5


def test_nothing_trained_gives_nothing():
    assert advantage_metrics(rows(), np.zeros(0, dtype=np.float32)) == {}
    assert advantage_metrics(rows(1, masked=(0,)), np.ones(1, dtype=np.float32)) == {}


def test_what_was_trained_is_told_in_parts_of_equal_advantage():
    found = token_advantages(rows(4, 0, 2), values((3, 0.5), (1, -1.0), (2, 0.25)))
    assert found == {"g#0": [[(3, 0.5), (4, -1.0)]], "g#1": [[]], "g#2": [[(2, 0.25)]]}


def test_a_sequence_that_was_not_trained_has_no_part():
    one = Trajectory(
        "g#0", [Sequence(role, [1], [2], [0.0]) for role in ("plan", "solve")], FinishReason.STOP
    )
    request = RolloutRequest("g", Problem("p", "q", "a"), "solver", "plan", (), 1)
    selected = Rows.of([Group(request, [one])], [RowRef(0, 0, 1)])
    assert token_advantages(selected, values((1, 2.0))) == {"g#0": [[], [(1, 2.0)]]}


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_distinct_share_is_that_of_the_n_grams_themselves(tokens, length):
    grams = [tuple(tokens[start : start + length]) for start in range(len(tokens) - length + 1)]
    expected = len(set(grams)) / len(grams) if grams else None
    assert distinct_frac(np.array(tokens, dtype=np.uint64), length) == expected


def test_zeros_of_different_places_are_told_apart():
    assert distinct_frac(np.array([0, 0, 1, 0, 0], dtype=np.uint64), 2) == 0.75


def test_a_loop_is_repetition():
    """Eight tokens five times: 21 20-grams, 8 of them different; 37 4-grams, 8 different."""
    figures = text_figures(list(range(8)) * 5, "")
    assert figures.repetition == pytest.approx(1 - 8 / 21)
    assert figures.distinct == pytest.approx(8 / 37)


def test_a_short_response_has_no_n_grams():
    figures = text_figures([1, 2, 3], "x")
    assert (figures.repetition, figures.distinct, figures.reflection_words) == (None, None, 0)


def test_words_of_reflection_are_counted_as_words():
    text = "Wait, let me double-check. However, 3 + 4 = 7; checking again, verified. Waiter, checkout!"
    assert text_figures([], text).reflection_words == 5
