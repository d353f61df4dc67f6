"""A frozen Solver in the workers, and in what a run says of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from cached_config import composed
from rollout_fakes import (
    CHAT,
    SAMPLING,
    RewardWorker,
    Worker,
    make_request,
    manager_of,
    member,
    started,
    worker_of,
)

from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.group import Group
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.evaluation.runs import Call
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.rollout.external.endpoint import EndpointSource
from marsrl_verl.rollout.external.recorded_answers import FileSource, RecordedAnswersError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.components import answer_sources, build_method, build_prompts, policy_set
from marsrl_verl.verl_adapter.rollout_server import rollout_manager
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RoundId

ENDPOINT = "marsrl.policies.solver.endpoint"
SERVED = ("policies=solver_endpoint", f"{ENDPOINT}.base_urls=[http://host:8000/v1]", f"{ENDPOINT}.model=big")


# --- building it from a configuration -------------------------------------------------------------


@pytest.fixture
def manager_with(monkeypatch):
    """A manager whose workers' actors are started by verl."""

    def make(workers: list[Any], *words: str) -> MarsRLAgentLoopManager:
        async def start(manager):
            manager.agent_loop_workers = workers

        monkeypatch.setattr(rollout_manager.AgentLoopManager, "_init_agent_loop_workers", start)
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.config = composed(*words)
        asyncio.run(manager._init_agent_loop_workers())
        return manager

    return make


@pytest.mark.parametrize("place", ["api_key_env", "api_key_file", None])
def test_every_worker_is_handed_the_key_in_a_call(manager_with, monkeypatch, tmp_path, place):
    path = tmp_path / "key"
    path.write_text("sk-1\n")
    path.chmod(0o600)
    monkeypatch.setenv("BIG_KEY", " sk-1\n")
    settings = {"api_key_env": "BIG_KEY", "api_key_file": str(path)}
    handed: list[Any] = []

    async def take(keys) -> None:
        handed.append(keys)

    worker = SimpleNamespace(take_endpoint_keys=SimpleNamespace(remote=take))
    manager_with([worker, worker], *SERVED, *([f"{ENDPOINT}.{place}={settings[place]}"] if place else []))
    assert handed == ([{"solver": "sk-1"}] * 2 if place else [])


@pytest.mark.with_presets("arpo")
def test_a_worker_with_a_warning_speaks_for_all(manager_with):
    def worker(**about):
        async def said(_):
            return {"python": about}

        return SimpleNamespace(start_tools=SimpleNamespace(remote=said))

    workers = [worker(isolation="namespaces"), worker(warning="weaker"), worker()]
    manager = manager_with(workers, "algo=arpo", "marsrl.tools.python.target=python")
    assert manager.tools == {"python": {"warning": "weaker"}}


def test_the_solver_alone_has_the_policy_of_the_source(tmp_path):
    answers = ("policies=solver_jsonl", f"marsrl.policies.solver.jsonl.path={tmp_path}")
    for words, kind in (((), PolicyKind.MODEL), (SERVED, PolicyKind.ENDPOINT), (answers, PolicyKind.JSONL)):
        policies = policy_set(composed(*words))
        assert policies.of("solver").kind is kind
        assert {policies.of(role).name for role in ("verifier", "corrector")} == set(policies.trained)


def test_a_file_is_read_in_the_worker(tmp_path):
    path = tmp_path / "a.jsonl"
    words = ("policies=solver_jsonl", f"marsrl.policies.solver.jsonl.path={path}", "marsrl.run.seed=7")
    with pytest.raises(RecordedAnswersError, match="No such file"):
        answer_sources(composed(*words))
    path.write_text(json.dumps({"question": "1 + 1?", "answers": ["2<|im_end|>"]}))
    (source,) = answer_sources(composed(*words)).values()
    assert isinstance(source, FileSource)
    assert source.seed == 7


