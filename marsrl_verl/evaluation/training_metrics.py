"""Metrics of a training step from its completed groups, by role and by stage.

A metric's full name is `role/<role>/<name>` or `stage/<stage>/<name>` (docs/reference/metrics.md). One
without a single observation in the step is absent, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, answering_roles
from marsrl_verl.core.rows import RESPONSE_MASK, Rows
from marsrl_verl.core.sanitize import REPLACEMENT
from marsrl_verl.core.trajectory import FinishReason, Trajectory, is_correct
from marsrl_verl.evaluation.single_role import answer_metrics
from marsrl_verl.evaluation.workflow import episode_metrics, is_episode


def role_metric(role: str, name: str) -> str:
    """The full name of a role's metric, e.g. `role/solver/reward_mean`."""
    return f"role/{role}/{name}"


def counting(name: str) -> str:
    """The name of a role or stage in the metrics of a step whose pass trains no policy: such a pass may have
    other problems, prompted in another way, than those beside it in a curve."""
    return f"{name}.counting"


def training_metrics(
    groups: Iterable[Group], method: type[Method], *, trains: bool = True
) -> dict[str, float]:
    """All metrics of the groups that a step of the method trains or completes.

    A trajectory without a reward (a later one gives it) counts, with its length and ending, but not where
    rewards, answers and verdicts are looked at.

    Args:
        trains: whether some policy is due in this step (`Schedule.trained`).
    """
    by_name: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        for one in by_role(group):
            by_name.setdefault(("role", one.request.role), []).append(one)
        by_name.setdefault(("stage", group.request.stage), []).append(group)
    return {
        f"{kind}/{what if trains else counting(what)}/{name}": value
        for (kind, what), some in by_name.items()
        for name, value in (
            _measure(some, what if kind == "role" else None) | _own(method, some, whole=kind == "stage")
        ).items()
    }


def by_role(group: Group) -> list[Group]:
    """Splits a group whose trajectories have several sequences by role: each part has the role's sequences
    and their rewards alone."""
    group_role = group.request.role
    roles = dict.fromkeys(one.role for each in group.trajectories for one in each.sequences)
    if all(len(one.sequences) < 2 for one in group.trajectories):
        return [group]
    if any(not one.sequences for one in group.trajectories):
        roles[group_role] = None  # what another model answered is the prompted role's
    return [
        Group(
            replace(group.request, role=role),
            [
                _part(one, role)
                for one in group.trajectories
                if any(sequence.role == role for sequence in one.sequences)
                or (role == group_role and not one.sequences)
            ],
        )
        for role in roles
    ]


def _part(one: Trajectory, role: str) -> Trajectory:
    """A trajectory with one role's sequences alone."""
    sequences = [sequence for sequence in one.sequences if sequence.role == role]
    own = [sequence.reward for sequence in sequences if sequence.reward is not None]
    texts = [sequence.text for sequence in sequences if sequence.text is not None]
    reward = one.reward
    if own and reward is not None:
        reward = replace(reward, value=sum(own) / len(own))
    figures = one.figures if len(one.sequences) < 2 else {}
    text = "\n".join(texts) if texts else one.text
    return replace(one, sequences=sequences, reward=reward, text=text, figures=figures)


def _own(method: type[Method], groups: list[Group], *, whole: bool) -> dict[str, float]:
    """The method's own metrics of the trajectories that have a reward; a workflow's episodes bring theirs
    themselves.

    Args:
        whole: whether trajectories are as they are, not parts of one role.
    """
    rewarded = scored(groups)
    found = method.group_metrics(rewarded)
    if any(is_episode(one) for group in rewarded for one in group.trajectories):
        return (found or {}) | (episode_metrics(rewarded) if whole else {})
    return answer_metrics(rewarded, answering_roles(method)) if found is None else found


def scored(groups: Iterable[Group]) -> list[Group]:
    """The groups with those of their trajectories that have a reward."""
    return [
        Group(group.request, [one for one in group.trajectories if one.reward is not None])
        for group in groups
    ]


