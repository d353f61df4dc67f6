"""The advantage estimator that a method's settings choose, for methods whose trajectories are independent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from marsrl_verl.core.credit.advantages import (
    comparable_rows,
    group_relative,
    has_signal,
    reinforce_plus_plus,
)
from marsrl_verl.core.credit.interface import Credit
from marsrl_verl.core.credit.mastered_tokens import MasteredTokens, MasteredTokensConfig
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import MethodConfig, Needs, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView


class Estimator(Choice):
    """Baseline that a response's reward is compared with."""

    GROUP = "group"
    """The rewards of its group (GRPO, arXiv 2402.03300)."""
    REINFORCE_PP = "reinforce_pp"
    """The returns of all tokens of the step (REINFORCE++, arXiv 2501.03262)."""


class MaskedConfig(MethodConfig):
    """Settings of a method with UloRL's masking."""

    resumable: ClassVar[frozenset[str]] = frozenset({"mastered_tokens"})

    mastered_tokens: MasteredTokensConfig = Field(default_factory=MasteredTokensConfig)
    """Masking of tokens of correct responses, which leaves them out of the loss."""


class EstimatorConfig(MaskedConfig):
    """Settings of a method whose estimator is chosen."""

    resumable: ClassVar[frozenset[str]] = frozenset({"estimator", "gamma", "normalize_std"})

    estimator: Estimator = Estimator.GROUP
    """`group`: advantages relative to the group, one for each response; groups with equal rewards are not
    trained. `reinforce_pp`: discounted returns of every token, whitened over the step; all responses are
    trained. With `algorithm.use_kl_in_reward` a response's reward loses its KL as a whole with `group`, token
    by token with `reinforce_pp`."""
    gamma: float = limits(
        1.0, gt=0.0, le=1.0, why="a later reward counts", needs=Needs("estimator", Estimator.REINFORCE_PP)
    )
    """Discount of a reward for each token before it (`reinforce_pp`)."""
    normalize_std: bool = limits(True, needs=Needs("estimator", Estimator.GROUP))
    """Divide group-relative rewards by the group's standard deviation (GRPO); false: Dr. GRPO (arXiv
    2503.20783)."""

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks that every step of the run has all that the estimator needs."""
        smallest = run.settings.pipeline.min_group
        in_reward = bool(run.get("algorithm.use_kl_in_reward"))
        if in_reward and smallest is not None and self.estimator is Estimator.GROUP:
            what = (
                "Responses of a group are compared by their rewards less KL, and with "
                f"marsrl.pipeline.min_group = {smallest} some are trained, and their KL is known, in an "
                "earlier step than others."
            )
            fix = "Leave one of them out, or set marsrl.algo.estimator=reinforce_pp."
            yield ConfigIssue("algorithm.use_kl_in_reward", what, fix, True)


class MaskingCredit(Credit):
    """Credit with UloRL's masking of mastered tokens (`MaskedConfig`)."""

    Config = MaskedConfig

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__(config)
        self.mastered = MasteredTokens(config.mastered_tokens)

    @property
    def needs_entropies(self) -> bool:
        """True if UloRL's masking is on."""
        return self.mastered.config.enabled

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Well-mastered tokens of correct responses (UloRL), where masking is on."""
        return self.mastered.masks(rows, advantages)

    def token_shares(self, rows: Rows, advantages: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
        """Well-mastered tokens, whether they are left out or not."""
        return {"mastered_token_frac": self.mastered.mastered(rows, advantages)}


class EstimatorCredit(MaskingCredit):
    """Advantages relative to the group or to the step, as the settings choose (`EstimatorConfig`)."""

    Config = EstimatorConfig
    counts_kl = True
    config: EstimatorConfig

    def keep(self, groups: Sequence[Group]) -> list[RowRef]:
        """The comparable sequences (`advantages.comparable_rows`); relative to the group those of groups
        whose rewards are not all equal."""
        return comparable_rows(groups, differing=self.config.estimator is Estimator.GROUP)

    def is_trainable(self, groups: Sequence[Group]) -> bool:
        """True if there is anything to compare: relative to a group, rewards that are not all equal (0 <
        #correct < G)."""
        if self.config.estimator is Estimator.GROUP:
            return any(map(has_signal, groups))
        return super().is_trainable(groups)

    def factors(self, rows: Rows) -> NDArray[np.float64] | None:
        """(B,) factors of the rows' advantages; None: 1."""
        return None

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """(N,) the estimator's advantages, times `factors`."""
        if self.config.estimator is Estimator.GROUP:
            values = rows.to_tokens(group_relative(rows, normalize_std=self.config.normalize_std))
        else:
            values = self.returns(rows)
        factors = self.factors(rows)
        return (values if factors is None else values * rows.to_tokens(factors)).astype(np.float32)

    def returns(self, rows: Rows) -> NDArray[np.float64]:
        """(N,) whitened returns (`reinforce_pp`)."""
        return reinforce_plus_plus(rows, gamma=self.config.gamma)
