"""The advantage estimator that a method's settings choose, for methods whose trajectories are independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.base import BaseConfig
from marsrl_verl.core.advantages import comparable_rows, group_relative, reinforce_plus_plus
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import RunView
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Needs, limits
from marsrl_verl.settings.issues import ConfigIssue


class Estimator(Choice):
    """What a response's reward is compared with."""

    GROUP = "group"
    """The rewards of its group (GRPO, arXiv 2402.03300)."""
    REINFORCE_PP = "reinforce_pp"
    """The returns of all tokens of the step (REINFORCE++, arXiv 2501.03262)."""


class EstimatorConfig(BaseConfig):
    """What a method has that lets its settings choose the estimator."""

    estimator: Estimator = Estimator.GROUP
    """`group`: advantages relative to the group, one for each response; groups with equal rewards are not
    trained. `reinforce_pp`: discounted returns of every token, whitened over the step; all responses are
    trained. With `algorithm.use_kl_in_reward` a response's reward loses its KL as a whole in the one, token
    by token in the other."""
    gamma: float = limits(
        1.0, gt=0.0, le=1.0, why="a later reward counts", needs=Needs("estimator", Estimator.REINFORCE_PP)
    )
    """Discount of a reward for each token before it (`reinforce_pp`)."""
    normalize_std: bool = limits(True, needs=Needs("estimator", Estimator.GROUP))
    """Divide group-relative rewards by the group's standard deviation (GRPO); false: Dr. GRPO (arXiv
    2503.20783)."""


def estimator_checks(run: RunView) -> list[ConfigIssue]:
    """What the estimator has to know, and a step of the run would not."""
    config: EstimatorConfig = run.settings.algo
    smallest = run.settings.pipeline.min_group
    in_reward = bool(run.get("algorithm.use_kl_in_reward"))
    if not in_reward or smallest is None or config.estimator is not Estimator.GROUP:
        return []
    what = (
        "Responses of a group are compared by their rewards less KL, and with marsrl.pipeline.min_group = "
        f"{smallest} some are trained, and their KL is known, in an earlier step than others."
    )
    fix = "Leave one of them out, or set marsrl.algo.estimator=reinforce_pp."
    return [ConfigIssue("algorithm.use_kl_in_reward", what, fix, True)]


def has_contrast(config: EstimatorConfig, groups: Sequence[Group]) -> bool:
    """Whether the estimator has anything to compare: relative to a group, rewards that are not all equal (0 <
    #correct < G)."""
    if config.estimator is Estimator.GROUP:
        return any(len(set(group.rewards)) > 1 for group in groups)
    return bool(estimated_rows(config, groups))


def estimated_rows(config: EstimatorConfig, groups: Sequence[Group]) -> list[RowRef]:
    """The sequences that the estimator gives an advantage to (`core.advantages.comparable_rows`)."""
    return comparable_rows(groups, differing=config.estimator is Estimator.GROUP)


def estimated_advantages(
    config: EstimatorConfig, rows: Rows, factors: NDArray[np.float64] | None = None
) -> NDArray[np.float32]:
    """(N,) the advantage of every token.

    Args:
        config: the method's settings.
        rows: of the step.
        factors: (B,) of the rows, such as those of their roles; None: 1.
    """
    scale: Any = 1.0 if factors is None else factors
    if config.estimator is Estimator.GROUP:
        values = group_relative(rows, normalize_std=config.normalize_std)
        return rows.spread((values * scale).astype(np.float32))
    returns = reinforce_plus_plus(rows, gamma=config.gamma)
    return (returns if factors is None else returns * rows.spread(factors)).astype(np.float32)
