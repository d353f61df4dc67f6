"""Rollout managers over workers, and rollout workers over rewards, that answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_ray
from cached_config import composed

from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Grading, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.testing.client import CharacterTokenizer
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.rollout_server import worker as worker_module
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RolloutWorker, RoundId

CHAT = ChatTokenizer(CharacterTokenizer())
SAMPLING = {role: Sampling(8, 99) for role in ("solver", "verifier", "corrector")}


def make_request(name: str, role: str = "solver", n: int = 2) -> RolloutRequest:
    chat = ({"role": "user", "content": "?"},)
    return RolloutRequest(name, Problem(name, "1 + 1?", "2"), role, role, chat, n)


def member(
    item: RolloutRequest,
    k: int,
    finish: FinishReason = FinishReason.STOP,
    reward: RewardResult | None = None,
    **others: RewardResult,
) -> Trajectory:
    """`others`: what the rewards of other roles found in it."""
    name, grades = f"{item.group_id}#{k}", {item.role: reward, **others}
    one = Trajectory(name, [Sequence(item.role, [1], [2], [-0.5])], finish, f"text {name}", reward=reward)
    one.gradings = [Grading.of(role, found) for role, found in grades.items() if found is not None]
    return one


class Worker:
    """A rollout worker that answers at once, its n-th request n seconds after its first."""

    def __init__(self, answer: Callable[[RolloutRequest, int], Trajectory] = member) -> None:
        self.answer = answer
        self.requests: list[RolloutRequest] = []
        self.rounds: set[RoundId] = set()
        self.run_request = fake_ray.Method(self._run)
        self.run_requests = fake_ray.Method(self._run_all)

    def _run(self, item, sampling, round_id):
        self.requests.append(item)
        self.rounds.add(round_id)
        output = RolloutOutput(item.group_id, [self.answer(item, k) for k in range(item.n)])
        return RequestResult(output, float(len(self.requests)))

    def _run_all(self, requests, sampling, round_id):
        answers = [self._run(one, sampling, round_id) for one in requests]
        return answers if len(answers) > 1 else answers[0]


def manager_of(monkeypatch, *workers: Any, words: tuple[str, ...] = ()) -> MarsRLAgentLoopManager:
    monkeypatch.setattr(engine_watch, "ray", fake_ray.FakeRay())
    manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
    manager.config, manager.agent_loop_workers = composed(*words), list(workers)
    return manager


def started(manager: MarsRLAgentLoopManager, requests: list[RolloutRequest]) -> list[RolloutOutput]:
    """A round of training."""
    return manager.start(requests, SAMPLING).wait().outputs


def streamed(manager: MarsRLAgentLoopManager, requests: list[RolloutRequest]) -> list[RolloutOutput]:
    """An evaluation's requests, answered one by one."""
    manager.submit(requests, SAMPLING)
    found = []
    while new := manager.outputs():
        found += new
    return found


class RewardWorker:
    """Rewards a trajectory by the number at the end of its id; calls after the first so many wait for
    `let_go`."""

    def __init__(self, calls_at_once: int = 99) -> None:
        self.seen: list[list[str]] = []
        self.calls_at_once, self.let_go = calls_at_once, asyncio.Event()
        self.compute_score = SimpleNamespace(remote=self._score)

    async def _score(self, data):
        requests = list(data.non_tensor_batch["score_request"])
        self.seen.append([one.trajectory_id for one in requests])
        if len(self.seen) > self.calls_at_once:
            await self.let_go.wait()
        outcomes = [RewardResult(float(one.trajectory_id.split("#")[1])) for one in requests]
        return {"reward_score": 0.0, "reward_extra_info": {"outcomes": outcomes}}


def worker_of(monkeypatch, *words: str, rewards: list[Any]) -> RolloutWorker:
    """A rollout worker whose model's tokens are characters."""

    def start(self, config, llm_client, teacher_client, reward_loop_worker_handles):
        self.config, self.llm_client, self.tokenizer = config, llm_client, None
        self.reward_loop_worker_handles = reward_loop_worker_handles

    monkeypatch.setattr(worker_module, "chat_tokenizer", lambda config, tokenizer: CHAT)
    monkeypatch.setattr(worker_module.AgentLoopWorker, "__init__", start)
    return RolloutWorker(composed(*words), None, reward_loop_worker_handles=rewards)
