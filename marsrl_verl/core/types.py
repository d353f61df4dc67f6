"""The roles of MarsRL, and when an answer is right."""

from __future__ import annotations

SOLVER = "solver"
VERIFIER = "verifier"
CORRECTOR = "corrector"
"""The roles of MarsRL, as `RolloutRequest.role` and the configuration name them."""
ROLES = (SOLVER, VERIFIER, CORRECTOR)


def is_correct(reward: float) -> bool:
    """Whether the reward of a solution's answer says that the answer is right."""
    return reward > 0.5
