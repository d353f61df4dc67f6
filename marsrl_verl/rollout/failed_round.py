"""A failed request is data; many without one answer are a broken engine, endpoint or workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from marsrl_verl.core.failures import FailedShares, Failures
from marsrl_verl.core.sanitize import printable
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.rollout.generation import EngineUnavailableError

LEAST_REQUESTS = 8
"""Fewer failed requests in a row than these may be their own fault; they add up over rounds."""


class WorkflowFailedError(RuntimeError):
    """A workflow fails on every request: the run cannot go on."""


class RequestWatch:
    """Checks the results of engine, frozen policies and workflows in every round, each by itself.
    `max_failed_frac` returns a frozen policy's `marsrl.policies.<name>.endpoint.max_failed_frac`."""

    def __init__(self, max_failed_frac: Callable[[str], float] = lambda policy: 1.0) -> None:
        self._failed_in_a_row: dict[str, int] = {}
        self._shares = FailedShares(max_failed_frac)

    def look(
        self,
        trajectories: Iterable[Trajectory],
        workflows: Mapping[str, str] | None = None,
        policies: Mapping[str, str] | None = None,
        *,
        round_ended: bool = True,
    ) -> None:
        """Looks at one round, or a part of one; workflows and policies are its groups', by group id. A prompt
        that was never sent and messages that the chat template rejects say nothing about the source of the
        answers, and an engine's failure nothing about a workflow.

        Raises:
            EngineUnavailableError: the last `LEAST_REQUESTS` or more requests of the engine or of a
                frozen policy all failed, those of this round among them; or more than `max_failed_frac` of a
                frozen policy's, in two or more rounds running.
            WorkflowFailedError: those of a workflow did.
        """
        finished, workflows, policies = list(trajectories), workflows or {}, policies or {}
        by_source: dict[str, list[Trajectory]] = {}
        for one in finished:
            if one.finish is not FinishReason.PROMPT_TOO_LONG and one.failed_by is None:
                name = policies.get(one.group_id, "?")
                frozen = f"the frozen policy {name} (marsrl.policies.{name})"
                source = frozen if one.external else "the engine"
                by_source.setdefault(source, []).append(one)
        for source, sent in by_source.items():
            if broken := self._broken(source, sent, [one for one in sent if one.finish.failed]):
                raise EngineUnavailableError(broken)
            if sent[0].external:
                self._shares.add(policies.get(sent[0].group_id, "?"), _failures(sent))
        over_the_limit = self._shares.end_round() if round_ended else ()
        for policy, over in over_the_limit:
            key = f"marsrl.policies.{policy}.endpoint.max_failed_frac"
            raise EngineUnavailableError(
                f"{over.failed} of {over.asked} requests of the frozen policy {policy} failed in its last "
                f"{over.rounds} rounds, in each of them more than {key} = {self._shares.limit(policy):g} of "
                f"its requests: check the endpoint, or raise that limit. The first error: "
                f"{over.first_error}"
            )
        for name in sorted(set(workflows.values())):
            some = [one for one in finished if workflows.get(one.group_id) == name]
            failed = [one for one in some if one.failed_by == name]
            ran = [one for one in some if one.failed_by == name or not one.finish.failed]
            if broken := self._broken(f"the workflow {name}", ran, failed):
                raise WorkflowFailedError(broken)

    def _broken(self, source: str, sent: list[Trajectory], failed: list[Trajectory]) -> str | None:
        """Describes the fault of a source that fails on every request; None if it has none."""
        if len(failed) < len(sent):
            self._failed_in_a_row[source] = 0
        elif failed:
            count = self._failed_in_a_row.get(source, 0) + len({_request(one) for one in failed})
            self._failed_in_a_row[source] = count
            if count >= LEAST_REQUESTS:
                return (
                    f"all of the last {count} requests of {source} failed, the first of this round: "
                    f"{printable(failed[0].detail)}"
                )
        return None


def _failures(sent: Iterable[Trajectory]) -> Failures:
    found = Failures()
    for one in sent:
        found.add(one.group_id, (one.detail or one.finish.value) if one.finish.failed else None)
    return found


def _request(one: Trajectory) -> str:
    """The engine answers a group with one request, a frozen policy each trajectory with its own."""
    return one.trajectory_id if one.external and one.failed_by is None else one.group_id
