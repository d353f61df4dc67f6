"""Runs of a system for many clients at a time: room, cancellation, engines that die."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.evaluation.runs import Call, Evaluation, Run, drive_one
from marsrl_verl.evaluation.suite import GREEDILY, drawn
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.serving.config import ServeConfig
from marsrl_verl.serving.metrics import ServiceMetrics
from marsrl_verl.serving.protocol import ChatRequest, told
from marsrl_verl.settings.evaluation import EvaluationConfig

Answers = Callable[[RolloutRequest, Mapping[str, Sampling]], Awaitable[RolloutOutput]]
"""Answers one request; cancelled, has the engine abort it. EngineUnavailableError: the engine is gone."""

Tell = Callable[[Mapping[str, Any]], None]
"""Receives what a run does: `{"event": "begins", "stage", "role"}`, and of what has ended what the trail has
(`"event": "ends"`)."""

_LONGEST_RETRY_S = 60
"""The official client takes no longer advice."""


class BusyError(RuntimeError):
    """There is no room for another request; `retry_s`: when there may be."""

    def __init__(self, retry_s: int) -> None:
        super().__init__("there is no room for another request, neither running nor waiting")
        self.retry_s = retry_s


class UnavailableError(RuntimeError):
    """The engines are gone; they may come back. Clients learn no more: the reason names this machine."""

    def __init__(self) -> None:
        super().__init__("the engines are gone; unless that happens again and again, they are started anew")


@dataclass(frozen=True, slots=True)
class ServedSystem:
    """The served system, and the sampling settings where a client gives none."""

    name: str
    evaluation: Evaluation
    sampling: Mapping[str, Sampling]
    """Sampling settings by role."""
    settings: EvaluationConfig

    def for_request(self, asked: ChatRequest) -> tuple[Evaluation, dict[str, Sampling]]:
        """The program and the tokens of a run, as an evaluation has them: at temperature 0 the greedy ones.
        A client's limit is one of each response."""
        ours = self.settings.temperature if self.settings.samples_per_problem else 0.0
        temperature = ours if asked.temperature is None else asked.temperature
        own: dict[str, Any] = {"repetition_penalty": self.settings.repetition_penalty}
        if temperature == 0:
            evaluation, own = self.evaluation.greedy(), own | dict(GREEDILY)
        else:
            top_p = self.settings.top_p if asked.top_p is None else asked.top_p
            own |= {"temperature": temperature} | ({} if top_p is None else {"top_p": top_p})
            evaluation = self.evaluation
        found = drawn(self.sampling, **own)
        most = {
            role: min(one.max_new_tokens, asked.response_tokens or sys.maxsize) for role, one in found.items()
        }
        return evaluation, {
            role: replace(one, seed=asked.seed, max_new_tokens=most[role]) for role, one in found.items()
        }


@dataclass(eq=False)
class Service:
    """Runs the system for clients; lives in one event loop."""

    system: ServedSystem
    answers: Answers
    settings: ServeConfig
    engine_failed: Callable[[EngineUnavailableError], None] = lambda error: None
    """Called once when a request finds the engines gone; `take_up` ends that."""
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    down: str | None = None
    """Why nothing is answered; None: all is well."""

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.settings.max_running)
        self._tasks: set[asyncio.Task[Run]] = set()
        self._numbers, self._own = itertools.count(1), uuid.uuid4().hex[:8]
        self._seeded: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._mean_s = 1.0
        """Running mean of the seconds of a run."""
        self.ended = 0
        """Runs that ended by themselves."""

    def begin(
        self, asked: ChatRequest, tell: Tell = lambda event: None, *, name: str = ""
    ) -> asyncio.Task[Run]:
        """Returns a run that has begun, or waits for room; cancelled, it aborts its requests and sends no
        more. It ends with UnavailableError where the engines are gone, and with RunFailedError.

        Raises:
            BusyError: there is no room.
            UnavailableError: the engines are gone.
            ValueError: there is no problem in the chat.
        """
        if self.down is not None:
            raise UnavailableError
        problem, most = asked.problem(), self.settings.max_running + self.settings.max_waiting
        if len(self._tasks) >= most:
            raise BusyError(self._retry_s())
        task = asyncio.ensure_future(self._run(asked, problem, tell, name or self.new_name()))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def new_name(self) -> str:
        """A name for a run."""
        return f"{self._own}-{next(self._numbers)}"

    async def _run(self, asked: ChatRequest, problem: Problem, tell: Tell, name: str) -> Run:
        try:
            return await self._alone(asked, problem, tell, name)
        except EngineUnavailableError as error:
            self.give_up(error)
            raise UnavailableError from error
        except asyncio.CancelledError:
            if self.down is not None:
                raise UnavailableError from None
            raise

    async def _alone(self, asked: ChatRequest, problem: Problem, tell: Tell, name: str) -> Run:
        """The tokens of a seed follow from the names of requests, and at any time these are unique: the same
        problem with the same seed is answered after the other."""
        if asked.seed is None:
            return await self._in_room(asked, problem, tell, name)
        name = f"{asked.seed}-{problem.problem_id}"
        lock = self._seeded.setdefault(name, asyncio.Lock())
        with self.metrics.waits():
            await lock.acquire()
        try:
            return await self._in_room(asked, problem, tell, name)
        finally:
            lock.release()

    async def _in_room(self, asked: ChatRequest, problem: Problem, tell: Tell, name: str) -> Run:
        with self.metrics.waits():
            await self._room.acquire()
        try:
            return await self._timed(asked, problem, tell, name)
        finally:
            self._room.release()

    async def _timed(self, asked: ChatRequest, problem: Problem, tell: Tell, name: str) -> Run:
        evaluation, sampling = self.system.for_request(asked)
        run = evaluation.begin(problem, 0, f"chat-{name}", 0)

        async def answer(request: RolloutRequest) -> RolloutOutput:
            tell({"event": "begins", "stage": request.stage, "role": request.role})
            output = await self.answers(request, sampling)
            for one in output.trajectories:
                call = Call(request, one)
                self.metrics.note_call(call)
                tell({"event": "ends", **told(call, evaluation)})
            return output

        with self.metrics.runs() as watch:
            await drive_one(evaluation, run, answer)
        self._mean_s += 0.1 * (watch.seconds - self._mean_s)
        return run

    def _ended(self, task: asyncio.Task[Run]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is None:
            self.ended += 1
            self.metrics.note_end(task.result())

    def _retry_s(self) -> int:
        return min(max(math.ceil(self._mean_s), 1), _LONGEST_RETRY_S)

    def give_up(self, error: EngineUnavailableError) -> None:
        """Ends all runs, and rejects others until `take_up`."""
        if self.down is None:
            self.down = str(error)
            self.metrics.engines_up(False)
            for task in self._tasks:
                task.cancel()
            self.engine_failed(error)

    def take_up(self, answers: Answers) -> None:
        """Goes on with what answers now."""
        self.answers, self.down = answers, None
        self.metrics.engines_up(True)
