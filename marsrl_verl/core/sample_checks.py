"""What comes back from an engine is checked before any of it is taken."""

from __future__ import annotations

import math

from marsrl_verl.core.scheduler_state import SchedulerState
from marsrl_verl.core.types import FinishReason, Sample


def check_samples(state: SchedulerState, samples: list[Sample]) -> list[int]:
    """The numbers k of the samples inside their groups.

    Raises:
        ValueError: a sample is unknown, was not asked for or came twice, is not scored, or does not go on
            where its last segment ended; the message has its id.
    """
    numbers = []
    seen: set[str] = set()
    for sample in samples:
        number = _number(state, sample)
        if sample.sample_id in seen or number not in state.asked[sample.group_id]:
            raise ValueError(f"sample {sample.sample_id}: came twice, or its next segment was not asked for")
        _check_content(sample)
        begun = state.unfinished.get(sample.group_id, {}).get(number)
        _check_prefix(sample, begun or state.input(sample.group_id).prefix)
        seen.add(sample.sample_id)
        numbers.append(number)
    return numbers


def _number(state: SchedulerState, sample: Sample) -> int:
    if sample.group_id not in state.asked:
        raise ValueError(
            f"sample {sample.sample_id}: its group {sample.group_id} is not in flight (never handed out, or "
            "complete already)"
        )
    n = state.input(sample.group_id).n
    prefix, _, digits = sample.sample_id.rpartition("#")
    if prefix != sample.group_id or not digits.isdecimal() or int(digits) >= n:
        raise ValueError(
            f"sample {sample.sample_id}: unknown, group {sample.group_id} has samples "
            f"{sample.group_id}#0 to #{n - 1}"
        )
    return int(digits)


def _check_content(sample: Sample) -> None:
    if sample.finish_reason is FinishReason.SEGMENT:
        return
    if sample.outcome is None:
        raise ValueError(f"sample {sample.sample_id}: not scored, score it before absorb")
    if not math.isfinite(sample.reward):
        raise ValueError(f"sample {sample.sample_id}: reward {sample.reward} is not a finite number")


def _check_prefix(sample: Sample, before: Sample | None) -> None:
    if before is None:
        return
    length = len(before.response_ids)
    if sample.response_ids[:length] != before.response_ids:
        raise ValueError(
            f"sample {sample.sample_id}: does not begin with the {length} tokens of its earlier segments"
        )
