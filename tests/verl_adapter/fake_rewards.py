"""Rewards for the tests of the reward manager; named in a configuration as `fake_rewards:Class`."""

from __future__ import annotations

import asyncio
import threading

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward


class TextIsNumber(RoleReward):
    """The response is its own reward; any other text raises."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def score(self, request):
        return RewardResult(self.factor * float(request.text), {"answer": request.trajectory_id})


class WaitsForAnother(RoleReward):
    """Ends only when two responses are scored at the same time."""

    def __init__(self) -> None:
        self.count = 0
        self.both = asyncio.Event()

    async def score(self, request):
        self.count += 1
        if self.count == 2:
            self.both.set()
        await asyncio.wait_for(self.both.wait(), timeout=20)
        return RewardResult(1.0)


class NeverReturns(RoleReward):
    """Blocks every call."""

    def score(self, request):
        threading.Event().wait()
