"""Samples, inputs and problems as plain Python data (JSON-able), and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from marsrl_verl.core.steps import Steps
from marsrl_verl.core.types import FinishReason, Marks, Outcome, Problem, Sample, StageInput, Verdict

PlainData = dict[str, Any]


def problem_to_plain(problem: Problem) -> PlainData:
    """A problem as plain data."""
    return {**_shallow(problem), "messages": [dict(message) for message in problem.messages]}


def problem_from_plain(data: PlainData) -> Problem:
    """The inverse of `problem_to_plain`."""
    return Problem(**{**data, "messages": tuple(dict(message) for message in data["messages"])})


def input_to_plain(item: StageInput) -> PlainData:
    """A stage input as plain data; its problem is named by its id, not repeated."""
    messages = [dict(message) for message in item.messages]
    plain = {**_shallow(item), "problem": item.problem.problem_id, "messages": messages}
    del plain["unfinished"]  # samples are written once, where they belong
    plain["prefix"] = None if item.prefix is None else sample_to_plain(item.prefix)
    return plain


def input_from_plain(data: PlainData, problems: dict[str, Problem]) -> StageInput:
    """The inverse of `input_to_plain`, given the problems by id."""
    messages = tuple(dict(message) for message in data["messages"])
    prefix = None if data["prefix"] is None else sample_from_plain(data["prefix"])
    changed = {"problem": problems[data["problem"]], "messages": messages, "prefix": prefix}
    return StageInput(**{**data, **changed})


def sample_to_plain(sample: Sample) -> PlainData:
    """A sample as plain data, scored or not."""
    data = _shallow(sample)
    for name in ("prompt_ids", "response_ids", "rollout_log_probs", "response_mask", "trainer_log_probs"):
        # Shared, not copied: a state is taken in every step, and nobody changes a sample's tokens in place.
        data[name] = data[name] if isinstance(data[name], list) else list(data[name])
    data["segments"] = [list(segment) for segment in sample.segments]
    data["finish_reason"] = sample.finish_reason.value
    data["outcome"] = None if sample.outcome is None else _outcome_to_plain(sample.outcome)
    data["marks"] = None if sample.marks is None else _marks_to_plain(sample.marks)
    return data


def sample_from_plain(data: PlainData) -> Sample:
    """The inverse of `sample_to_plain`."""
    outcome = data["outcome"]
    if outcome is not None:
        verdict = outcome["verdict"]
        outcome = Outcome(**{**outcome, "verdict": None if verdict is None else Verdict(verdict)})
    marks = None if data["marks"] is None else _marks_from_plain(data["marks"])
    changed = {"finish_reason": FinishReason(data["finish_reason"]), "outcome": outcome, "marks": marks}
    return Sample(**{**data, **changed})


def _marks_to_plain(marks: Marks) -> PlainData:
    return {
        "ends": list(marks.steps.ends),
        "thinking": marks.steps.thinking,
        "log_probs": list(marks.log_probs),
        "influence": list(marks.influence),
        "entropies": list(marks.entropies),
    }


def _marks_from_plain(data: PlainData) -> Marks:
    steps = Steps(tuple(data["ends"]), data["thinking"])
    return Marks(steps, tuple(data["log_probs"]), tuple(data["influence"]), tuple(data["entropies"]))


def _outcome_to_plain(outcome: Outcome) -> PlainData:
    verdict = outcome.verdict
    return {**_shallow(outcome), "verdict": None if verdict is None else verdict.value}


def _shallow(item: Any) -> PlainData:
    return {field.name: getattr(item, field.name) for field in fields(item)}
