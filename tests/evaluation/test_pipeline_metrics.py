"""Metrics of pools and groups, by hand."""

from __future__ import annotations

from evaluation_tools import trajectory

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.pipeline_metrics import pipeline_metrics


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
