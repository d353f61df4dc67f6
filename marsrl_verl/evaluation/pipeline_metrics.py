"""Metrics of what a training step left in the pools, and of how its groups came together."""

from __future__ import annotations

from collections import Counter

from marsrl_verl.core.group import Group
from marsrl_verl.core.scheduler import StepResult


def pipeline_metrics(result: StepResult) -> dict[str, float]:
    """All `pipeline/…` metrics of a step. What does not occur in a step is absent, except for queues."""
    return _pools(result) | _ends(result) | _segments(result.completed) | _group_wait(result.completed)


def _pools(result: StepResult) -> dict[str, float]:
    metrics: dict[str, float] = {
        "pipeline/in_flight": result.in_flight,
        "pipeline/unfinished_samples": result.paused,
        "pipeline/held_groups": result.deferred,
        "pipeline/stale_requests": result.stale,
    }
    metrics.update({f"pipeline/waiting/{stage}": count for stage, count in result.waiting.items()})
    metrics.update({f"pipeline/oldest_waiting/{stage}": age for stage, age in result.oldest_waiting.items()})
    metrics.update({f"pipeline/request_age/{stage}": age for stage, age in result.request_ages.items()})
    return metrics


def _ends(result: StepResult) -> dict[str, float]:
    """Problems that left, by their last stage and the reason."""
    counts = Counter(f"pipeline/ended/{end.stage}/{end.reason.value}" for end in result.ended)
    return {name: float(count) for name, count in counts.items()}


def _segments(groups: list[Group]) -> dict[str, float]:
    """Histogram: sequences by the number of segments, that is of generation rounds, that they took."""
    counts = Counter(
        len(sequence.versions) for group in groups for one in group.trajectories for sequence in one.sequences
    )
    return {f"pipeline/segments/{number}": float(count) for number, count in counts.items()}


def _group_wait(groups: list[Group]) -> dict[str, float]:
    """Waits of ended responses for the last one of their group, in policy versions.

    A trajectory's end is the newest policy version among its sequences' last segments, which rises by 1 per
    step, but not between the first two rounds of a run with overlap. Those that were trained before their
    group was complete did not wait; those without a token have no version.
    """
    waits: dict[str, list[int]] = {}
    for group in groups:
        ended = {
            one.trajectory_id: max(sequence.version for sequence in one.sequences if len(sequence))
            for one in group.trajectories
            if one.tokens
        }
        waits.setdefault(group.request.stage, []).extend(
            max(ended.values()) - version
            for name, version in ended.items()
            if name not in group.trained_before
        )
    waits = {stage: values for stage, values in waits.items() if values}
    if not waits:
        return {}
    metrics = {f"pipeline/group_wait/{stage}": sum(some) / len(some) for stage, some in waits.items()}
    metrics["pipeline/group_wait_max"] = float(max(max(some) for some in waits.values()))
    return metrics
