"""Generation rounds on the engine: one after another, or one in the background of a training step.

With `overlap: one_step` the round of step k+1 is started before step k trains and is collected after it, so
its tokens come from the weights before update k. No request may be in flight while weights are
synchronised; `Generation.in_flight` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.types import Sample, SamplingSettings, StageInput


@dataclass(slots=True)
class Round:
    """What one generation round brought back."""

    samples: list[Sample]
    seconds: float
    """From the start of the round to the end of its last group."""


class StartedRound(Protocol):
    """A round that the engine is working on."""

    def wait(self) -> Round:
        """Return when all of its groups are answered and scored."""
        ...


class RoundEngine(Protocol):
    """An engine that can be asked without waiting for it."""

    def start(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> StartedRound:
        """Begin to answer `inputs`; as `Engine.generate` otherwise."""
        ...


@dataclass(slots=True)
class RoundCounts:
    """The generation rounds of one training step in numbers."""

    rounds: int = 0
    samples: int = 0
    tokens: int = 0
    """Tokens that these rounds added."""
    continued_tokens: int = 0
    """Tokens of prompts and responses so far that the engine was given to continue."""
    seconds: float = 0.0
    """The rounds' own time, hidden behind training or not."""


class Generation:
    """Hands the scheduler's rounds to the engine and its samples back.

    Args:
        scheduler: the pools; a training step of it must be open.
        engine: answers the inputs.
        sampling: settings by role.
        before_round: called when the engine is about to be asked.
        after_round: called when a round's samples are with the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: RoundEngine,
        sampling: dict[str, SamplingSettings],
        *,
        before_round: Callable[[], None] = lambda: None,
        after_round: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_round, self._after_round = before_round, after_round
        self._scheduler = scheduler
        self._engine = engine
        self._sampling = sampling
        self._started: StartedRound | None = None
        self._counts = RoundCounts()

    @property
    def in_flight(self) -> bool:
        """Whether a round was started and not collected."""
        return self._started is not None

    def start_round(self) -> bool:
        """Start the step's next round without waiting for it; False when the step needs none."""
        if self._started is not None:
            raise RuntimeError("a generation round is in flight; collect it before starting another")
        inputs = self._scheduler.next_round()
        if inputs:
            self._before_round()
            self._started = self._engine.start(inputs, self._sampling)
            self._counts.continued_tokens += sum(item.continued_tokens for item in inputs)
        return bool(inputs)

    def collect(self) -> None:
        """Wait for the round in flight, if there is one, and give its samples to the scheduler."""
        if self._started is None:
            return
        done = self._started.wait()
        self._started = None
        self._scheduler.absorb(done.samples)
        self._counts.rounds += 1
        self._counts.samples += len(done.samples)
        self._counts.tokens += sum(sample.new_tokens for sample in done.samples)
        self._counts.seconds += done.seconds
        self._after_round()

    def finish(self) -> RoundCounts:
        """Collect what is in flight, run the step's remaining rounds, and return the step's counts."""
        self.collect()
        while self.start_round():
            self.collect()
        counts, self._counts = self._counts, RoundCounts()
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Counts of rounds that were collected ahead of their step. The samples are the scheduler's."""
        if self._started is not None:
            raise RuntimeError("a generation round is in flight; collect it before writing a checkpoint")
        return asdict(self._counts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved counts."""
        self._counts = RoundCounts(**state)
