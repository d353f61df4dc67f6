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
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import RayActorError
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.sent_prompts import prompts_sent, shared_tokens
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.rewards.failed_grades import GradeWatch
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.context import EngineUnavailableError
from marsrl_verl.rollout.failed_round import RequestWatch
from marsrl_verl.verl_adapter.components import endpoint_key
from marsrl_verl.verl_adapter.engine_watch import EngineWatch, reason, results
from marsrl_verl.verl_adapter.generation import Round
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters
from marsrl_verl.verl_adapter.rollout_server.worker import RolloutWorker, WorkerRound
from marsrl_verl.verl_adapter.round_watch import RoundWatch
from marsrl_verl.verl_adapter.scoring import without_tracebacks


@dataclass(slots=True)
class _WorkersRound:
    """A round that the rollout workers are at."""

    shares: list[Any]
    """Ray references to each worker's `WorkerRound`."""
    servers: Sequence[Any] = ()
    """Handles of the servers whose statistics tell what the round read; none: nobody asks."""
    before: PrefillCounters | None = None
    """What they had read when the round began."""
    look: Callable[[], object] = lambda: None
    """Called every second while something is waited for; see `RoundWatch`."""
    roles: dict[str, str] = field(default_factory=dict)
    """Who answers, by group id."""
    grades: GradeWatch = field(default_factory=GradeWatch)
    """What looks at the round's grades."""
    requests: RequestWatch = field(default_factory=RequestWatch)
    """What looks at who answered."""

    def wait(self) -> Round:
        """See `generation.StartedRound`.

        Raises:
            EngineUnavailableError: the engine is gone, or answers nothing any more (see `RequestWatch`).
            RewardUnavailableError: a role's reward fails on everything, or holds all of its threads.
            RoundStalledError: the round does not go on.
            StopRequested: the run is told to end.
        """
        try:
            rounds: list[WorkerRound] = results(self.shares, self.look)
        except RewardUnavailableError as error:
            raise without_tracebacks(error) from None
        outputs = results([reference for one in rounds for reference in one.outputs], self.look)
        trajectories = [one for output in outputs for one in output.trajectories]
        self.requests.look(trajectories)
        self.grades.look((self.roles[one.group_id], one) for one in trajectories)
        seconds = max((one.seconds for one in rounds), default=0.0)
        after = _read(self.servers, self.look)
        if self.before is None or after is None:
            return Round(outputs, seconds)
        return Round(outputs, seconds, after - self.before, shared_tokens(prompts_sent(trajectories)))


def _read(servers: Sequence[Any], look: Callable[[], object]) -> PrefillCounters | None:
    """What all servers have read since they started; None without servers, or without statistics."""
    if not servers:
        return None
    try:
        counted = results([server.prefill_counters.remote() for server in servers], look)
    except RayActorError as error:
        raise EngineUnavailableError(f"a vLLM server is gone: {reason(error)}") from error
    return None if None in counted else sum(counted, PrefillCounters())


def for_the_worker(request: RolloutRequest) -> RolloutRequest:
    """The request without what a program does not need of trajectories that ended in an earlier round: their
    tokens and texts."""
    if request.resume is None:
        return request
    members = [
        one if one.paused else replace(one, sequences=[], text="", final_text="")
        for one in request.resume.trajectories
    ]
    return request.resumed(replace(request.resume, trajectories=members))


class MarsRLAgentLoopManager(AgentLoopManager):
    """Spreads rollout requests over the workers. Implements `marsrl_verl.core.engine.Engine`."""

    _measured_servers: Sequence[Any] = ()
    _engines: EngineWatch | None = None
    _progress_limit_s = math.inf

    @cached_property
    def _grades(self) -> GradeWatch:
        return GradeWatch()

    @cached_property
    def _requests(self) -> RequestWatch:
        return RequestWatch()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(RolloutWorker)
        super().__init__(*args, **kwargs)

    async def _init_agent_loop_workers(self) -> None:
        """verl's workers, each with the key of the external Solver's endpoint."""
        await super()._init_agent_loop_workers()
        key = endpoint_key(self.config)
        if key is not None:
            handed_over = [worker.take_endpoint_key.remote(key) for worker in self.agent_loop_workers]
            await asyncio.gather(*handed_over)

    def measure_prefill(self, servers: Sequence[Any]) -> None:
        """From now on, tell of every started round what these servers read in it.

        Args:
            servers: handles of all `MarsRLvLLMServer`s with an engine.
        """
        self._measured_servers = tuple(servers)

    def watch(self, engines: EngineWatch, progress_limit_s: float) -> None:
        """From now on, end a round whose engines show no sign of life, or in which nothing happens."""
        self._engines, self._progress_limit_s = engines, progress_limit_s

    def start(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> _WorkersRound:
        """Begin a generation round; `wait` on what this returns ends it.

        Raises:
            EngineUnavailableError: a server whose statistics are wanted is gone.
        """
        look = self._watched()
        servers = self._measured_servers
        before = _read(servers, look)
        return self._started(requests, sampling, look, servers, before)

    def _started(
        self,
        requests: list[RolloutRequest],
        sampling: Mapping[str, Sampling],
        look: Callable[[], object],
        servers: Sequence[Any] = (),
        before: PrefillCounters | None = None,
    ) -> _WorkersRound:
        roles = {one.group_id: one.role for one in requests}
        shares = self._share_out([for_the_worker(one) for one in requests], sampling)
        return _WorkersRound(shares, servers, before, look, roles, self._grades, self._requests)

    def _watched(self) -> Callable[[], object]:
        """What looks after a new round."""
        if self._engines is None:
            return lambda: None
        return RoundWatch(self._engines, self.agent_loop_workers, self._progress_limit_s).look

    def _share_out(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> list[Any]:
        workers = self.agent_loop_workers
        shares = [requests[start :: len(workers)] for start in range(len(workers))]
        return [
            worker.run_requests.remote(share, sampling)
            for worker, share in zip(workers, shares, strict=True)
            if share
        ]

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Answer and score all requests in one generation round, whose statistics nobody asks for.

        Raises:
            EngineUnavailableError, RewardUnavailableError, RoundStalledError, StopRequested: as
                `_WorkersRound.wait`.
        """
        return self._started(requests, sampling, self._watched()).wait().outputs

    def forget_routes(self) -> None:
        """Let the next request of an id go to any engine. New weights have emptied the prefix caches, for
        which a continuation goes where its beginning was, and unfinished groups pile up there."""
        ray.get(self.llm_client._load_balancer.clear_sticky_cache.remote())

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Refused: what this trainer asks for are rollout requests."""
        raise TypeError(
            "MarsRLAgentLoopManager answers rollout requests (call generate); verl's own trainer, which "
            "calls generate_sequences, needs verl's AgentLoopManager"
        )
