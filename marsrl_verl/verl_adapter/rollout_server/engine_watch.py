"""Signs of life of the engines, and limits on how long the trainer waits for them.

Upstream behaviour: verl waits for its engines without a limit. A weight sync with an engine whose core has
died or was stopped never returns (the trainer's rank waits at a ZeroMQ socket), nor does a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.rollout_server.dead_process import dead_process, running_process

T = TypeVar("T")

POLL_S = 1.0
"""Seconds between two looks at what is waited for."""
PULSE_EVERY_S = 5.0
"""Seconds from a server's answer to the next question."""
_MAX_COUNTED_S = 5 * POLL_S
_GATHER_S = 0.01
"""Seconds in which further results are taken along with the first: a look takes longer, the more references
there are."""


class Stopwatch:
    """Seconds since the last `reset`, without those in which this process was itself stopped: between two
    looks, a few seconds count at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begins at 0."""
        self._seconds, self._looked = 0.0, self._clock()

    def look(self) -> float:
        """The seconds so far."""
        now = self._clock()
        self._seconds += min(now - self._looked, _MAX_COUNTED_S)
        self._looked = now
        return self._seconds


class Inquiry:
    """One question to an actor, asked again a while after each answer; `ask` returns its Ray reference."""

    def __init__(self, ask: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._watch = Stopwatch(clock)
        self.pending: Any = None
        """Reference of the answer that is waited for."""
        self.answer: Any = None
        """The last answer."""
        self.answers = 0

    def begin(self) -> None:
        """Forgets the pending question."""
        self.pending, self.answers = None, 0

    def look(self, *arguments: Any) -> float:
        """Takes an answer that is there, or asks if it is time; returns at once the seconds for which a
        question has been waiting, 0 without one. RayError: the question or the actor failed."""
        if self.pending is None:
            if not self.answers or self._watch.look() >= PULSE_EVERY_S:
                self._watch.reset()
                self.pending = self._ask(*arguments)
            return 0.0
        waited = self._watch.look()
        ready, _ = ray.wait([self.pending], timeout=0)
        if not ready:
            return waited
        self.answer, self.pending = ray.get(self.pending), None
        self.answers += 1
        self._watch.reset()
        return 0.0


def answer_within(seconds: float, reference: Any) -> Any:
    """An actor's answer; None if it does not come in time. RayError: the call failed."""
    ready, _ = ray.wait([reference], timeout=seconds)
    return ray.get(reference) if ready else None


class EngineWatch:
    """Asks vLLM servers for signs of life (`MarsRLvLLMServer.pulse`), which must come within `limit_s`."""

    def __init__(
        self, servers: Sequence[Any], limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.servers = tuple(servers)
        self._limit_s = limit_s
        self._inquiries = [Inquiry(server.pulse.remote, clock) for server in servers]

    def begin(self) -> None:
        """Forgets earlier questions."""
        for inquiry in self._inquiries:
            inquiry.begin()

    def look(self, through_core: bool = True) -> tuple[Any, ...]:
        """Takes the answers that are there, and asks anew a while after each; returns at once the servers'
        last answers, about the progress of their requests. EngineUnavailableError: an engine is dead, or has
        not answered in time. `through_core`: its core must answer, as it does between two of its steps, but
        not while it receives weights; else the server alone tells whether it has died."""
        for number, inquiry in enumerate(self._inquiries):
            try:
                waited = inquiry.look(through_core)
            except RayError as error:
                raise EngineUnavailableError(f"vLLM server {number} is gone: {reason(error)}") from error
            if waited >= self._limit_s:
                raise EngineUnavailableError(
                    f"vLLM server {number} has shown no sign of life for {waited:.0f} s "
                    f"(marsrl.run.engine_timeout_s = {self._limit_s:g}): it hangs, or was stopped"
                    f"{running_process(self.servers[number])}"
                )
        return tuple(inquiry.answer for inquiry in self._inquiries)

    def check(self) -> None:
        """Returns when every engine has answered; EngineUnavailableError: one is dead, or has not in time."""
        self.begin()
        while True:
            self.look()
            if silent := [inquiry.pending for inquiry in self._inquiries if not inquiry.answers]:
                ray.wait(silent, num_returns=len(silent), timeout=POLL_S)
            else:
                return

    def kill(self) -> None:
        """Ends the servers with their engines, which are of no use any more."""
        for server in self.servers:
            ray.kill(server)


def is_refusal(error: RayError) -> bool:
    """True if a call reached its actor and was rejected there. All other errors, Ray's and those of an actor
    about its engine or another actor, mean the end of a process."""
    ends = (EngineUnavailableError, RayActorError)
    return isinstance(error, RayTaskError) and not isinstance(origin(error), ends)


def origin(error: BaseException) -> BaseException:
    """The original exception of an error that came through Ray's actors, as its own process raised it."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def reason(error: BaseException) -> str:
    """An error's message in one line; for a process that has died, its name and the place of its log."""
    cause = origin(error)
    if isinstance(cause, RayActorError):
        return dead_process(cause)
    lines = str(cause).strip().splitlines() or [""]
    if isinstance(cause, EngineUnavailableError):
        return lines[0]
    return f"{type(cause).__name__}: {lines[0]}".removesuffix(": ")


@dataclass(slots=True)
class EngineGuard:
    """Runs the trainer's work with its engines, never without a limit."""

    watch: EngineWatch
    sync_s: float
    """Seconds for a weight sync, or for the engines to fall asleep."""
    left_behind: bool = False
    """If true, work was given up that the trainer's processes may still be doing."""

    def run(self, what: str, work: Callable[[], T]) -> T:
        """Does `work`, which waits for the engines, when all of them have shown a sign of life;
        EngineUnavailableError: one is dead, or the work (`what`, in words for the message) took longer than
        `sync_s`. It is done in a thread, which is left behind then: the run must end."""
        self.watch.check()
        self.watch.begin()
        over = threading.Event()

        def work_and_tell() -> T:
            try:
                return work()
            finally:
                over.set()

        try:
            return within(
                self.sync_s,
                f"{what} has taken longer than marsrl.run.sync_timeout_s = {self.sync_s:g} s",
                work_and_tell,
                look=lambda: self.watch.look(through_core=False),
            )
        finally:
            self.left_behind = not over.is_set()


def within(
    seconds: float, too_late: str, work: Callable[[], T], look: Callable[[], object] = lambda: None
) -> T:
    """The result of `work`, done in a thread. What `look` raises, called now and then, ends the wait;
    EngineUnavailableError(`too_late`): it has not ended in time, and its thread goes on."""
    outcome: Future[T] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=do, name="waits for the engines", daemon=True).start()
    watch = Stopwatch()
    while not wait([outcome], POLL_S).done:
        if watch.look() >= seconds:
            raise EngineUnavailableError(too_late)
        look()
    return outcome.result()


def results(references: Sequence[Any], look: Callable[[], object], *, heeds_stop: bool = True) -> list[Any]:
    """Results of the references, in their order; raises as `next_results`, within a second. `heeds_stop`: a
    signal to end interrupts the wait."""
    found: dict[Any, Any] = {}
    pending = list(references)
    while pending:
        if heeds_stop:
            stop_signals.check()
        ready, pending = ray.wait(pending, num_returns=len(pending), timeout=POLL_S)
        found |= zip(ready, _values(ready), strict=True)
        if pending:
            look()
    return [found[reference] for reference in references]


def next_results(references: Sequence[Any], look: Callable[[], object]) -> list[tuple[Any, Any]]:
    """The references that are ready, with their results, as soon as there are any; the first error of any of
    them is raised at once, an engine's as EngineUnavailableError. `look` is called every second until then;
    an error of it ends the wait, and so does StopRequested: the run is told to end."""
    while True:
        stop_signals.check()
        ready, _ = ray.wait(list(references), num_returns=1, timeout=POLL_S)
        if ready:
            ready, _ = ray.wait(list(references), num_returns=len(references), timeout=_GATHER_S)
            return list(zip(ready, _values(ready), strict=True))
        look()


def _values(references: list[Any]) -> list[Any]:
    try:
        return ray.get(references)
    except RayTaskError as error:
        if is_refusal(error):
            raise
        raise EngineUnavailableError(reason(error)) from error
