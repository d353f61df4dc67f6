"""Metrics of a training step from its completed groups, by role and by stage.

A metric's full name is `role/<role>/<name>` or `stage/<stage>/<name>`, with `<name>` from
`TRAINING_METRICS`. A metric without a single observation in the step is absent, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from marsrl_verl.algos.marsrl.evaluation.loop_rules import verdict_of
from marsrl_verl.algos.marsrl.evaluation.role_metrics import ROLE_METRICS, role_observations, verifier_f1
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.inert_text import REPLACEMENT
from marsrl_verl.core.trajectory import FinishReason, Group, Trajectory, is_correct
from marsrl_verl.evaluation.runs import Call, final_answer

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
    """All metrics of the groups that a step trains or completes.

    A trajectory without a reward (a later one gives it) counts, with its length and ending, but not where
    rewards, answers and verdicts are looked at.
    """
    by_name: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        by_name.setdefault(("role", group.request.role), []).append(group)
        by_name.setdefault(("stage", group.request.stage), []).append(group)
    return {
        f"{kind}/{what}/{_known(name)}": value
        for (kind, what), some in by_name.items()
        for name, value in _measure(some).items()
    }


def _measure(groups: list[Group]) -> dict[str, float]:
    members = [one for group in groups for one in group.trajectories]
    graded = [group for group in groups if all(one.reward is not None for one in group.trajectories)]
    metrics = {
        "groups": float(len(groups)),
        "equal_reward_groups": float(sum(len(set(group.rewards)) < 2 for group in graded)),
        "samples": float(len(members)),
    }
    if not members:
        return metrics
    endings = [one.finish for one in members]
    regular = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.LIMIT)
    metrics |= {
        "truncation_share": endings.count(FinishReason.LENGTH) / len(members),
        "failed_share": sum(ending not in regular for ending in endings) / len(members),
        "invalid_text_share": sum(REPLACEMENT in one.text for one in members) / len(members),
    }
    calls = [
        Call(group.request, one) for group in groups for one in group.trajectories if one.reward is not None
    ]
    if calls:
        rewards = [call.trajectory.scored for call in calls]
        metrics["reward_mean"] = float(np.mean([one.value for one in rewards]))
        metrics["grading_error_share"] = sum(not one.graded for one in rewards) / len(rewards)
    return metrics | _lengths(members) | _texts(members) | _judgements(calls)


def _right(one: Trajectory) -> bool | None:
    """Whether it has the full reward; None while it has none."""
    return None if one.reward is None else is_correct(one.value)


def _lengths(members: list[Trajectory]) -> dict[str, float]:
    """Lengths of the responses; an external Solver's answers have none in tokens of ours."""
    own = [one for one in members if not one.external]
    if not own:
        return {}
    found = [one.tokens for one in own]
    metrics = {
        "response_length_mean": float(np.mean(found)),
        "response_length_p95": float(np.percentile(found, 95)),
        "response_length_max": float(max(found)),
    }
    for name, right in (("right", True), ("wrong", False)):
        some = [one.tokens for one in own if _right(one) is right]
        if some:
            metrics[f"response_length_mean_{name}"] = float(np.mean(some))
    return metrics


_FIGURES = {
    "reflection_words": "reflection_words",
    "repetition": "repetition_share",
    "distinct": "distinct_4_share",
}
"""Figure of a text (`text_metrics.TextFigures`) -> metric."""


def _texts(members: list[Trajectory]) -> dict[str, float]:
    """How the responses are written, all of them and those with and without the full reward, as far as their
    rollouts said."""
    metrics: dict[str, float] = {}
    for suffix, right in (("", None), ("_right", True), ("_wrong", False)):
        some = [one for one in members if right is None or _right(one) is right]
        for figure, metric in _FIGURES.items():
            values = [one.figures[figure] for one in some if figure in one.figures]
            if values:
                metrics[metric + suffix] = float(np.mean(values))
    return metrics


def _judgements(calls: list[Call]) -> dict[str, float]:
    """The role's accuracies and rates, except those without an observation."""
    metrics = {name: items.mean for name, items in role_observations(calls).items()}
    answers = [final_answer(call.trajectory) for call in calls if call.request.role in (SOLVER, CORRECTOR)]
    if answers:
        metrics["missing_answer_share"] = answers.count(None) / len(answers)
    verdicts = [verdict_of(call.trajectory) for call in calls if call.request.role == VERIFIER]
    if verdicts:
        metrics["invalid_verdict_share"] = verdicts.count(Verdict.INVALID) / len(verdicts)
        metrics["verifier_f1"] = verifier_f1(calls).mean
    return {name: value for name, value in metrics.items() if value is not None}
