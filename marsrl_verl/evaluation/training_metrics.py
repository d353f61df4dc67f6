"""Metrics of a training step from its completed groups, by role and by stage.

A metric's full name is `role/<role>/<name>` or `stage/<stage>/<name>`, with `<name>` from
`TRAINING_METRICS`. A metric without a single observation in the step is absent, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from marsrl_verl.core.inert_text import REPLACEMENT
from marsrl_verl.core.types import CORRECTOR, SOLVER, VERIFIER, FinishReason, Group, Verdict, is_correct
from marsrl_verl.evaluation.judgement import verdict_of
from marsrl_verl.evaluation.role_metrics import ROLE_METRICS, role_observations, verifier_f1
from marsrl_verl.evaluation.system import Call
from marsrl_verl.evaluation.text_metrics import TextFigures, text_figures

TRAINING_METRICS: dict[str, str] = {
    "reward_mean": "mean reward of the samples",
    "samples": "number of samples",
    "groups": "number of completed groups",
    "equal_reward_groups": "groups without two samples of unlike rewards (no learning signal)",
    "response_length_mean": "mean length of the responses, tokens",
    "response_length_p95": "95th percentile of the length of the responses, tokens",
    "response_length_max": "longest response, tokens",
    "response_length_mean_right": "mean length of the responses with the full reward, tokens",
    "response_length_mean_wrong": "mean length of the others, tokens",
    "repetition_share": "share of a response's 20-grams of tokens that stood in it before, mean",
    "distinct_4_share": "share of a response's 4-grams of tokens that differ from each other, mean",
    "reflection_words": "words such as wait, however, check in a response, mean",
    **{
        f"{name}_{suffix}": f"the same of the responses {which} the full reward"
        for name in ("repetition_share", "distinct_4_share", "reflection_words")
        for suffix, which in (("right", "with"), ("wrong", "without"))
    },
    "truncation_share": "share of samples that reached the token limit",
    "failed_share": "share of samples without a regular end: prompt too long, refused, aborted, error",
    "invalid_text_share": "share of samples whose text has U+FFFD in place of what is no character",
    "grading_error_share": "share of samples whose grading failed (reward 0, not trained)",
    "missing_answer_share": "share of Solver and Corrector samples without a readable final answer",
    "invalid_verdict_share": "share of Verifier samples without a readable verdict",
    "verifier_f1": "harmonic mean of the Verifier's precision and recall",
    **{name: info.meaning for name, info in ROLE_METRICS.items()},
}
"""Name → meaning. Accuracies and rates are those of `role_metrics.ROLE_METRICS`."""


def role_metric(role: str, name: str) -> str:
    """The full name of a role's metric, e.g. `role/solver/reward_mean`."""
    return f"role/{role}/{_known(name)}"


def stage_metric(stage: str, name: str) -> str:
    """The full name of a stage's metric, e.g. `stage/verifier_1/reward_mean`."""
    return f"stage/{stage}/{_known(name)}"


def _known(name: str) -> str:
    if name not in TRAINING_METRICS:
        raise ValueError(f"unknown training metric {name!r}; known: {', '.join(TRAINING_METRICS)}")
    return name


def training_metrics(groups: Iterable[Group]) -> dict[str, float]:
    """All metrics of the groups that a step trains or completes; their samples must be scored."""
    groups = list(groups)
    figures = {
        sample.sample_id: text_figures(sample.response_ids, sample.text)
        for group in groups
        for sample in group.samples
    }
    by_role: dict[str, list[Group]] = {}
    by_stage: dict[str, list[Group]] = {}
    for group in groups:
        by_role.setdefault(group.input.role, []).append(group)
        by_stage.setdefault(group.input.stage, []).append(group)
    metrics: dict[str, float] = {}
    for role, some in by_role.items():
        metrics |= {role_metric(role, name): value for name, value in _measure(some, figures).items()}
    for stage, some in by_stage.items():
        metrics |= {stage_metric(stage, name): value for name, value in _measure(some, figures).items()}
    return metrics


def _measure(groups: list[Group], figures: Mapping[str, TextFigures]) -> dict[str, float]:
    calls = [Call(group.input, sample) for group in groups for sample in group.samples]
    metrics = {
        "groups": float(len(groups)),
        "equal_reward_groups": float(sum(len(set(group.rewards)) < 2 for group in groups)),
        "samples": float(len(calls)),
    }
    if not calls:
        return metrics
    endings = [call.sample.finish_reason for call in calls]
    regular = (FinishReason.STOP, FinishReason.LENGTH)
    metrics |= {
        "reward_mean": float(np.mean([call.sample.reward for call in calls])),
        "truncation_share": endings.count(FinishReason.LENGTH) / len(calls),
        "failed_share": sum(ending not in regular for ending in endings) / len(calls),
        "invalid_text_share": sum(REPLACEMENT in call.sample.text for call in calls) / len(calls),
        "grading_error_share": sum(_grading_failed(call) for call in calls) / len(calls),
    }
    return metrics | _lengths(calls) | _texts(calls, figures) | _judgements(calls)


def _lengths(calls: list[Call]) -> dict[str, float]:
    """Lengths of the responses; an external Solver's answers have none in tokens of ours."""
    found = [len(call.sample.response_ids) for call in calls if not call.sample.external]
    if not found:
        return {}
    metrics = {
        "response_length_mean": float(np.mean(found)),
        "response_length_p95": float(np.percentile(found, 95)),
        "response_length_max": float(max(found)),
    }
    own = [call.sample for call in calls if not call.sample.external]
    for name, right in (("right", True), ("wrong", False)):
        some = [len(sample.response_ids) for sample in own if is_correct(sample.reward) is right]
        if some:
            metrics[f"response_length_mean_{name}"] = float(np.mean(some))
    return metrics


def _texts(calls: list[Call], figures: Mapping[str, TextFigures]) -> dict[str, float]:
    """How the responses are written, all of them and those with and without the full reward; an external
    Solver's answers have no tokens of ours, but words."""
    metrics: dict[str, float] = {}
    for suffix, wanted in (("", (True, False)), ("_right", (True,)), ("_wrong", (False,))):
        found = [figures[call.sample.sample_id] for call in calls if is_correct(call.sample.reward) in wanted]
        by_name: dict[str, list[float]] = {
            "reflection_words": [float(one.reflection_words) for one in found],
            "repetition_share": [one.repetition for one in found if one.repetition is not None],
            "distinct_4_share": [one.distinct for one in found if one.distinct is not None],
        }
        for name, values in by_name.items():
            if values:
                metrics[name + suffix] = float(np.mean(values))
    return metrics


def _grading_failed(call: Call) -> bool:
    return call.sample.outcome is not None and not call.sample.outcome.graded


def _answer(call: Call) -> str | None:
    return call.sample.outcome.answer if call.sample.outcome is not None else None


def _judgements(calls: list[Call]) -> dict[str, float]:
    """The role's accuracies and rates, except those without an observation."""
    metrics = {name: items.mean for name, items in role_observations(calls).items()}
    answers = [_answer(call) for call in calls if call.input.role in (SOLVER, CORRECTOR)]
    if answers:
        metrics["missing_answer_share"] = answers.count(None) / len(answers)
    verdicts = [verdict_of(call.sample) for call in calls if call.input.role == VERIFIER]
    if verdicts:
        metrics["invalid_verdict_share"] = verdicts.count(Verdict.INVALID) / len(verdicts)
        metrics["verifier_f1"] = verifier_f1(calls).mean
    return {name: value for name, value in metrics.items() if value is not None}
