"""verl's agent-loop manager, for rollout requests.

Upstream behaviour: `AgentLoopManager.generate_sequences` returns one row per input row, padded to the
configured maximum lengths (with a 32k prompt and a 64k response that is 0.8 MB per column and row). Here
every request comes back as a Ray object of its own, its tokens ragged, and they stay so until the training
batch is built.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.shared_prompts import engine_prompts, shared_tokens
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.reporting.progress import RoundState
from marsrl_verl.rewards.failed_grades import GradeWatch
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.failed_round import RequestWatch
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.settings.declaration import RewardSpec
from marsrl_verl.tools.toolbox import read_all_secrets
from marsrl_verl.verl_adapter.components import endpoint_keys, policy_set
from marsrl_verl.verl_adapter.rollout_server.engine_watch import (
    EngineWatch,
    is_refusal,
    next_results,
    reason,
    results,
)
from marsrl_verl.verl_adapter.rollout_server.generation import Round
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters
from marsrl_verl.verl_adapter.rollout_server.round_watch import RoundWatch
from marsrl_verl.verl_adapter.rollout_server.scoring import without_tracebacks
from marsrl_verl.verl_adapter.rollout_server.worker import WATCH, RequestResult, RolloutWorker, RoundId

MAX_CALLS = 100_000
"""Most calls of a worker at a time: in effect no limit. Ray's own is 1,000."""


@dataclass(slots=True)
class _WorkersRound:
    """A round in progress at the rollout workers."""

    answers: list[Any]
    """Ray references to a `RequestResult` each."""
    check: Callable[[list[RolloutOutput]], None]
    """Raises if the outputs show that the engine or a reward is broken."""
    servers: Sequence[Any] = ()
    """Handles of the servers whose statistics count what the round read; empty: no statistics."""
    before: PrefillCounters | None = None
    """Their counters when the round began."""
    look: Callable[[], object] = lambda: None
    """Called every second while something is waited for; see `RoundWatch`."""

    def wait(self) -> Round:
        """See `generation.StartedRound`. Raises EngineUnavailableError (the engine or a worker is gone, or
        nothing is answered any more, see `RequestWatch`), WorkflowFailedError (a workflow fails on
        everything), RewardUnavailableError (a role's reward does, or holds all of its threads),
        RoundStalledError (the round does not go on), StopRequested (the run is told to end)."""
        try:
            answers: list[RequestResult] = results(self.answers, self.look)
        except RewardUnavailableError as error:
            raise without_tracebacks(error) from None
        except RayActorError as error:
            raise EngineUnavailableError(reason(error)) from error
        outputs = [one.output for one in answers]
        self.check(outputs)
        seconds = max((one.seconds for one in answers), default=0.0)
        after = _read(self.servers, self.look)
        if self.before is None or after is None:
            return Round(outputs, seconds)
        trajectories = [one for output in outputs for one in output.trajectories]
        return Round(outputs, seconds, after - self.before, shared_tokens(engine_prompts(trajectories)))


def _read(servers: Sequence[Any], look: Callable[[], object]) -> PrefillCounters | None:
    """Counters of all servers since they started; None without servers, or without statistics."""
    if not servers:
        return None
    try:
        counted = results([server.prefill_counters.remote() for server in servers], look)
    except RayActorError as error:
        raise EngineUnavailableError(f"a vLLM server is gone: {reason(error)}") from error
    return None if None in counted else sum(counted, PrefillCounters())


