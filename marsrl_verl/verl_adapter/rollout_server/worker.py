"""verl's agent-loop worker as the place where workflows run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory
from marsrl_verl.evaluation.text_metrics import text_figures
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, sampled_part, sampled_text
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.settings.imports import running_at
from marsrl_verl.tools.toolbox import Toolbox
from marsrl_verl.verl_adapter.components import answer_sources, chat_tokenizer, policy_set
from marsrl_verl.verl_adapter.rollout_server.client import ServerClient
from marsrl_verl.verl_adapter.rollout_server.round_watch import GroupCounts
from marsrl_verl.verl_adapter.rollout_server.scoring import GroupScorer
from marsrl_verl.verl_adapter.rollout_server.template_builder import ChatTemplateBuilder
from marsrl_verl.verl_adapter.rollout_server.turn_parser import VerlTurnParser

WATCH = "watch"
"""Concurrency group of calls that are answered while a workflow blocks the others' event loop."""


@dataclass(frozen=True, slots=True)
class RoundId:
    """The round that a request is part of."""

    number: int
    syncs: int
    """Weight syncs before it."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Result of a request in a round: a Ray object, whose arrays the driver reads in place."""

    output: RolloutOutput
    seconds: float
    """Seconds since this worker began with the round."""


class RolloutWorker(AgentLoopWorker):
    """Runs the workflows of its requests concurrently; trajectories are scored as soon as they have ended."""

    def __init__(
        self,
        config: DictConfig,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: list[Any] | None = None,
    ) -> None:
        super().__init__(config, llm_client, teacher_client, reward_loop_worker_handles)
        settings = typed_settings(config)
        self._tools, self._seed = settings.tools, settings.run.seed
        self._scorer = GroupScorer(self.reward_loop_worker_handles or ())
        self._done = GroupCounts()
        self._answered: set[str] = set()
        self._running: dict[str, tuple[RolloutRequest, float]] = {}
        """Requests in progress, with the times at which they began, by group id."""
        self._thread = threading.get_ident()
        """Thread of the event loop that they run in."""
        self._round, self._began = -1, 0.0
        self._client = ServerClient(self.llm_client)
        chat = chat_tokenizer(config, self.tokenizer)
        self._runner = RolloutRunner(
            client=self._client,
            chat=chat,
            score=self._score,
            policies=policy_set(config),
            sources=answer_sources(config),
            template_builder=lambda: ChatTemplateBuilder.of(chat),
            turn_parser=lambda name: VerlTurnParser.of(name, self.tokenizer),
            seed=settings.run.seed,
            settings=settings,
        )

    async def counts(self) -> GroupCounts:
        """Counts of all work since this worker started."""
        done, now = self._done, time.monotonic()
        done.graded, done.tokens = self._scorer.graded, self._client.tokens
        done.stages = dict(Counter(request.stage for request, _ in self._running.values()))
        first = next(iter(self._running.items()), None)  # a dictionary keeps the order in which they came
        done.oldest = None if first is None else (first[0], now - first[1][1])
        return done

    @ray.method(concurrency_group=WATCH)
    async def running(self) -> str:
        """The workflows in progress, and the line that runs."""
        workflows = {request.rollout for request, _ in list(self._running.values())}
        return f"{', '.join(sorted(workflows))}, at {running_at(self._thread)}"

    def take_endpoint_keys(self, keys: Mapping[str, str]) -> None:
        """Calls the endpoints of these policies with these keys from now on. They are no argument of the
        constructor: Ray keeps those in its global control store."""
        self._runner.sources = answer_sources(self.config, keys)

    async def start_tools(self, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """Starts this worker's tools with their keys, before its first request; returns facts about them. The
        keys come in a call, as the endpoints' do. ToolUnavailableError: one can't start."""
        box = Toolbox.from_settings(self._tools, seed=self._seed, secrets=secrets)
        await box.start()
        self._runner.tools = box
        return box.about()

    async def run_requests(
        self, requests: Sequence[RolloutRequest], sampling: Mapping[str, Sampling], round_id: RoundId
    ) -> list[RequestResult] | RequestResult:
        """`run_request` of several, in one call, for `num_returns` of as many: Ray takes a list for more than
        one return value, and a value for one."""
        answers = await asyncio.gather(*[self.run_request(one, sampling, round_id) for one in requests])
        return answers if len(answers) > 1 else answers[0]

    async def run_request(
        self, request: RolloutRequest, sampling: Mapping[str, Sampling], round_id: RoundId
    ) -> RequestResult:
        """A round of a request. All calls of a worker run concurrently."""
        if round_id.number != self._round:
            self._round, self._began = round_id.number, time.monotonic()
            self._done.tokens = self._client.tokens
            self._done.begin_round(round_id.number)
        self._client.synced = round_id.syncs
        self._done.submitted += 1
        self._thread, self._running[request.group_id] = threading.get_ident(), (request, time.monotonic())
        try:
            output = await self._runner.run(request, sampling)
        finally:  # also where it is given up
            del self._running[request.group_id]
            self._note_answered(request)
            self._answered.discard(request.group_id)
            self._done.scored += 1
        describe(output, self._runner.chat)
        return RequestResult(output, time.monotonic() - self._began)

    async def _score(self, request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        self._note_answered(request)
        chat = self._runner.chat
        requests = [ScoreRequest.of(request, one, sampled_text(one, chat)) for one in trajectories]
        return await self._scorer.score(requests)

    def _note_answered(self, request: RolloutRequest) -> None:
        """Counts a request once, when it first has something to score, or has ended."""
        if request.group_id not in self._answered:
            self._answered.add(request.group_id)
            self._done.answered += 1


def describe(output: RolloutOutput, chat: ChatTokenizer) -> None:
    """Notes the figures of the texts of ended trajectories (`Trajectory.figures`, for several sequences
    `Sequence.figures`), so that their tokens need not be read again."""
    for one in output.trajectories:
        if one.paused:
            continue
        if not one.sequences:
            one.figures |= _figures(token_ids([]), one.text)
        for sequence in one.sequences:
            found = one.figures if len(one.sequences) == 1 else sequence.figures
            text = sequence.text if sequence.text is not None else one.text
            found |= _figures(*sampled_part(sequence, text, chat))


def _figures(ids: TokenIds, text: str) -> dict[str, float]:
    found = asdict(text_figures(ids, text))
    return {name: float(value) for name, value in found.items() if value is not None}
