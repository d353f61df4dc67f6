"""Which roles a run ever asks: what engine and trainer must have room for."""

from __future__ import annotations

from marsrl_verl.core.types import ROLES, SOLVER


def asked_roles(training_rounds: int, evaluation_rounds: int) -> tuple[str, ...]:
    """The roles of training and evaluation together.

    Args:
        training_rounds: `marsrl.algo.correction_rounds`.
        evaluation_rounds: `marsrl.evaluation.correction_rounds`.
    """
    return ROLES if int(training_rounds) > 0 or int(evaluation_rounds) > 0 else (SOLVER,)
