"""GRPO: group-relative policy optimisation (arXiv 2402.03300).

Each problem is answered G times by one role, in one call, which may take several segments. A response's
advantage is its reward relative to its group's (`core.credit.estimator` has another choice). Groups whose
rewards are all equal are not trained (DAPO, arXiv 2503.14476, §3.2). The policy loss is verl's. The
evaluation is that of one role: avg@k, pass@k, majority.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from marsrl_verl.core.credit import EstimatorConfig
from marsrl_verl.core.method import Method


class GRPOConfig(EstimatorConfig):
    """Independent responses to a problem (GRPO, arXiv 2402.03300)."""

    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }

    name: str = "grpo"
    """The method."""


class GRPO(Method):
    """One stage, one group of responses to a problem, group-relative advantages."""

    Config = GRPOConfig
