"""The plugin's rollout path: everything that training starts, without training.

Variants in the same processes. `plugin` is a training step's call: rollout worker, ServerClient,
`MarsRLvLLMServer.generate_group`, decoding to text and scoring. `server alone` sends tokenised prompts from
this process through `ServerClient` and takes tokens back: no rollout worker, no text, no scoring.
`evaluation` is an evaluation's call: a request for every sample, without log-probabilities. `verl's agent
loop` is what the rollout workers replace: verl's manager and workers with its loop of a single turn, on
the same engine. It asks for every response by itself and gives back padded rows; nothing is graded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import DictConfig

from benchmarks.throughput.plan import (
    AGENT_LOOP,
    EVALUATION,
    PLUGIN,
    SERVER,
    Piece,
    Plan,
    Row,
    Workload,
    dialogue,
    sampling_of,
    solver_input,
    write_results,
)
from benchmarks.throughput.processes import TAG, processor_seconds, spent
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.algos.registry import method_class
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.runs import run_evaluation
from marsrl_verl.evaluation.suite import drawn
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.reporting.answer_journal import AnswerJournal, JournaledEngine
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.components import chat_tokenizer
from marsrl_verl.verl_adapter.rollout_server import server
from marsrl_verl.verl_adapter.rollout_server.client import ServerClient
from marsrl_verl.verl_adapter.rollout_server.engine_requests import accepted_params, sampling_params
from marsrl_verl.verl_adapter.rollout_server.reward_manager import build_role_rewards
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMReplica, MarsRLvLLMServer
from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner
from marsrl_verl.verl_adapter.terminal import library_output_to


class FixedLengthServer(MarsRLvLLMServer):
    """The plugin's server; on request it decodes on where the model ends its response."""

    _verls: Mapping[str, Any] = MappingProxyType({})
    """What requests of verl's agent loop have beside their sampling settings."""

    async def set_ignore_end(self, ignore_end: bool, most: int) -> None:
        self._verls = {"ignore_eos": ignore_end, "max_tokens": most}

        def endless(decoding: Decoding, n: int, model: Any) -> Any:
            return sampling_params(decoding, n, ignore_eos=True)

        server.accepted_params = endless if ignore_end else accepted_params

    async def generate(self, prompt_ids: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        """As verl's agent loop asks for it."""
        return await super().generate(prompt_ids, {**sampling_params, **self._verls}, request_id, **more)

    async def threads(self) -> str | None:
        """OMP_NUM_THREADS, which the engine's process inherits."""
        return os.environ.get("OMP_NUM_THREADS")


class FixedLengthReplica(MarsRLvLLMReplica):
    """A replica made of these servers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(FixedLengthServer)


def measure(config: DictConfig, session: Path | None) -> None:
    """Starts what training starts, measures, writes the results. Called once Ray is there."""
    with library_output_to(session / "logs" / f"throughput-{os.getpid()}.log") if session else nullcontext():
        _measure(config, Plan.read())


def _measure(config: DictConfig, plan: Plan) -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    trainer = MarsRLTaskRunner().build_trainer(config)
    RolloutReplicaRegistry.register("vllm", lambda: FixedLengthReplica)
    try:
        trainer.init_workers()
        trainer.checkpoint_manager.update_weights(0)
        servers = [replica.server_handle for replica in trainer.llm_server_manager.get_replicas()]
        bench = Bench(trainer, plan)
        rows: list[Row] = []
        pieces: list[Piece] = []
        for workload in plan.workloads:
            told = workload.ignore_end, workload.max_tokens
            ray.get([server.set_ignore_end.remote(*told) for server in servers])
            trajectories: list[Trajectory] = []
            requests: list[RolloutRequest] = []
            for number in range(plan.rounds + 1):
                requests = bench.requests(workload, number, part=0)
                row, trajectories = bench.whole_path(workload, number, requests)
                rows.append(row)
                if workload.turns == 1:
                    alone = bench.requests(workload, number, part=1)
                    rows.append(bench.server_alone(workload, number, alone))
                    if plan.agent_loop:
                        looped = bench.requests(workload, number, part=2)
                        rows.append(bench.agent_loop(workload, number, looped))
                    if plan.evaluation:
                        rows.append(bench.evaluation(workload, number, part=3))
            if workload.turns == 1:
                pieces += bench.pieces(workload, requests, trajectories)
        threads = ray.get(servers[0].threads.remote())
        for row in rows:
            row.threads = int(threads) if threads else os.cpu_count()
        write_results(plan.results, rows, pieces, {"threads": rows[0].threads})
    finally:
        trainer.close()


class Bench:
    """Measures rounds on a started trainer."""

    def __init__(self, trainer: Any, plan: Plan) -> None:
        self.trainer, self.plan = trainer, plan
        self.chat = chat_tokenizer(trainer.config, trainer.tokenizer)
        self.client = ServerClient(trainer.llm_server_manager.get_client())
        self.tag = os.environ[TAG]

    def requests(self, workload: Workload, number: int, part: int) -> list[RolloutRequest]:
        """What a training step would ask the Solver."""
        requests = [
            solver_input(
                one, self.trainer.prompts.solver(one), self.plan.group_size, f"{workload.name}/{number}"
            )
            for one in self.plan.round_problems(workload, number, part)
        ]
        return requests if workload.turns == 1 else [dialogue(one, workload.turns) for one in requests]

    def whole_path(
        self, workload: Workload, number: int, requests: list[RolloutRequest]
    ) -> tuple[Row, list[Trajectory]]:
        """The trainer's own call."""
        sampling = {SOLVER: sampling_of(workload, self.trainer.sampling[SOLVER])}
        outputs, seconds, processor = self._timed(
            lambda: self.trainer.async_rollout_manager.start(requests, sampling).wait().outputs
        )
        trajectories = [one for output in outputs for one in output.trajectories]
        tokens = sum(sequence.trained_tokens for one in trajectories for sequence in one.sequences)
        finished = sum(one.finished for one in trajectories)
        row = Row(PLUGIN, workload.name, number, seconds, len(trajectories), tokens, finished)
        row.processor_seconds = processor
        return row, trajectories

    def server_alone(self, workload: Workload, number: int, requests: list[RolloutRequest]) -> Row:
        """Tokens to the server and back, the way of `ServerClient`."""
        settings = sampling_of(workload, self.trainer.sampling[SOLVER])
        decoding = Decoding(settings.max_new_tokens, settings.temperature, settings.top_p, settings.top_k)
        policy = self.trainer.policies.of(SOLVER).name
        prompts = [(one.group_id, token_ids(self.chat.prompt_ids(one.messages))) for one in requests]

        async def ask_all() -> list[Any]:
            n = self.plan.group_size
            calls = [
                self.client.generate(policy, ids, decoding, session=name, name=name, n=n)
                for name, ids in prompts
            ]
            return [one for group in await asyncio.gather(*calls) for one in group]

        completions, seconds, processor = self._timed(lambda: asyncio.run(ask_all()))
        tokens = sum(len(one.token_ids) for one in completions)
        finished = sum(one.finish is FinishReason.STOP for one in completions)
        row = Row(SERVER, workload.name, number, seconds, len(completions), tokens, finished)
        row.processor_seconds = processor
        return row

    def agent_loop(self, workload: Workload, number: int, requests: list[RolloutRequest]) -> Row:
        """verl's `generate_sequences`: every prompt as often as its group has responses."""
        from verl import DataProto

        chats = [list(one.messages) for one in requests for _ in range(self.plan.group_size)]
        prompts = np.empty(len(chats), dtype=object)
        prompts[:] = chats
        batch = DataProto.from_dict(
            tensors={"dummy_tensor": torch.zeros(len(chats), 1)},
            # Without priorities: the engine answers first come, first served.
            non_tensors={"raw_prompt": prompts, "priority": np.zeros(len(chats), dtype=np.int64)},
        )
        output, seconds, processor = self._timed(lambda: self._loops.generate_sequences(batch))
        lengths = output.batch["response_mask"].sum(dim=1)
        finished = int((lengths < workload.max_tokens).sum())
        row = Row(AGENT_LOOP, workload.name, number, seconds, len(chats), int(lengths.sum()), finished)
        row.processor_seconds = processor
        return row

    def evaluation(self, workload: Workload, number: int, part: int) -> Row:
        """`main_eval`'s call with the Solver alone: a request for every sample, each answer journalled."""
        settings = self.trainer.settings
        solver = method_evaluation(
            method_class(settings.algo.name),
            settings.algo,
            settings.evaluation.model_copy(update={"correction_rounds": 0}),
            self.trainer.prompts,
        )
        sampling = drawn({SOLVER: sampling_of(workload, self.trainer.sampling[SOLVER])})
        problems = self.plan.round_problems(workload, number, part)
        with tempfile.TemporaryDirectory() as folder:
            journal = AnswerJournal(Path(folder) / "answers.jsonl", "one model's")
            engine = JournaledEngine(self.trainer.async_rollout_manager, journal)
            runs, seconds, processor = self._timed(
                lambda: run_evaluation(
                    engine,
                    solver,
                    problems,
                    sampling,
                    repeats=self.plan.group_size,
                    tag=f"{workload.name}-{number}",
                )
            )
            journal.close()
        calls = [call.trajectory for run in runs.runs for call in run.calls]
        tokens = sum(one.tokens for one in calls)
        finished = sum(one.finished for one in calls)
        row = Row(EVALUATION, workload.name, number, seconds, len(calls), tokens, finished)
        row.processor_seconds = processor
        return row

    @cached_property
    def _loops(self) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopManager

        return AgentLoopManager.create(self.trainer.config, self.trainer.llm_server_manager.get_client())

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float, dict[str, float]]:
        gc.collect()
        before = processor_seconds(self.tag)
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        return result, seconds, spent(before, processor_seconds(self.tag))

    def pieces(
        self, workload: Workload, requests: list[RolloutRequest], trajectories: list[Trajectory]
    ) -> list[Piece]:
        """What one round's work beside the engine costs, piece by piece in this thread."""
        by_group = {one.group_id: one for one in requests}
        to_score = [ScoreRequest.of(by_group[one.group_id], one) for one in trajectories]
        rewards = build_role_rewards(self.trainer.config)

        async def score() -> None:
            for request in to_score:
                await rewards[request.role].score(request)

        asyncio.run(rewards[SOLVER].score(to_score[0]))  # starts a grader's process
        sequences = [one.sequence for one in trajectories]
        answers = [
            (sequence.response_ids, sequence.rollout_log_probs, one.finish.value, sequence.version)
            for one, sequence in zip(trajectories, sequences, strict=True)
        ]
        work: dict[str, tuple[Callable[[], Any], Any]] = {
            "tokenise the prompts": (lambda: [self.chat.prompt_ids(one.messages) for one in requests], None),
            "decode to text": (lambda: [self.chat.text(one.response_ids) for one in sequences], None),
            "score": (lambda: asyncio.run(score()), None),
            "pickle tokens and log-probs (server → worker)": (lambda: _there_and_back(answers), answers),
            "pickle requests (worker → reward worker)": (lambda: _there_and_back(to_score), to_score),
            "pickle trajectories (worker → driver)": (lambda: _there_and_back(trajectories), trajectories),
        }
        found, count = [], len(trajectories)
        for name, (call, content) in work.items():
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
            size = None if content is None else len(pickle.dumps(content, protocol=5)) / 1000 / count
            found.append(Piece(name, workload.name, 1000 * seconds / count, size))
        for reward in rewards.values():
            reward.close()
        return found


def _there_and_back(content: Any) -> None:
    pickle.loads(pickle.dumps(content, protocol=5))
