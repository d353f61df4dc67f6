"""KL in the reward: penalties of tokens for the policy's distance from the reference policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl.trainer.ppo import core_algos

from marsrl_verl.core.rows import KL_PENALTIES, OLD_LOG_PROBS, REF_LOG_PROBS, RESPONSE_MASK, Rows


class RewardKL:
    """verl's `apply_kl_penalty` on packed rows, by its node `algorithm`: each token costs the controller's
    coefficient times its KL. That of the adaptive controller goes from step to step, and into checkpoints."""

    def __init__(self, algorithm: DictConfig) -> None:
        self._kind, self._initial = str(algorithm.kl_penalty), float(algorithm.kl_ctrl.kl_coef)
        self._adapts = str(algorithm.kl_ctrl.type) == "adaptive"
        self._controller = core_algos.get_kl_controller(algorithm.kl_ctrl)

    @classmethod
    def of(cls, config: DictConfig) -> RewardKL | None:
        """The penalty of a run's configuration; None where rewards have none."""
        return cls(config.algorithm) if config.algorithm.use_kl_in_reward else None

    @property
    def coefficient(self) -> float:
        """Cost of a nat in the next step."""
        return float(self._controller.value)

    def penalize(self, rows: Rows) -> dict[str, float]:
        """Sets the column `kl_penalties` from `old_log_probs` under the weights about to be updated and
        `ref_log_probs`; then the controller sees the step's KL.

        Returns:
            The KL, mean over rows of the mean over their tokens in the loss, nats; the coefficient.
        """
        old, reference = (torch.from_numpy(rows.columns[name]) for name in (OLD_LOG_PROBS, REF_LOG_PROBS))
        found = core_algos.kl_penalty(old, reference, self._kind).numpy()
        found = np.where(rows.columns[RESPONSE_MASK].astype(bool), found, np.float32(0.0))
        means = rows.row_sums(found) / np.maximum(rows.trained_tokens(), 1)
        coefficient, current = self.coefficient, float(means.mean())
        rows.columns[KL_PENALTIES] = (coefficient * found).astype(np.float32)
        self._controller.update(current_kl=current, n_steps=len(rows))
        return {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: an adaptive coefficient, and the one that it began with."""
        return {"initial": self._initial, "coefficient": self.coefficient} if self._adapts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with a saved coefficient, unless `kl_ctrl.type` or `kl_coef` was changed since."""
        if self._adapts and state.get("initial") == self._initial:
            self._controller.value = state["coefficient"]
