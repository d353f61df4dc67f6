"""Whoever answers rollout requests, as the scheduler's user sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RolloutOutput


class Engine(Protocol):
    """Anything that can answer rollout requests: vLLM behind Ray, or a scripted engine in tests."""

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Begin every request, or continue what is paused of it, and score what ended.

        Args:
            requests: of one generation round.
            sampling: settings by role, where a request has none of its own.

        Returns:
            An output for each request, in any order. Trajectories that ended are scored.
        """
        ...


class StreamingEngine(Protocol):
    """An engine whose answers come one by one, each as soon as it is there."""

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """Begin every request, beside those that are being answered; arguments as in `Engine.generate`."""
        ...

    def outputs(self) -> list[RolloutOutput]:
        """Wait until at least one request is answered; returns what was answered since the last call, in any
        order. Empty where nothing was left to answer."""
        ...


class Rounds:
    """A `StreamingEngine` on an `Engine` that answers whole rounds: what waits is sent together.

    Args:
        engine: answers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[RolloutRequest] = []
        self._sampling: Mapping[str, Sampling] = {}

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """Put requests into the next round; a round has the sampling settings of its last ones."""
        self._waiting += requests
        self._sampling = sampling

    def outputs(self) -> list[RolloutOutput]:
        """Have everything answered that waits."""
        waiting, self._waiting = self._waiting, []
        return self._engine.generate(waiting, self._sampling) if waiting else []


def streaming(engine: Engine | StreamingEngine) -> StreamingEngine:
    """The engine itself if it answers requests one by one, else in rounds."""
    return engine if hasattr(engine, "submit") else Rounds(engine)  # type: ignore[return-value, arg-type]
