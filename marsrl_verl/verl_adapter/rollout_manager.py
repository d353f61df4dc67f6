"""verl's agent-loop manager and worker, for rows that become groups of samples.

Upstream behaviour: `AgentLoopManager.generate_sequences` returns one row per input row, padded to the
configured maximum lengths (with a 32k prompt and a 64k response that is 0.8 MB per column and sample).
Here a row is a stage input, it returns `n` scored samples, and they stay ragged until the training
batch is built.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

from marsrl_verl.core.sent_prompts import prompts_sent, shared_tokens
from marsrl_verl.core.types import SOLVER, FinishReason, Sample, SamplingSettings, StageInput
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.failed_grades import GradeWatch
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.failed_round import RequestWatch
from marsrl_verl.rollout.single_call import EngineUnavailableError, answer
from marsrl_verl.verl_adapter.components import chat_tokenizer, endpoint_key, external_solver
from marsrl_verl.verl_adapter.engine_watch import EngineWatch, reason, results
from marsrl_verl.verl_adapter.generation import Round
from marsrl_verl.verl_adapter.group_client import GroupClient
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters
from marsrl_verl.verl_adapter.round_watch import GroupCounts, RoundWatch
from marsrl_verl.verl_adapter.scoring import GroupScorer, without_tracebacks


class MarsRLAgentLoopWorker(AgentLoopWorker):
    """Answers stage inputs concurrently and has every group scored as soon as it is there."""

    def __init__(
        self,
        config: DictConfig,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: list[Any] | None = None,
    ) -> None:
        super().__init__(config, llm_client, teacher_client, reward_loop_worker_handles)
        self._scorer = GroupScorer(self.reward_loop_worker_handles or ())
        self._client = GroupClient(self.llm_client)
        self._chat = chat_tokenizer(config, self.tokenizer)
        self._external_solver = external_solver(config, self._chat)
        self._done = GroupCounts()

    async def counts(self) -> GroupCounts:
        """What is done since this worker started."""
        self._done.graded = self._scorer.graded
        return self._done

    def take_endpoint_key(self, key: str) -> None:
        """Answer for the Solver with this key of its endpoint from now on.

        A call and no argument of the constructor: Ray keeps those in its global control store.
        """
        self._external_solver = external_solver(self.config, self._chat, key)

    async def generate_samples(
        self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]
    ) -> Round:
        """Answer every input and score what ended; samples in the order of `inputs`."""
        started = time.monotonic()
        groups = await asyncio.gather(*[self._answer_and_score(one, sampling[one.role]) for one in inputs])
        samples = [sample for group in groups for sample in group]
        return Round(samples, time.monotonic() - started)

    async def _answer_and_score(self, stage_input: StageInput, settings: SamplingSettings) -> list[Sample]:
        self._done.asked += 1
        samples = await self._answer(stage_input, settings)
        self._done.answered += 1
        await self._score(stage_input, samples)
        self._done.scored += 1
        return samples

    async def _answer(self, stage_input: StageInput, settings: SamplingSettings) -> list[Sample]:
        if self._external_solver is not None and stage_input.role == SOLVER:
            return await self._external_solver.answer(stage_input)
        return await answer(stage_input, settings, self._client, self._chat)

    async def _score(self, stage_input: StageInput, samples: list[Sample]) -> None:
        ended = [sample for sample in samples if sample.finish_reason is not FinishReason.SEGMENT]
        if not ended:
            return
        outcomes = await self._scorer.score([ScoreRequest.of(stage_input, sample) for sample in ended])
        for sample, outcome in zip(ended, outcomes, strict=True):
            sample.outcome = outcome


@dataclass(slots=True)
class _WorkersRound:
    """A round that the agent-loop workers are at."""

    shares: list[Any]
    """Ray references to each worker's `Round`."""
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
            RewardUnavailableError: a role's reward fails on every sample, or holds all of its threads.
            RoundStalledError: the round does not go on.
            StopRequested: the run is told to end.
        """
        try:
            rounds: list[Round] = results(self.shares, self.look)
        except RewardUnavailableError as error:
            raise without_tracebacks(error) from None
        samples = [sample for one in rounds for sample in one.samples]
        self.requests.look(samples)
        self.grades.look((self.roles[sample.group_id], sample) for sample in samples)
        seconds = max((one.seconds for one in rounds), default=0.0)
        after = _read(self.servers, self.look)
        if self.before is None or after is None:
            return Round(samples, seconds)
        return Round(samples, seconds, after - self.before, shared_tokens(prompts_sent(samples)))


def _read(servers: Sequence[Any], look: Callable[[], object]) -> PrefillCounters | None:
    """What all servers have read since they started; None without servers, or without statistics."""
    if not servers:
        return None
    try:
        counted = results([server.prefill_counters.remote() for server in servers], look)
    except RayActorError as error:
        raise EngineUnavailableError(f"a vLLM server is gone: {reason(error)}") from error
    return None if None in counted else sum(counted, PrefillCounters())


class MarsRLAgentLoopManager(AgentLoopManager):
    """Spreads stage inputs over the workers. Implements `marsrl_verl.core.types.Engine`."""

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
        self.agent_loop_workers_class = ray.remote(MarsRLAgentLoopWorker)
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

    def start(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> _WorkersRound:
        """Begin a generation round; `wait` on what this returns ends it.

        Raises:
            EngineUnavailableError: a server whose statistics are wanted is gone.
        """
        look = self._watched()
        servers = self._measured_servers
        before = _read(servers, look)
        return self._started(inputs, sampling, look, servers, before)

    def _started(
        self,
        inputs: list[StageInput],
        sampling: dict[str, SamplingSettings],
        look: Callable[[], object],
        servers: Sequence[Any] = (),
        before: PrefillCounters | None = None,
    ) -> _WorkersRound:
        roles = {one.group_id: one.role for one in inputs}
        shares = self._share_out(inputs, sampling)
        return _WorkersRound(shares, servers, before, look, roles, self._grades, self._requests)

    def _watched(self) -> Callable[[], object]:
        """What looks after a new round."""
        if self._engines is None:
            return lambda: None
        return RoundWatch(self._engines, self.agent_loop_workers, self._progress_limit_s).look

    def _share_out(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> list[Any]:
        workers = self.agent_loop_workers
        shares = [inputs[start :: len(workers)] for start in range(len(workers))]
        return [
            worker.generate_samples.remote(share, sampling)
            for worker, share in zip(workers, shares, strict=True)
            if share
        ]

    def generate(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> list[Sample]:
        """Answer and score all inputs in one generation round, whose statistics nobody asks for.

        Raises:
            EngineUnavailableError, RewardUnavailableError, RoundStalledError, StopRequested: as
                `_WorkersRound.wait`.
        """
        return self._started(inputs, sampling, self._watched()).wait().samples

    def forget_routes(self) -> None:
        """Let the next request of an id go to any engine. New weights have emptied the prefix caches, for
        which a continuation goes where its beginning was, and unfinished groups pile up there."""
        ray.get(self.llm_client._load_balancer.clear_sticky_cache.remote())

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Refused: rows of this trainer are stage inputs."""
        raise TypeError(
            "MarsRLAgentLoopManager answers stage inputs (call generate); verl's own trainer, which calls "
            "generate_sequences, needs verl's AgentLoopManager"
        )
