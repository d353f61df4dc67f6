"""Calls of verl's reward workers by the rollout worker: groups that end at about one time go together.

Upstream behaviour: a call of `RewardLoopWorker.compute_score` a sample. A Ray call costs both sides more than
grading a short answer does. But a call returns with the slowest of its grades, so it holds no more of them
than a reward worker grades at a time, or in a moment: behind a slow reward, scores keep coming, and the watch
of the round sees them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from verl import DataProto

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import THREADS, RewardUnavailableError
from marsrl_verl.verl_adapter.rollout_server.engine_watch import origin

WINDOW_S = 0.005
"""Seconds for which a group waits for others before it is sent."""
LEAST_IN_A_CALL, MAX_IN_A_CALL = THREADS, 1024
"""Responses that a call may hold at any rate, and at most; a larger group is scored in several calls."""
CALL_S = 0.1
"""Seconds that a call of more should take, at the pace of the last one."""


def without_tracebacks(error: Exception) -> Exception:
    """A `RewardUnavailableError` without the tracebacks of processes that it passed; others as they are."""
    return RewardUnavailableError(str(origin(error))) if isinstance(error, RewardUnavailableError) else error


@dataclass(slots=True, eq=False)
class _Group:
    """A group of which some responses may be scored."""

    requests: list[ScoreRequest]
    future: asyncio.Future[list[RewardResult]]
    results: dict[int, RewardResult] = field(default_factory=dict)

    def take(self, place: int, result: RewardResult) -> None:
        """The result of one response."""
        self.results[place] = result
        if len(self.results) == len(self.requests) and not self.future.done():
            self.future.set_result([self.results[k] for k in range(len(self.requests))])


class GroupScorer:
    """Spreads groups over verl's reward workers, of which there must be one; `clock` in seconds."""

    def __init__(self, workers: Sequence[Any], clock: Callable[[], float] = time.monotonic) -> None:
        if not workers:
            raise ValueError(
                "trajectories are scored in verl's reward loop, and no reward worker was started"
            )
        self._count, self._clock = len(workers), clock
        self._in_a_call = LEAST_IN_A_CALL
        self._workers = itertools.cycle(workers)
        self.graded = 0
        """Responses that have come back since this began."""
        self._waiting: list[_Group] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def score(self, requests: Sequence[ScoreRequest]) -> list[RewardResult]:
        """The results of one group's responses, in their order. What a reward worker raises comes out here,
        for every group that it was asked about."""
        result: asyncio.Future[list[RewardResult]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Group(list(requests), result))
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
            share = groups[first :: self._count]
            places = [(group, place) for group in share for place in range(len(group.requests))]
            for start in range(0, len(places), self._in_a_call):
                self._start(self._send(places[start : start + self._in_a_call]))

    async def _send(self, places: list[tuple[_Group, int]]) -> None:
        """One call of a reward worker."""
        began = self._clock()
        try:
            column = np.empty(len(places), dtype=object)
            column[:] = [group.requests[place] for group, place in places]
            batch = DataProto(non_tensor_batch={"score_request": column})
            answer = await next(self._workers).compute_score.remote(batch)
            results = answer["reward_extra_info"]["outcomes"]
            for (group, place), result in zip(places, results, strict=True):
                group.take(place, result)
            self.graded += len(places)
            self._in_a_call = size_of_call(len(places), self._clock() - began)
        except Exception as error:
            for group, _ in places:
                if not group.future.done():
                    group.future.set_exception(without_tracebacks(error))


def size_of_call(graded: int, seconds: float) -> int:
    """Number of responses that the next calls may hold, after one of `graded` took `seconds`."""
    target = MAX_IN_A_CALL if seconds <= 0 else int(graded * CALL_S / seconds)
    return min(max(target, LEAST_IN_A_CALL), MAX_IN_A_CALL)
