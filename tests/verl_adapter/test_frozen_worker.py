"""A frozen Solver in the workers, and in what a run leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("verl", reason="verl's agent loops")

import fake_ray

from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.group import Group
from marsrl_verl.core.policy import PolicyKind
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.evaluation.runs import Call
from marsrl_verl.evaluation.watch import Watch, step_facts
from marsrl_verl.reporting.rollout_log import rollout_lines
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.frozen.answer_file import AnswerFileError, FileSource
from marsrl_verl.rollout.frozen.endpoint import EndpointSource
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.settings.api_key import ApiKeyError
from marsrl_verl.settings.watch import WatchConfig
from marsrl_verl.verl_adapter.components import (
    answer_sources,
    build_method,
    build_prompts,
    endpoint_keys,
    policy_set,
)
from marsrl_verl.verl_adapter.rollout_server import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.rollout_server import worker as worker_module
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RolloutWorker, RoundId
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver

ENDPOINT = "marsrl.policies.solver.endpoint"
SERVED = ("policies=solver_endpoint", f"{ENDPOINT}.base_urls=[http://host:8000/v1]", f"{ENDPOINT}.model=big")
SETTINGS = Sampling(max_new_tokens=8, max_prompt_tokens=99)


class CharacterTokenizer:
    """A tokenizer with one token per character of a chat."""

    all_special_tokens = ("<|im_end|>",)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def apply_chat_template(self, messages, **_kwargs):
        return {"input_ids": [ord(c) for message in messages for c in message["content"]]}


CHAT = ChatTokenizer(CharacterTokenizer())


def composed(*words: str):
    return compose_config(parse_arguments(["cluster=cpu", *words])).config


def make_request(role: str, name: str = "p", n: int = 2) -> RolloutRequest:
    chat = ({"role": "user", "content": "?"},)
    return RolloutRequest(f"{name}/{role}/0", Problem(name, "1 + 1?", "2"), role, role, chat, n)


def frozen_answer(item: RolloutRequest, k: int, finish: FinishReason = FinishReason.STOP) -> Trajectory:
    return Trajectory(
        f"{item.group_id}#{k}",
        sequences=[],
        finish=finish,
        text="<think>hm</think>2",
        final_text="2",
        reward=RewardResult(float(k)),
        detail="HTTP 500" if finish is FinishReason.ERROR else None,
    )


# --- building it from a configuration -------------------------------------------------------------


def test_without_a_source_the_model_solves():
    assert answer_sources(composed()) == {}
    assert policy_set(composed()).of("solver").trained


def test_an_endpoint_has_its_key_and_a_part_of_the_requests():
    config = composed(
        *SERVED,
        f"{ENDPOINT}.max_concurrent_requests=11",
        "actor_rollout_ref.rollout.agent.num_workers=3",
    )
    (source,) = answer_sources(config, {"solver": "sk-1"}).values()
    assert isinstance(source, EndpointSource)
    assert (source._api_key, source._slots._value) == ("sk-1", 3)


def test_the_key_comes_from_where_the_driver_has_it(monkeypatch, tmp_path):
    assert endpoint_keys(composed()) == endpoint_keys(composed(*SERVED)) == {}
    monkeypatch.setenv("BIG_KEY", " sk-1\n")
    assert endpoint_keys(composed(*SERVED, f"{ENDPOINT}.api_key_env=BIG_KEY")) == {"solver": "sk-1"}
    path = tmp_path / "key"
    path.write_text("sk-2\n")
    path.chmod(0o600)
    assert endpoint_keys(composed(*SERVED, f"{ENDPOINT}.api_key_file={path}")) == {"solver": "sk-2"}
    monkeypatch.delenv("BIG_KEY")
    with pytest.raises(ApiKeyError, match="api_key_env: it is not set"):
        endpoint_keys(composed(*SERVED, f"{ENDPOINT}.api_key_env=BIG_KEY"))


def test_every_worker_is_handed_the_key_in_a_call(monkeypatch):
    class Worker:
        """An actor that keeps the key it is handed."""

        keys: Mapping[str, str] | None = None

        def __init__(self) -> None:
            self.take_endpoint_keys = SimpleNamespace(remote=self._take)

        async def _take(self, keys: Mapping[str, str]) -> None:
            self.keys = keys

    async def start(manager):
        manager.agent_loop_workers = [Worker(), Worker()]

    monkeypatch.setattr(rollout_manager.AgentLoopManager, "_init_agent_loop_workers", start)
    monkeypatch.setenv("BIG_KEY", "sk-1")
    for words, expected in (((f"{ENDPOINT}.api_key_env=BIG_KEY",), {"solver": "sk-1"}), ((), None)):
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.config = composed(*SERVED, *words)
        asyncio.run(manager._init_agent_loop_workers())
        assert [worker.keys for worker in manager.agent_loop_workers] == [expected] * 2


def test_a_worker_with_a_warning_speaks_for_all(monkeypatch):
    def worker(**about):
        async def said(_):
            return {"python": about}

        return SimpleNamespace(start_tools=SimpleNamespace(remote=said))

    async def start(manager):
        manager.agent_loop_workers = [worker(isolation="namespaces"), worker(warning="weaker"), worker()]

    monkeypatch.setattr(rollout_manager.AgentLoopManager, "_init_agent_loop_workers", start)
    manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
    manager.config = composed("algo=arpo", "marsrl.tools.python.target=python")
    asyncio.run(manager._init_agent_loop_workers())
    assert manager.tools == {"python": {"warning": "weaker"}}


def test_the_solver_alone_has_the_policy_of_the_source(tmp_path):
    answers = ("policies=solver_jsonl", f"marsrl.policies.solver.jsonl.path={tmp_path}")
    for words, kind in ((SERVED, PolicyKind.ENDPOINT), (answers, PolicyKind.JSONL)):
        policies = policy_set(composed(*words))
        assert policies.of("solver").kind is kind
        assert {policies.of(role).name for role in ("verifier", "corrector")} == set(policies.trained)


def test_a_file_is_read_in_the_worker(tmp_path):
    path = tmp_path / "a.jsonl"
    words = ("policies=solver_jsonl", f"marsrl.policies.solver.jsonl.path={path}", "marsrl.run.seed=7")
    with pytest.raises(AnswerFileError, match="No such file"):
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


@dataclass
class Source:
    """Who answers for the Solver."""

    requests: list[str] = field(default_factory=list)

    async def answer(self, request, k, messages, stop=()):
        self.requests.append(f"{request.group_id}#{k}")
        return ChatAnswer("2<|im_end|>")


@dataclass
class Engine:
    """Refuses everything, and keeps what it was asked."""

    requests: list[str] = field(default_factory=list)

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        self.requests.append(name)
        raise ValueError("no engine")


@pytest.fixture
def worker_of(monkeypatch):
    """A rollout worker of a configuration, whose trajectories all have reward 1."""

    def start(self, config, llm_client, teacher_client, reward_loop_worker_handles):
        self.config, self.llm_client, self.tokenizer = config, llm_client, None
        self.reward_loop_worker_handles = reward_loop_worker_handles

    async def score(data):
        results = [RewardResult(1.0) for _ in data.non_tensor_batch["score_request"]]
        return {"reward_extra_info": {"outcomes": results}}

    monkeypatch.setattr(worker_module, "chat_tokenizer", lambda config, tokenizer: CHAT)
    monkeypatch.setattr(worker_module.AgentLoopWorker, "__init__", start)
    rewards = SimpleNamespace(compute_score=SimpleNamespace(remote=score))
    return lambda *words: RolloutWorker(composed(*words), None, reward_loop_worker_handles=[rewards])


def test_a_worker_asks_with_the_key_it_was_handed(worker_of):
    worker = worker_of(*SERVED)
    worker.take_endpoint_keys({"solver": "sk-1"})
    (source,) = worker._runner.sources.values()
    assert source._api_key == "sk-1"


def test_the_worker_asks_it_for_the_solver_alone_and_scores_as_usual(worker_of):
    worker, outside, engine = worker_of(*SERVED), Source(), Engine()
    worker._runner.sources, worker._runner.client = dict.fromkeys(worker._runner.sources, outside), engine
    requests = [make_request(role) for role in ("solver", "verifier", "corrector")]
    sampling = {item.role: SETTINGS for item in requests}

    async def run() -> list[RequestResult]:
        return list(
            await asyncio.gather(*[worker.run_request(one, sampling, RoundId(1, 0)) for one in requests])
        )

    done = asyncio.run(run())
    assert outside.requests == ["p/solver/0#0", "p/solver/0#1"]
    assert engine.requests == ["p/verifier/0", "p/corrector/0"]
    found = [one for answer in done for one in answer.output.trajectories]
    assert [one.value for one in found] == [1.0] * 6
    assert [one.external for one in found] == [True] * 2 + [False] * 4
    assert found[0].text == "2 ", "the trained model's control tokens are taken out"


@pytest.fixture
def manager_with(monkeypatch):
    """A manager whose frozen Solver fails so many of the 8 requests of each group; the engine answers all."""

    def make(failing: int, *words: str) -> MarsRLAgentLoopManager:
        def answer(item: RolloutRequest) -> RolloutOutput:
            if item.role == "solver":
                ends = [FinishReason.ERROR] * failing + [FinishReason.STOP] * (8 - failing)
                members = [frozen_answer(item, k, end) for k, end in enumerate(ends)]
            else:
                sequence = Sequence(item.role, [1], [2], [-0.5])
                members = [replace(frozen_answer(item, k), sequences=[sequence]) for k in range(8)]
            return RolloutOutput(item.group_id, members)

        def run_requests(requests, sampling, round_id):
            answers = [RequestResult(answer(one), 1.0) for one in requests]
            return answers if len(answers) > 1 else answers[0]

        monkeypatch.setattr(engine_watch, "ray", fake_ray.FakeRay())
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.config = composed(*SERVED, *words)
        manager.agent_loop_workers = [SimpleNamespace(run_requests=fake_ray.Method(run_requests))]
        return manager

    return make


def test_a_round_without_a_solution_stops_although_the_engine_answers(manager_with):
    manager = manager_with(8)
    requests = [make_request("solver"), make_request("verifier")]
    with pytest.raises(
        EngineUnavailableError,
        match=r"last 8 requests of the frozen policy solver .*HTTP 500",
    ):
        manager.start(requests, {item.role: SETTINGS for item in requests}).wait()
    [output] = manager.start(requests[1:], {"verifier": SETTINGS}).wait().outputs
    assert len(output.trajectories) == 8


def test_an_endpoint_that_fails_often_stops_the_run_as_configured(manager_with):
    requests = [make_request("solver", f"p{k}") for k in range(4)]

    def rounds(manager: MarsRLAgentLoopManager) -> None:
        for _ in range(2):
            manager.start(requests, {"solver": SETTINGS}).wait()

    with pytest.raises(EngineUnavailableError, match=r"40 of 64 .* frozen policy solver .*0\.5.*HTTP 500"):
        rounds(manager_with(5))
    rounds(manager_with(4))
    rounds(manager_with(5, "marsrl.policies.solver.endpoint.max_failed_frac=0.7"))


# --- what a run leaves behind ---------------------------------------------------------------------


def solver_group() -> Group:
    item = make_request("solver")
    return Group(item, [frozen_answer(item, k) for k in range(2)])


def test_the_rollout_log_has_its_text_and_no_tokens():
    group = solver_group()
    [line] = rollout_lines(3, group.request, group.trajectories[1], lambda request, one: {})
    assert (line["external"], line["response"], line["final"], line["reward"]) == (
        True,
        "<think>hm</think>2",
        "2",
        1.0,
    )
    assert [line[name] for name in ("prompt_tokens", "tokens", "policy_version")] == [None] * 3
    assert (line["token_ids"], line["versions"]) == ([], [])


def step_result(group: Group) -> StepResult:
    return StepResult(
        step=1,
        trained=[],
        completed=[group],
        ended=[],
        waiting={},
        in_flight=0,
        paused=0,
        deferred=0,
        stale=0,
        oldest_waiting={},
        request_ages={},
    )


def test_a_frozen_solver_whose_requests_fail_is_warned_of():
    item = make_request("solver")
    ends = [FinishReason.ERROR] * 5 + [FinishReason.STOP] * 3
    group = Group(item, [frozen_answer(item, k, end) for k, end in enumerate(ends)])
    watch = Watch(WatchConfig(), untrained=frozenset({"solver"}))
    facts = step_facts(step_result(group), MarsRL, watch.untrained, due=True, updated=True)
    (said,) = watch.look(1, facts)
    assert "62% of the responses of the solver failed (5 of 8); the first: HTTP 500" in said


def test_a_frozen_solver_has_no_lengths(tmp_path):
    config = composed(f"marsrl.run.output_dir={tmp_path / 'run'}", "marsrl.run.progress=false", *SERVED)
    observer = TrainingObserver(config, typed_settings(config), total_steps=9)
    metrics = observer.describe(step_result(solver_group()))
    assert metrics["role/solver/reward_mean"] == 0.5
    assert not [name for name in metrics if "length" in name]


def test_the_example_says_who_solved():
    item = make_request("solver")
    system = VerifyCorrect(MathPrompts(), LoopRules(1))
    assert system.example_call(Call(item, frozen_answer(item, 0))) == "Solver (external)"
