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