def test_the_solvers_prompt_has_no_limit_of_ours():
    long = Problem("p", "x" * 9_999, "2", messages=({"role": "user", "content": "x" * 9_999},))
    for words, expected in (((), 0), (SERVED, 1)):
        settings = typed_settings(composed(*words))
        method = build_method(settings, build_prompts(settings), CHAT, 4)
        assert len(method.first_requests(long, 0)) == expected


# --- the worker and the manager -------------------------------------------------------------------


def test_a_worker_asks_with_the_key_it_was_handed_and_its_part_of_the_requests(monkeypatch):
    words = (f"{ENDPOINT}.max_concurrent_requests=11", "actor_rollout_ref.rollout.agent.num_workers=3")
    worker = worker_of(monkeypatch, *SERVED, *words, rewards=[RewardWorker()])
    worker.take_endpoint_keys({"solver": "sk-1"})
    (source,) = worker._runner.sources.values()
    assert isinstance(source, EndpointSource)
    assert (source._api_key, source._slots._value) == ("sk-1", 3)


@dataclass
class Source:
    """Who answers for the Solver."""

    requests: list[str] = field(default_factory=list)

    async def answer(self, request, k, messages, stop=(), sampling=None):
        self.requests.append(f"{request.group_id}#{k}")
        return ChatAnswer("2<|turn|>")


@dataclass
class Engine:
    """Refuses everything, and keeps what it was asked."""

    requests: list[str] = field(default_factory=list)

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        self.requests.append(name)
        raise ValueError("no engine")


def test_the_worker_asks_it_for_the_solver_alone_and_scores_as_usual(monkeypatch):
    worker = worker_of(monkeypatch, *SERVED, rewards=[RewardWorker()])
    outside, engine = Source(), Engine()
    worker._runner.sources, worker._runner.client = dict.fromkeys(worker._runner.sources, outside), engine
    requests = [make_request(role, role) for role in ("solver", "verifier", "corrector")]
    done: list[RequestResult] = asyncio.run(worker.run_requests(requests, SAMPLING, RoundId(1, 0)))
    assert outside.requests == ["solver#0", "solver#1"]
    assert engine.requests == ["verifier", "corrector"]
    found = [one for answer in done for one in answer.output.trajectories]
    assert [one.value for one in found] == [0.0, 1.0] * 3
    assert [one.external for one in found] == [True] * 2 + [False] * 4
    assert found[0].text == "2 ", "the trained model's control tokens are taken out"


def test_an_endpoint_that_fails_often_stops_the_run_as_configured(monkeypatch):
    def rounds(failing: int, *words: str) -> None:
        def answer(item, k):
            finish = FinishReason.ERROR if k < failing else FinishReason.STOP
            return replace(member(item, k, finish), sequences=[], detail="HTTP 500")

        manager = manager_of(monkeypatch, Worker(answer), words=(*SERVED, *words))
        for _ in range(2):
            started(manager, [make_request(f"p{k}", n=8) for k in range(4)])

    with pytest.raises(EngineUnavailableError, match=r"40 of 64 .* frozen policy solver .*0\.5.*HTTP 500"):
        rounds(5)
    rounds(4)
    rounds(5, f"{ENDPOINT}.max_failed_frac=0.7")


# --- what a run says of it ------------------------------------------------------------------------


@pytest.fixture
def solved() -> Group:
    item = make_request("solver")
    members = [replace(member(item, k, reward=RewardResult(float(k))), sequences=[]) for k in range(2)]
    return Group(item, members)


def test_a_frozen_solver_has_no_lengths(solved):
    metrics = training_metrics([solved], MarsRL)
    assert metrics["role/solver/reward_mean"] == 0.5
    assert not [name for name in metrics if "length" in name]


def test_the_example_says_who_solved(solved):
    system = VerifyCorrect(MathPrompts(), LoopRules(1))
    assert system.example_call(Call(solved.request, solved.trajectories[0])) == "Solver (external)"
