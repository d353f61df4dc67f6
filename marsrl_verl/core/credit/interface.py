"""Interface of a method's credit: advantages and masks of tokens, and the policy loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.sequence import Plain
from marsrl_verl.settings.declaration import MethodConfig


@dataclass(frozen=True, slots=True)
class LossSpec:
    """The policy loss of a method's updates, where it is not verl's. Clipping, entropy bonus, KL term and
    mean are settings (`actor_rollout_ref.actor`, `marsrl.training.loss_mean`)."""

    name: str | None = None
    """`package.module:function`, with the arguments of verl's registered policy losses, or a name in verl's
    registry; None: `actor_rollout_ref.actor.policy_loss.loss_mode`."""
    columns: tuple[str, ...] = ()
    """Names of the values of each response token that it reads beside verl's arguments: annotations of the
    sequences (`turn`, `Traits.annotations`; NaN or -1 where a sequence has none) or columns of the step
    (`core.rows`)."""
    settings: Mapping[str, Plain] = field(default_factory=dict)
    """Its own settings."""
    clips: bool = False
    """If true, it clips the importance ratio as verl's usual one does, and the start warns where that ratio
    can only be 1."""
    widest_clip: float | None = None
    """Widest clip range that still acts, as the ratio stays near to 1; the start warns of a wider one. None:
    any may act."""
    ratio_bound: tuple[str, float] | None = None
    """The setting that bounds the ratio before it is clipped, and the bound. Where the clip comes first for
    every ratio, the start warns that it can't act. None: there is none, or it acts on parts of a ratio."""


class Credit(ABC):
    """Advantages of a step's rows. Keeps no state: the same groups give the same numbers.

    Args:
        config: the method's settings (`Method.Config`).
    """

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """The settings that it reads; its method's are derived from them."""
    is_group_relative: ClassVar[bool] = True
    """If true, advantages are those that verl calls `grpo`."""
    counts_kl: ClassVar[bool] = False
    """If true, advantages count the KL penalties of tokens (column `kl_penalties`,
    `algorithm.use_kl_in_reward`), as those of `core.credit.advantages` do."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def loss(cls, config: Any) -> LossSpec:
        """The policy loss of its updates."""
        return LossSpec()

    @abstractmethod
    def keep(self, groups: Sequence[Group]) -> list[RowRef]:
        """The sequences that have an advantage, in the order of the groups, before any log-probability is
        known."""

    def is_trainable(self, groups: Sequence[Group]) -> bool:
        """True if a complete unit has anything to train."""
        return bool(self.keep(groups))

    @abstractmethod
    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """(N,) the advantage of every token; log-probabilities (the reference policy's where KL needs them)
        and probes are known."""

    @property
    def needs_entropies(self) -> bool:
        """True if `masks` reads entropies under the weights about to be updated: rows whose log-probabilities
        are recorded are then computed again."""
        return False

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """(N,) tokens that are left out of the loss and still count in its normaliser; None: no token."""
        return None

    def token_shares(self, rows: Rows, advantages: NDArray[np.float32]) -> Mapping[str, NDArray[np.bool_]]:
        """(N,) tokens whose share among the trained ones is logged, by the metric's name."""
        return {}
