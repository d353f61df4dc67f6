"""What counts as a usable solution, its reward and a verdict: one definition for every metric."""

from __future__ import annotations

from marsrl_verl.core.types import FinishReason, Sample, Verdict


def is_usable(sample: Sample) -> bool:
    """Whether a Solver's or Corrector's text can be shown to the next role: ended by the model itself
    and not empty after the thinking part."""
    return sample.finished and bool(sample.final_text.strip())


def answer_reward(sample: Sample) -> float:
    """The reward of a solution, 0 when it is unfinished or empty. Unscored samples raise ValueError."""
    reward = sample.reward
    return reward if is_usable(sample) else 0.0


def verdict_of(sample: Sample) -> Verdict:
    """The Verifier's verdict as its scorer read it; INVALID where it read none, or where there is no answer.

    What an answer that was cut off says is the scorer's to decide: INVALID for the strict parser, while the
    released one reads it like any other.
    """
    if sample.outcome is None:
        raise ValueError(f"sample {sample.sample_id} has not been scored yet")
    answered = sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    verdict = sample.outcome.verdict
    return verdict if answered and verdict is not None else Verdict.INVALID


def report_of(sample: Sample) -> str:
    """The bug report for the Corrector: what the scorer extracted, which is empty where the released rule
    loses it; the Verifier's final text where the scorer says nothing of a report."""
    if sample.outcome is not None and sample.outcome.report is not None:
        return sample.outcome.report
    return sample.final_text
