"""Call a role's reward with a time limit; what goes wrong in it is a result.

An ordinary `score` runs in a thread, since graders may block; a coroutine runs in an event loop of the
rewards' own, so that one that blocks holds up no more than that. Python can't end a thread: one that overruns
the limit is given up and replaced.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from marsrl_verl.core.sequence import check_plain
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest, ServiceError
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.settings.imports import users_line, users_place

TIMEOUT_S = 300.0
THREADS = 16
"""Calls of one reward at a time, and most threads that it may hold after their limit."""
_GRACE_S = 5.0
"""Seconds that an event loop may take beyond the limit before it counts as blocked."""


_NOT_AT_FAULT = (TimeoutError, ConnectionError, ServiceError)
"""Errors of grades that say nothing against the reward."""


class RewardUnavailableError(RuntimeError):
    """A role's reward grades nothing any more (not one failed call of it): the run can't go on."""


class _LoopBlockedError(TimeoutError):
    """A coroutine blocks the event loop; perhaps another one than that which waited."""


class RewardRunner:
    """A role's reward, called with a time limit. Usable from several threads and event loops.

    Args:
        reward: what scores.
        timeout_s: most seconds of one call, from where it begins; at least what the reward's own limits
            allow (`RoleReward.longest_s`).
        name: the setting that names the reward, for messages.
        threads: calls of an ordinary `score` at a time.
    """

    def __init__(
        self,
        reward: RoleReward,
        timeout_s: float = TIMEOUT_S,
        name: str = "marsrl.reward.<role>",
        threads: int = THREADS,
    ) -> None:
        self.reward, self.name = reward, name
        self.timeout_s = max(timeout_s, reward.longest_s(threads) or 0.0)
        self._limit = f"no result within {self.timeout_s:g} s ({name}.timeout_s)"
        self._threads = _Threads(threads, f"{type(reward).__name__}: {self._limit} in {{}} calls, {_STUCK}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_loop = threading.Lock()

    @classmethod
    def load(cls, role: str, target: str, kwargs: Mapping[str, Any] | None, timeout_s: float) -> RewardRunner:
        """The reward that `marsrl.reward.<role>` names.

        Raises:
            ClassLoadError: as `load_class`.
        """
        base: type[Any] = RoleReward  # abstract: mypy allows no abstract class where a type is expected
        return cls(load_class(target, kwargs, base), timeout_s, f"marsrl.reward.{role}")

    async def score(self, request: ScoreRequest) -> RewardResult:
        """Scores one response.

        An exception, a call that takes too long, and a result that is no `RewardResult` with a finite number
        become reward 0 with the error, not graded. A response that the model did not end itself has reward
        0, unless the reward `pays_unfinished`.

        Raises:
            RewardUnavailableError: so many calls have overrun the limit that no thread is left.
        """
        try:
            result = _checked(await self._call(request))
        except RewardUnavailableError:
            raise
        except Exception as error:
            place = users_line(error) or users_place(type(self.reward).score)
            whose = type(self.reward).__name__ + (f" ({place})" if place else "")  # an error may be long
            note = f"{whose}: {type(error).__name__}: {error}"
            return RewardResult(0.0, error=note, graded=False, raised=not isinstance(error, _NOT_AT_FAULT))
        if request.finish_reason is not FinishReason.STOP and not self.reward.pays_unfinished:
            result = replace(result, value=0.0)
        return result

    def close(self) -> None:
        """Ends the threads and releases what the reward holds."""
        self._threads.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self.reward.close()

    async def _call(self, request: ScoreRequest) -> Any:
        try:
            if inspect.iscoroutinefunction(self.reward.score):
                return await self._in_loop(self.reward.score(request))
            result = await self._threads.run(lambda: self.reward.score(request), self.timeout_s, self._limit)
            return await self._in_loop(result) if inspect.isawaitable(result) else result
        except _LoopBlockedError:
            return await self._call_alone(request)

    async def _call_alone(self, request: ScoreRequest) -> Any:
        """Once more, in a thread and an event loop that no other call shares."""

        async def limited() -> Any:
            result = self.reward.score(request)
            return await self._limited(result) if inspect.isawaitable(result) else result

        late = f"{self._limit}: the coroutine blocks its event loop"
        return await self._threads.run(lambda: asyncio.run(limited()), self.timeout_s + _GRACE_S, late)

    async def _in_loop(self, awaitable: Any) -> Any:
        """Awaits in the rewards' event loop."""
        with self._start_loop:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="reward-loop", daemon=True).start()
            loop = self._loop
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._limited(awaitable), loop))
        done, _ = await asyncio.wait({future}, timeout=self.timeout_s + _GRACE_S)
        if done:
            return future.result()
        with self._start_loop:
            if self._loop is loop:
                self._loop = None  # something blocks it: the next call has a new one
                self._threads.note_stuck()
        raise _LoopBlockedError

    async def _limited(self, awaitable: Any) -> Any:
        task = asyncio.ensure_future(awaitable)
        done, _ = await asyncio.wait({task}, timeout=self.timeout_s)
        if done:
            return task.result()
        task.cancel()
        raise TimeoutError(self._limit)


