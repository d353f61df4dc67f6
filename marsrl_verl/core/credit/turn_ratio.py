"""The policy loss over turns as a choice of a method's settings (`losses.turn_ratio`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marsrl_verl.core.credit.estimator import Estimator, EstimatorConfig
from marsrl_verl.core.credit.interface import LossSpec
from marsrl_verl.core.sequence import LABEL, TURN
from marsrl_verl.settings.choices import TurnRatio
from marsrl_verl.settings.declaration import Settings, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView

LOSS = "marsrl_verl.losses.turn_ratio:turn_ratio"
WIDEST_GEOMETRIC = 0.01
"""A geometric ratio further from 1 than that is rare: log-ratios of a turn's tokens nearly cancel out."""
_MEAN = "marsrl.training.loss_mean"
_KL = "algorithm.use_kl_in_reward"


class TurnLossConfig(Settings):
    """The importance ratio of the policy loss (arXiv 2503.09501, eq. 12 and 13). Its clip is
    `actor_rollout_ref.actor.clip_ratio_low`, `clip_ratio_high` and `clip_ratio_c`; what it is averaged over
    is `marsrl.training.loss_mean`, or `actor_rollout_ref.actor.loss_agg_mode`."""

    ratio: TurnRatio = TurnRatio.ARITHMETIC
    """Ratio of a token, which is clipped as a whole: its turn's, as the mean of the tokens' ratios
    (`arithmetic`, the paper) or of their logarithms (`geometric`, its released code; GSPO turn by turn), or
    its own (`token`, PPO). A geometric ratio stays much nearer to 1: GSPO's clip range is about 3e-4."""
    log_ratio_clip: float | None = limits(3.0, gt=0.0, why="an unchanged token has 0; null is no bound")
    """Upper bound of log-ratios before the clip: of single tokens with `arithmetic` and `token`, of a turn's
    mean with `geometric`; null: none."""


def turn_loss(config: TurnLossConfig, key: str, labels: Sequence[str] = ()) -> LossSpec:
    """The policy loss of these settings.

    Args:
        config: a node of the method's settings.
        key: its key.
        labels: names of the numbers in the annotation `label`; the clipped share is logged for each, too.
    """
    columns = [] if config.ratio is TurnRatio.TOKEN else [TURN]
    columns += [LABEL] if labels else []
    settings = {"ratio": str(config.ratio), "log_ratio_clip": config.log_ratio_clip, "labels": list(labels)}
    widest = WIDEST_GEOMETRIC if config.ratio is TurnRatio.GEOMETRIC else None
    # An arithmetic ratio is a mean, in which a single large one counts with its whole size.
    acts_alone = config.log_ratio_clip is not None and config.ratio is not TurnRatio.ARITHMETIC
    bound = (f"{key}.log_ratio_clip", math.exp(config.log_ratio_clip or 0.0)) if acts_alone else None
    return LossSpec(LOSS, tuple(columns), settings, clips=True, widest_clip=widest, ratio_bound=bound)


def turn_loss_checks(run: RunView, config: TurnLossConfig, key: str) -> list[ConfigIssue]:
    """Checks that a ratio of whole turns is averaged over turns, each with one advantage. `config` is the
    node `key` of the method's settings."""
    if config.ratio is TurnRatio.TOKEN:
        return []
    issues = []
    if run.settings.training.loss_mean is None:
        what = (
            "All tokens of a turn have one ratio, and the mean over tokens or responses would weight a turn "
            "by its length."
        )
        fix = f"Set {_MEAN}=seq-mean-turn-mean-token-mean or turn-mean-token-mean, or {key}.ratio=token."
        issues.append(ConfigIssue(f"{key}.ratio", what, fix, config.ratio))
    algo = run.settings.algo
    if isinstance(algo, EstimatorConfig) and algo.estimator is Estimator.REINFORCE_PP:
        in_reward = {_KL: True} if run.get(_KL) else {}
        discount = {"marsrl.algo.gamma": algo.gamma} if algo.gamma != 1.0 else {}
        for name, value in (in_reward | discount).items():
            what = (
                "With reinforce_pp the tokens of a turn then have advantages of their own, and what a ratio "
                "of whole turns makes of them is the gradient of no published loss."
            )
            neutral = "1 (gamma_turn discounts turns)" if name in discount else "false"
            fix = f"Set it to {neutral}, or {key}.ratio=token."
            issues.append(ConfigIssue(name, what, fix, value))
    return issues