class MarsRLAgentLoopManager(AgentLoopManager):
    """Spreads rollout requests over the workers. Implements `RolloutEngine` and `RoundEngine`."""

    _measured_servers: Sequence[Any] = ()
    _engines: EngineWatch | None = None
    _progress_limit_s = math.inf
    _show: Callable[[RoundState], None] = staticmethod(lambda state: None)
    tools: Mapping[str, Any] = MappingProxyType({})
    """Facts about each tool, by name: the first worker's, or those of a worker that warns."""

    _rounds = 0
    _syncs = 0
    _dealt = 0
    """Requests that were submitted so far: workers take turns, however few come at a time."""

    @cached_property
    def _training_grades(self) -> GradeWatch:
        return self._grade_watch()

    @cached_property
    def _evaluation_grades(self) -> GradeWatch:
        """The watch of streamed requests, which are an evaluation's. Held-out rows may be good where training
        rows are not: between training rounds they say nothing of those."""
        return self._grade_watch()

    def _grade_watch(self) -> GradeWatch:
        def reward(role: str) -> RewardSpec:
            return typed_settings(self.config).reward[role]

        return GradeWatch(
            lambda role: reward(role).max_failed_frac, lambda role: reward(role).max_unanswered_frac
        )

    @cached_property
    def _policies(self) -> PolicySet:
        return policy_set(self.config)

    @cached_property
    def _requests(self) -> RequestWatch:
        return RequestWatch(lambda name: typed_settings(self.config).policies[name].endpoint.max_failed_frac)

    @cached_property
    def _streamed(self) -> dict[Any, RolloutRequest]:
        """Requests that are answered one by one, by the Ray references of their answers."""
        return {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(max_concurrency=MAX_CALLS, concurrency_groups={WATCH: 1})(
            RolloutWorker
        )
        super().__init__(*args, **kwargs)

    async def _init_agent_loop_workers(self) -> None:
        """verl's workers, each with the keys of frozen policies' endpoints and with tools that have started;
        ToolUnavailableError: a tool can't start."""
        await super()._init_agent_loop_workers()
        if keys := endpoint_keys(self.config):
            handed_over = [worker.take_endpoint_keys.remote(keys) for worker in self.agent_loop_workers]
            await asyncio.gather(*handed_over)
        if tools := typed_settings(self.config).tools:
            secrets = dict(read_all_secrets(tools))
            starting = [worker.start_tools.remote(secrets) for worker in self.agent_loop_workers]
            try:
                started = await asyncio.gather(*starting)
            except RayTaskError as error:
                raise without_tracebacks(error) from None
            # Nodes differ: the facts of a worker with a warning stand for all.
            self.tools = {
                name: next((one[name] for one in started if one[name].get("warning")), facts)
                for name, facts in started[0].items()
            }

    def measure_prefill(self, servers: Sequence[Any]) -> None:
        """Counts from now on, for every started round, what these servers, all those with an engine, read
        in it."""
        self._measured_servers = tuple(servers)

    def watch(
        self,
        engines: EngineWatch,
        progress_limit_s: float,
        show: Callable[[RoundState], None] = lambda state: None,
    ) -> None:
        """Ends from now on a round whose engines show no sign of life, or in which nothing happens, and
        shows every second how far it is."""
        self._engines, self._progress_limit_s, self._show = engines, progress_limit_s, show

    def start(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> _WorkersRound:
        """Begins a generation round; `wait` on what this returns ends it. EngineUnavailableError: a server
        whose statistics are wanted is gone."""
        self._rounds += 1
        look, servers = self._watched(), self._measured_servers
        before = _read(servers, look)
        answers = self._send_round(requests, sampling)
        return _WorkersRound(answers, self._checker(requests), servers, before, look)

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """See `RolloutEngine`."""
        if not self._streamed:
            self._rounds += 1
            self._look = self._watched()
        round_id, workers = RoundId(self._rounds, self._syncs), self.agent_loop_workers
        for request in requests:
            answer = workers[self._dealt % len(workers)].run_request.remote(request, sampling, round_id)
            self._streamed[answer] = request
            self._dealt += 1

    def outputs(self) -> list[RolloutOutput]:
        """See `RolloutEngine`; raises as `_WorkersRound.wait`."""
        if not self._streamed:
            return []
        try:
            answers = next_results(list(self._streamed), self._look)
        except Exception as error:
            self._streamed.clear()
            if isinstance(error, RayActorError):
                raise EngineUnavailableError(reason(error)) from error
            raise without_tracebacks(error) from None
        requests = [self._streamed.pop(reference) for reference, _ in answers]
        outputs = [answer.output for _, answer in answers]
        self._check(outputs, requests, self._evaluation_grades)
        if self._streamed:
            self._look()
        return outputs

    async def answer(self, request: RolloutRequest, sampling: Mapping[str, Sampling]) -> RolloutOutput:
        """One request, for callers with an event loop, who look after the engines themselves. Cancelled, it
        is given up by its worker, which has the engine abort it.

        Raises:
            EngineUnavailableError: the engine, the worker or a reward worker is gone.
            RewardUnavailableError: a reward has no thread left.
        """
        worker = self.agent_loop_workers[self._dealt % len(self.agent_loop_workers)]
        self._dealt += 1
        reference = worker.run_request.remote(request, sampling, RoundId(self._rounds, self._syncs))
        try:
            answer: RequestResult = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)  # of an asynchronous actor: its task is cancelled, too
            raise
        except RayError as error:
            if is_refusal(error):
                raise without_tracebacks(error) from None
            raise EngineUnavailableError(reason(error)) from error
        return answer.output

    def _send_round(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> list[Any]:
        """References to the answers of a new round, in the order of the requests, which the workers are dealt
        in turn. All of a worker's are one call: a call costs both sides half a millisecond."""
        round_id, workers = RoundId(self._rounds, self._syncs), self.agent_loop_workers
        answers: list[Any] = [None] * len(requests)
        for number, worker in enumerate(workers[: len(requests)]):
            share = requests[number :: len(workers)]
            call = worker.run_requests.options(num_returns=len(share))
            found = call.remote(share, sampling, round_id)
            answers[number :: len(workers)] = [found] if len(share) == 1 else found
        return answers

    def _checker(self, requests: list[RolloutRequest]) -> Callable[[list[RolloutOutput]], None]:
        return lambda outputs: self._check(outputs, requests, self._training_grades)

    def _check(
        self, outputs: list[RolloutOutput], requests: Sequence[RolloutRequest], grades: GradeWatch
    ) -> None:
        trajectories = [one for output in outputs for one in output.trajectories]
        roles = {one.group_id: one.role for one in requests}
        frozen = {one.group_id for one in trajectories if one.external}
        policies = {group_id: self._policies.of(roles[group_id]).name for group_id in frozen}
        workflows, ended = {one.group_id: one.rollout for one in requests}, not self._streamed
        self._requests.look(trajectories, workflows, policies, round_ended=ended)
        grades.look(trajectories, round_ended=ended)

    def _watched(self) -> Callable[[], object]:
        """Looks after the round that begins."""
        if self._engines is None:
            return lambda: None
        workers, limit = self.agent_loop_workers, self._progress_limit_s
        return RoundWatch(self._engines, workers, limit, show=self._show, number=self._rounds).look

    def forget_routes(self) -> None:
        """Lets the next request of an id go to any engine. New weights have emptied the prefix caches, for
        which a continuation goes where its beginning was, and unfinished groups pile up there."""
        self._syncs += 1

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Raises TypeError: this trainer sends rollout requests."""
        raise TypeError(
            "MarsRLAgentLoopManager answers rollout requests (call start or submit); verl's own trainer, "
            "which calls generate_sequences, needs verl's AgentLoopManager"
        )