def _checked(result: Any) -> RewardResult:
    if not isinstance(result, RewardResult):
        raise TypeError(
            f"score returned {type(result).__name__}, expected a RewardResult "
            f"({RewardResult.__module__}:RewardResult)"
        )
    if not isinstance(result.info, Mapping):
        raise TypeError(
            f"the result's info is {type(result.info).__name__}, expected a mapping, as in "
            'RewardResult(1.0, {"answer": "42"})'
        )
    check_plain(dict(result.info), "the result's info")
    if not math.isfinite(result.value):
        raise ValueError(f"the reward is {result.value}, expected a finite number")
    return replace(result, value=float(result.value))


_STUCK = "which still hold their threads: no thread is left to score with"


@dataclass(slots=True)
class _Result:
    value: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Call:
    function: Callable[[], Any]
    started: Future[None] = field(default_factory=Future)
    result: Future[_Result] = field(default_factory=Future)
    given_up: bool = False


class _Threads:
    """At most `count` daemon threads, of which each does one call at a time. (Those of a `ThreadPoolExecutor`
    would be waited for when the process ends.)

    Args:
        count: threads, and calls that may be given up.
        stuck_message: what is raised when that many are; `{}` is their number.
    """

    def __init__(self, count: int, stuck_message: str) -> None:
        self._count, self._stuck_message = count, stuck_message
        self._change = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._threads = self._idle = self._stuck = 0
        self._closed = False

    async def run(self, function: Callable[[], Any], limit_s: float, late: str) -> Any:
        """Runs the function in a thread and returns its result.

        Raises:
            TimeoutError: it took longer than the limit, which begins when a thread takes it up; the message
                is `late`.
            RewardUnavailableError: all threads are held by calls that overran theirs.
        """
        call = _Call(function)
        with self._change:
            if self._stuck >= self._count:
                raise self._error()
            self._waiting.append(call)
            self._serve()
        await asyncio.wrap_future(call.started)
        future = asyncio.wrap_future(call.result)
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if not done and self._give_up(call):
            raise TimeoutError(late)
        result = await future
        if result.error is not None:
            raise result.error
        return result.value

    def note_stuck(self) -> None:
        """Counts a thread that other code lost."""
        with self._change:
            self._lose_one()

    def close(self) -> None:
        """Ends the threads that wait for work."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _serve(self) -> None:
        if len(self._waiting) > self._idle and self._threads < self._count:
            self._threads += 1
            threading.Thread(target=self._work, name="reward", daemon=True).start()
        self._change.notify()

    def _give_up(self, call: _Call) -> bool:
        """Gives up the call's thread; returns False if its result has come in the meantime."""
        with self._change:
            if call.result.done():
                return False
            call.given_up = True
            self._threads -= 1
            self._lose_one()
            self._serve()
            return True

    def _lose_one(self) -> None:
        self._stuck += 1
        if self._stuck >= self._count:
            while self._waiting:
                self._waiting.popleft().started.set_exception(self._error())

    def _error(self) -> RewardUnavailableError:
        return RewardUnavailableError(self._stuck_message.format(self._stuck))

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._waiting:
                    if self._closed:
                        return
                    self._idle += 1
                    self._change.wait()
                    self._idle -= 1
                call = self._waiting.popleft()
            if not call.started.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            call.started.set_result(None)
            result = _attempt(call.function)
            with self._change:
                if call.given_up:
                    self._stuck -= 1
                    return
                call.result.set_result(result)


def _attempt(function: Callable[[], Any]) -> _Result:
    try:
        return _Result(function())
    except Exception as error:
        return _Result(error=error)
    except BaseException as error:  # sys.exit in a reward must not end its thread without a word
        return _Result(error=RuntimeError(f"{type(error).__name__}: {error}"))
