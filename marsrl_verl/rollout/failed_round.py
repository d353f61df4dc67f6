"""A failed request is data; many without one answer are a broken engine, or a broken external Solver."""

from __future__ import annotations

from collections.abc import Iterable

from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.rollout.generation import EngineUnavailableError

LEAST_REQUESTS = 8
"""Fewer failed requests in a row than these may be their own fault; they add up over rounds."""


class RequestWatch:
    """Looks at what the engine and the external Solver answered in every round, each by itself."""

    def __init__(self) -> None:
        self._failed_in_a_row: dict[bool, int] = {}

    def look(self, trajectories: Iterable[Trajectory]) -> None:
        """Look at one round. A prompt that was never sent (too long, or refused by the chat template) says
        nothing about who would have answered it.

        Raises:
            EngineUnavailableError: the last `LEAST_REQUESTS` or more requests of one of the two all failed,
                those of this round among them.
        """
        by_source: dict[bool, list[Trajectory]] = {}
        for one in trajectories:
            if _was_sent(one):
                by_source.setdefault(one.external, []).append(one)
        for external, some in by_source.items():
            if not all(one.finish.failed for one in some):
                self._failed_in_a_row[external] = 0
                continue
            failed = self._failed_in_a_row.get(external, 0) + len({_request(one) for one in some})
            self._failed_in_a_row[external] = failed
            if failed >= LEAST_REQUESTS:
                whose = " of the external Solver (marsrl.external_solver)" if external else " of the engine"
                raise EngineUnavailableError(
                    f"all of the last {failed} requests{whose} failed, the first of this round: "
                    f"{printable(some[0].detail)}"
                )


def _was_sent(one: Trajectory) -> bool:
    """Whether a request was made of it. An external Solver's trajectories have no prompt of ours."""
    if one.finish is FinishReason.PROMPT_TOO_LONG:
        return False
    return one.external or any(len(sequence.prompt_ids) for sequence in one.sequences)


def _request(one: Trajectory) -> str:
    """The engine answers a group with one request, an external Solver each trajectory with its own."""
    return one.trajectory_id if one.external else one.group_id
