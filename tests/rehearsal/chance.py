"""The reward of a model that is never right, and gives no verdict."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.loading import load_class


class ByChance(RoleReward):
    """Takes half of the responses for right, by their ids, after the configured reward has graded them.

    Args:
        graded_by: the class that the preset names.
        says: texts that it grades in place of the response, one of them by chance. Its grade is then kept.
        kwargs: its arguments, as the preset names them.
    """

    pays_unfinished = True
    tells_answer = True

    def __init__(self, graded_by: str, says: Sequence[str] = (), **kwargs: Any) -> None:
        base: type[Any] = RoleReward
        self.says = tuple(says)
        self.own: RoleReward = load_class(graded_by, kwargs, base)

    def score(self, request: ScoreRequest) -> RewardResult | Awaitable[RewardResult]:
        """Grades a response, then tosses a coin; or the other way round."""
        if self.says:
            text = self.says[_coin(request, len(self.says))]
            ended = replace(request, text=text, final_text=text, finish_reason=FinishReason.STOP)
            return self.own.score(ended)
        found = self.own.score(request)
        return self._later(request, found) if inspect.isawaitable(found) else _tossed(request, found)

    async def _later(self, request: ScoreRequest, found: Awaitable[RewardResult]) -> RewardResult:
        return _tossed(request, await found)

    def longest_s(self, calls: int) -> float | None:
        return self.own.longest_s(calls)

    def close(self) -> None:
        self.own.close()


def _tossed(request: ScoreRequest, found: RewardResult) -> RewardResult:
    if not found.graded:
        return found  # a failed grade stays one
    heads = _coin(request, 2)
    return replace(found, value=float(heads), info={**found.info, "answer": str(heads)})


def _coin(request: ScoreRequest, sides: int) -> int:
    return hashlib.sha256(request.trajectory_id.encode()).digest()[0] % sides
