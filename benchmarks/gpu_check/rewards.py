"""A reward that a model of random weights gets now and then."""

from __future__ import annotations

import hashlib

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest


class Parity(RoleReward):
    """1 for every second text."""

    pays_unfinished = True

    def score(self, request: ScoreRequest) -> RewardResult:
        return RewardResult(float(hashlib.sha256(request.text.encode()).digest()[0] % 2))
