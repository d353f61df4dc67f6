"""Watches a generation round: it may take hours, but something of it must happen all the time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from marsrl_verl.reporting.progress import RoundState
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.failed_round import WorkflowFailedError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server.dead_process import running_process
from marsrl_verl.verl_adapter.rollout_server.engine_watch import (
    PULSE_EVERY_S,
    EngineWatch,
    Inquiry,
    Stopwatch,
    answer_within,
)


class RoundStalledError(RuntimeError):
    """A generation round does not go on; the message says what it waits for."""


SAVABLE_ERRORS = (EngineUnavailableError, RoundStalledError, RewardUnavailableError, WorkflowFailedError)
"""Errors of generation that end the run. They leave the trainer's state sound, so it can still be saved;
their messages are made for users."""


@dataclass(slots=True)
class GroupCounts:
    """Progress of the groups of rollout workers, since these started."""

    submitted: int = 0
    answered: int = 0
    scored: int = 0
    graded: int = 0
    """Responses that are scored, including those of groups that are not yet whole."""
    tokens: int = 0
    """Tokens sampled, in answers of the engines."""
    round: int = field(default=-1, compare=False)
    """Number of the last round; `before` has the counts when it began: submitted, scored, tokens."""
    before: tuple[int, int, int] = field(default=(0, 0, 0), compare=False)
    stages: dict[str, int] = field(default_factory=dict, compare=False)
    """Groups in progress, by stage."""
    oldest: tuple[str, float] | None = field(default=None, compare=False)
    """The group that has been in progress for longest, and its seconds."""

    def begin_round(self, number: int) -> None:
        """Notes the counts so far as those before round `number`, when it begins."""
        if number != self.round:
            self.round, self.before = number, (self.submitted, self.scored, self.tokens)


class RoundWatch:
    """Looks after one round, in which a token, an answer or a score must come within `limit_s` seconds from
    the servers that answer it or the workers that are at it (`RolloutWorker.counts`).

    Args:
        engines: signs of life of the servers.
        workers: the actors.
        limit_s: seconds without progress.
        clock: seconds, monotonic.
        show: takes the state at every look.
        number: of the round (`RoundId`); counts of another one are not shown.
    """

    def __init__(
        self,
        engines: EngineWatch,
        workers: Sequence[Any],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[RoundState], None] = lambda state: None,
        *,
        number: int,
    ) -> None:
        self._show, self._clock, self._began, self._number = show, clock, clock(), number
        self._engines = engines
        self._engines.begin()
        self._workers = tuple(workers)
        self._inquiries = [Inquiry(worker.counts.remote, clock) for worker in workers]
        self._limit_s = limit_s
        self._still = Stopwatch(clock)
        self._seen: Any = None

    def look(self) -> None:
        """Called every second; raises as `EngineWatch.look`, and RoundStalledError if nothing happens."""
        tokens = self._engines.look()
        waited = [inquiry.look() for inquiry in self._inquiries]
        counts = [inquiry.answer for inquiry in self._inquiries if inquiry.answer is not None]
        self._show(self._state(tokens, counts))
        if (seen := (tokens, counts)) != self._seen:
            self._seen = seen
            self._still.reset()
        elif self._still.look() >= self._limit_s:
            unanswered = sum(one.submitted - one.answered for one in counts)
            unscored = sum(one.answered - one.scored for one in counts)
            blocked = [number for number, seconds in enumerate(waited) if seconds >= self._limit_s / 2]
            raise RoundStalledError(
                f"no token, no answer and no score has come for marsrl.run.progress_timeout_s = "
                f"{self._limit_s:g} s; groups of this generation round that wait for their answers: "
                f"{unanswered}, for their scores: {unscored}{self._longest(counts)}"
                f"{''.join(map(self._blocked, blocked))}"
            )

    def _state(self, engines: Sequence[tuple[int, int] | None], counts: Sequence[GroupCounts]) -> RoundState:
        mine = [one for one in counts if one.round == self._number]
        stages: Counter[str] = Counter()
        for one in mine:
            stages.update(one.stages)
        under_way = [one for one in engines if one is not None]
        return RoundState(
            seconds=self._clock() - self._began,
            groups=sum(one.submitted - one.before[0] for one in mine),
            scored=sum(one.scored - one.before[1] for one in mine),
            tokens=sum(one.tokens - one.before[2] for one in mine) + sum(count for _, count in under_way),
            requests=sum(count for count, _ in under_way),
            stages=dict(stages),
            oldest=max((one.oldest for one in mine if one.oldest), key=itemgetter(1), default=None),
        )

    def _longest(self, counts: Sequence[GroupCounts]) -> str:
        """The group that is waited for longest."""
        oldest = self._state((), counts).oldest
        return f"; for longest, {oldest[1]:.0f} s, {oldest[0]}" if oldest else ""

    def _blocked(self, number: int) -> str:
        worker = self._workers[number]
        at = answer_within(PULSE_EVERY_S, worker.running.remote())
        what = "it hangs, or was stopped" if at is None else f"its event loop is blocked by {at}"
        return f"; rollout worker {number} does not answer, {what}{running_process(worker)}"
