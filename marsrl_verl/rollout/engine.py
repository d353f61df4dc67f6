"""Whoever answers rollout requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.rollout.runner import RolloutRunner


class RolloutEngine(Protocol):
    """Answers requests one by one, each as soon as it is there: rollout workers behind Ray, or a runner in
    this process."""

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """Begins every request, or continues what is paused of it; others may still be at work.

        Args:
            requests: any.
            sampling: settings by role, where a request has none of its own.
        """

    def outputs(self) -> list[RolloutOutput]:
        """Waits until at least one request is answered; returns what was answered since the last call, in any
        order, with what ended scored. Empty where nothing was left to answer."""


class LocalEngine:
    """Implements `RolloutEngine` in this process, for clients without servers: it sends all that waits."""

    def __init__(self, runner: RolloutRunner) -> None:
        self.runner = runner
        self._waiting: list[RolloutRequest] = []
        self._sampling: Mapping[str, Sampling] = {}

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """Puts requests into the next round; a round has the sampling settings of its last ones."""
        self._waiting += requests
        self._sampling = sampling

    def outputs(self) -> list[RolloutOutput]:
        """Has everything answered that waits."""
        waiting, self._waiting = self._waiting, []
        return self.generate(waiting, self._sampling) if waiting else []

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """One round of requests; the outputs in their order."""
        outputs: list[RolloutOutput] = []

        async def run() -> None:
            # Nothing is returned: of a task that has ended `asyncio.run` spells out what it returned.
            outputs.extend(await asyncio.gather(*[self.runner.run(one, sampling) for one in requests]))

        asyncio.run(run())
        return outputs