def _measure(groups: list[Group], role: str | None) -> dict[str, float]:
    members = [one for group in groups for one in group.trajectories]
    graded = [group for group in groups if all(one.reward is not None for one in group.trajectories)]
    metrics = {
        "groups": float(len(groups)),
        "zero_std_groups": float(sum(len(set(group.rewards)) < 2 for group in graded)),
        "samples": float(len(members)),
    }
    if not members:
        return metrics
    endings = [one.finish for one in members]
    regular = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.LIMIT)
    metrics |= {
        "truncation_frac": endings.count(FinishReason.LENGTH) / len(members),
        "failed_frac": sum(ending not in regular for ending in endings) / len(members),
        "invalid_text_frac": sum(REPLACEMENT in one.text for one in members) / len(members),
    }
    rewards = [one.reward for one in members if one.reward is not None]
    if rewards:
        metrics["reward_mean"] = float(np.mean([one.value for one in rewards]))
        metrics["grading_error_frac"] = sum(_ungraded(one, role) for one in members) / len(rewards)
    return metrics | _lengths(members) | _texts(members)


def _ungraded(one: Trajectory, role: str | None) -> bool:
    """True where its grading failed; where the texts of agents are graded, that by the role's reward."""
    if one.reward is None or one.reward.graded:
        return False
    failed = [each.role for each in one.gradings if each.error is not None]
    return role is None or not failed or role in failed


def _right(one: Trajectory) -> bool | None:
    """True if it has the full reward; None while it has none."""
    return None if one.reward is None else is_correct(one.value)


def _lengths(members: list[Trajectory]) -> dict[str, float]:
    """Lengths of the responses; a frozen policy's answers have none in tokens of ours."""
    own = [one for one in members if not one.external]
    if not own:
        return {}
    found = [_sampled_tokens(one) for one in own]
    metrics = {
        "response_length_mean": float(np.mean(found)),
        "response_length_p95": float(np.percentile(found, 95)),
        "response_length_max": float(max(found)),
    }
    for name, right in (("right", True), ("wrong", False)):
        some = [_sampled_tokens(one) for one in own if _right(one) is right]
        if some:
            metrics[f"response_length_mean_{name}"] = float(np.mean(some))
    return metrics


def _sampled_tokens(one: Trajectory) -> int:
    """Without what tools and templates wrote."""
    return sum(sequence.trained_tokens for sequence in one.sequences)


_FIGURES = {
    "reflection_words": "reflection_words",
    "repetition": "repetition_frac",
    "distinct": "distinct_4_frac",
}
"""Figure of a text (`text_metrics.TextFigures`) -> metric."""


def _texts(members: list[Trajectory]) -> dict[str, float]:
    """Metrics of the responses' style, over all of them and over those with and without the full reward, as
    far as their rollouts noted it."""
    metrics: dict[str, float] = {}
    for suffix, right in (("", None), ("_right", True), ("_wrong", False)):
        some = [one for one in members if right is None or _right(one) is right]
        for figure, metric in _FIGURES.items():
            texts = [found for one in some for found in (one.figures, *(s.figures for s in one.sequences))]
            values = [found[figure] for found in texts if figure in found]
            if values:
                metrics[metric + suffix] = float(np.mean(values))
    return metrics


def advantage_metrics(rows: Rows, advantages: NDArray[np.float32]) -> dict[str, float]:
    """Mean and extremes of the advantages, before any token is masked, over the tokens that the policy chose,
    and how much of the batch has one other than 0.

    Advantages of single tokens can vanish, as in a tree on a segment whose continuations do as well as all
    leaves do. A sequence counts where any of its tokens does. Empty without tokens.

    Args:
        rows: of the step.
        advantages: (N,)
    """
    chosen = rows.columns[RESPONSE_MASK].astype(bool)
    values = advantages[chosen].astype(np.float64)
    if not len(values):
        return {}
    moving = (advantages != 0) & chosen
    return {
        "batch/advantage_mean": float(values.mean()),
        "batch/advantage_min": float(values.min()),
        "batch/advantage_max": float(values.max()),
        "batch/samples_with_advantage_frac": float((rows.row_sums(moving) > 0.5).mean()),
        "batch/tokens_with_advantage_frac": float((values != 0).mean()),
    }
