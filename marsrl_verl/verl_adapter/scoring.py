"""From the agent-loop worker to verl's reward workers: groups that end at about one time go together.

Upstream behaviour: a call of `RewardLoopWorker.compute_score` a sample. A Ray call costs both sides more than
grading a short answer does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.exceptions import RayTaskError
from verl import DataProto

from marsrl_verl.core.types import Outcome
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardUnavailableError

WINDOW_S = 0.005
"""Seconds for which a group waits for others before it is sent."""


def without_tracebacks(error: Exception) -> Exception:
    """A `RewardUnavailableError` without the tracebacks of the processes that it passed; others as they
    are."""
    if not isinstance(error, RewardUnavailableError):
        return error
    cause: BaseException = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    return RewardUnavailableError(str(cause))


class GroupScorer:
    """Spreads groups over the reward workers.

    Args:
        workers: Ray handles of verl's reward workers, at least one.
    """

    def __init__(self, workers: Sequence[Any]) -> None:
        if not workers:
            raise ValueError("samples are scored in verl's reward loop, and no reward worker was started")
        self._count = len(workers)
        self._workers = itertools.cycle(workers)
        self._waiting: list[tuple[list[ScoreRequest], asyncio.Future[list[Outcome]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        """The outcomes of one group's responses, in their order. What a reward worker raises comes out here,
        for every group that it was asked about."""
        result: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(requests), result))
        if len(self._waiting) == 1:
            self._start(self._send_soon())
        return await result

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop itself holds no reference
        task.add_done_callback(self._tasks.discard)

    async def _send_soon(self) -> None:
        await asyncio.sleep(WINDOW_S)
        groups, self._waiting = self._waiting, []
        for first in range(min(self._count, len(groups))):
            self._start(self._send(groups[first :: self._count]))

    async def _send(self, groups: list[tuple[list[ScoreRequest], asyncio.Future[list[Outcome]]]]) -> None:
        """One call of a reward worker."""
        try:
            every = [request for requests, _ in groups for request in requests]
            column = np.empty(len(every), dtype=object)
            column[:] = every
            batch = DataProto(non_tensor_batch={"score_request": column})
            answer = await next(self._workers).compute_score.remote(batch)
            outcomes = iter(answer["reward_extra_info"]["outcomes"])
            shares = [[next(outcomes) for _ in requests] for requests, _ in groups]
        except Exception as error:
            for _, result in groups:
                if not result.done():
                    result.set_exception(without_tracebacks(error))
            return
        for (_, result), share in zip(groups, shares, strict=True):
            if not result.done():
                result.set_result(share)
