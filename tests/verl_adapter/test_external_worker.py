"""An external Solver in the workers, and in what a run leaves behind."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("verl", reason="verl's agent loops")

import fake_ray
from marsrl_verl.core.step_result import StepResult

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.types import FinishReason, Group, Outcome, Problem, Sample, SamplingSettings, StageInput
from marsrl_verl.evaluation.system import Call
from marsrl_verl.reporting.rollout_log import rollout_line
from marsrl_verl.rollout.external.answer_file import AnswerFileError, FileSource
from marsrl_verl.rollout.external.api_key import ApiKeyError
from marsrl_verl.rollout.external.endpoint import EndpointSource
from marsrl_verl.rollout.single_call import ChatTokenizer, EngineUnavailableError
from marsrl_verl.verl_adapter import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.batch import training_rows
from marsrl_verl.verl_adapter.components import (
    build_algorithm,
    build_prompts,
    endpoint_key,
    external_solver,
)
from marsrl_verl.verl_adapter.observer import TrainingObserver
from marsrl_verl.verl_adapter.rollout_manager import MarsRLAgentLoopManager, MarsRLAgentLoopWorker

ENDPOINT = "marsrl.external_solver.endpoint"
SERVED = ("external_solver=endpoint", f"{ENDPOINT}.base_urls=[http://host:8000/v1]", f"{ENDPOINT}.model=big")
SETTINGS = SamplingSettings(max_new_tokens=8, max_prompt_tokens=99)


class CharacterTokenizer:
    """A tokenizer with one token per character of a chat."""

    all_special_tokens = ("<|im_end|>",)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def apply_chat_template(self, messages, **_kwargs):
        return {"input_ids": [ord(c) for message in messages for c in message["content"]]}


CHAT = ChatTokenizer(CharacterTokenizer())


def composed(*words: str):
    return compose_config(parse_arguments(["cluster=cpu", *words])).config


def stage_input(role: str, name: str = "p") -> StageInput:
    return StageInput(
        f"{name}/{role}/0",
        Problem(name, "1 + 1?", "2"),
        role,
        0,
        role,
        ({"role": "user", "content": "?"},),
        n=2,
    )


def external_sample(item: StageInput, k: int, reason: FinishReason = FinishReason.STOP) -> Sample:
    return Sample(
        sample_id=f"{item.group_id}#{k}",
        group_id=item.group_id,
        prompt_ids=[],
        response_ids=[],
        rollout_log_probs=[],
        finish_reason=reason,
        text="<think>hm</think>2",
        final_text="2",
        outcome=Outcome(float(k)),
        error="HTTP 500" if reason is FinishReason.ERROR else None,
        external=True,
    )


# --- building it from a configuration -------------------------------------------------------------


def test_without_a_source_the_model_solves():
    assert external_solver(composed(), CHAT) is None


def test_an_endpoint_has_its_key_and_a_part_of_the_requests():
    config = composed(
        *SERVED,
        f"{ENDPOINT}.max_concurrent_requests=11",
        "actor_rollout_ref.rollout.agent.num_workers=3",
    )
    source = external_solver(config, CHAT, "sk-1").source
    assert isinstance(source, EndpointSource)
    assert (source._api_key, source._slots._value) == ("sk-1", 3)


def test_the_key_comes_from_where_the_driver_has_it(monkeypatch, tmp_path):
    assert endpoint_key(composed()) is None
    assert endpoint_key(composed(*SERVED)) is None
    monkeypatch.setenv("BIG_KEY", " sk-1\n")
    assert endpoint_key(composed(*SERVED, f"{ENDPOINT}.api_key_env=BIG_KEY")) == "sk-1"
    path = tmp_path / "key"
    path.write_text("sk-2\n")
    path.chmod(0o600)
    assert endpoint_key(composed(*SERVED, f"{ENDPOINT}.api_key_file={path}")) == "sk-2"
    monkeypatch.delenv("BIG_KEY")
    with pytest.raises(ApiKeyError, match="api_key_env: it is not set"):
        endpoint_key(composed(*SERVED, f"{ENDPOINT}.api_key_env=BIG_KEY"))


def test_every_worker_is_handed_the_key_in_a_call(monkeypatch):
    class Worker:
        """An actor that keeps the key it is handed."""

        key: str | None = None

        def __init__(self) -> None:
            self.take_endpoint_key = SimpleNamespace(remote=self._take)

        async def _take(self, key: str) -> None:
            self.key = key

    async def start(manager):
        manager.agent_loop_workers = [Worker(), Worker()]

    monkeypatch.setattr(rollout_manager.AgentLoopManager, "_init_agent_loop_workers", start)
    monkeypatch.setenv("BIG_KEY", "sk-1")
    for words, expected in (((f"{ENDPOINT}.api_key_env=BIG_KEY",), "sk-1"), ((), None)):
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.config = composed(*SERVED, *words)
        asyncio.run(manager._init_agent_loop_workers())
        assert [worker.key for worker in manager.agent_loop_workers] == [expected] * 2


def test_a_worker_asks_with_the_key_it_was_handed():
    worker = MarsRLAgentLoopWorker.__new__(MarsRLAgentLoopWorker)
    worker.config, worker._chat = composed(*SERVED), CHAT
    worker.take_endpoint_key("sk-1")
    assert worker._external_solver.source._api_key == "sk-1"


def test_a_file_is_read_in_the_worker(tmp_path):
    path = tmp_path / "a.jsonl"
    words = ("external_solver=jsonl", f"marsrl.external_solver.jsonl.path={path}", "marsrl.run.seed=7")
    with pytest.raises(AnswerFileError, match="No such file"):
        external_solver(composed(*words), CHAT)
    path.write_text(json.dumps({"question": "1 + 1?", "answers": ["2<|im_end|>"]}))
    solver = external_solver(composed(*words), CHAT)
    assert isinstance(solver.source, FileSource)
    assert solver.source.seed == 7
    (first, _) = asyncio.run(solver.answer(stage_input("solver")))
    assert first.text == "2 ", "the trained model's control tokens are taken out"


def test_the_solvers_prompt_has_no_limit_of_ours():
    long = Problem("p", "x" * 9_999, "2", messages=({"role": "user", "content": "x" * 9_999},))
    for words, expected in (((), 0), (SERVED, 1)):
        settings = typed_settings(composed(*words))
        algorithm = build_algorithm(settings, build_prompts(settings), CHAT, 4)
        assert len(algorithm.first_inputs(long, 0)) == expected


# --- the worker and the manager -------------------------------------------------------------------


@dataclass
class Recorder:
    """An external Solver, or the engine's `answer`, that keeps what it was asked."""

    asked: list[str] = field(default_factory=list)

    async def answer(self, item: StageInput, *_engine: Any) -> list[Sample]:
        self.asked.append(item.role)
        return [external_sample(item, k) for k in range(item.n)]


@pytest.fixture
def worker_and_recorders(monkeypatch):
    """A worker whose samples all have reward 1; what the external Solver and the engine are asked."""
    outside, engine = Recorder(), Recorder()

    def start(self, config, llm_client, teacher_client, reward_loop_worker_handles):
        self.llm_client, self.tokenizer = llm_client, None
        self.reward_loop_worker_handles = reward_loop_worker_handles

    async def score(data):
        outcomes = [Outcome(1.0) for _ in data.non_tensor_batch["score_request"]]
        return {"reward_extra_info": {"outcomes": outcomes}}

    monkeypatch.setattr(rollout_manager, "answer", engine.answer)
    monkeypatch.setattr(rollout_manager, "chat_tokenizer", lambda config, tokenizer: CHAT)
    monkeypatch.setattr(rollout_manager, "external_solver", lambda config, chat: outside)
    monkeypatch.setattr(rollout_manager.AgentLoopWorker, "__init__", start)
    rewards = SimpleNamespace(compute_score=SimpleNamespace(remote=score))
    return MarsRLAgentLoopWorker(None, None, reward_loop_worker_handles=[rewards]), outside, engine


def test_the_worker_asks_it_for_the_solver_alone_and_scores_as_usual(worker_and_recorders):
    worker, outside, engine = worker_and_recorders
    inputs = [stage_input(role) for role in ("solver", "verifier", "corrector")]
    sampling = {item.role: SETTINGS for item in inputs}
    done = asyncio.run(worker.generate_samples(inputs, sampling))
    assert (outside.asked, engine.asked) == (["solver"], ["verifier", "corrector"])
    assert [sample.outcome.reward for sample in done.samples] == [1.0] * 6


def test_a_round_without_a_solution_stops_although_the_engine_answers(monkeypatch):
    def generate(inputs, sampling):
        reasons = {"solver": FinishReason.ERROR, "verifier": FinishReason.STOP}
        samples = [external_sample(item, k, reasons[item.role]) for item in inputs for k in range(8)]
        for sample in samples:
            sample.external = sample.group_id.startswith("p/solver")
        return rollout_manager.Round(samples, 1.0)

    monkeypatch.setattr(engine_watch, "ray", fake_ray.FakeRay())
    manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
    manager.agent_loop_workers = [SimpleNamespace(generate_samples=fake_ray.Method(generate))]
    inputs = [stage_input("solver"), stage_input("verifier")]
    with pytest.raises(
        EngineUnavailableError, match=r"all of the last 8 requests of the external Solver.*HTTP 500"
    ):
        manager.generate(inputs, {item.role: SETTINGS for item in inputs})
    assert len(manager.generate(inputs[1:], {"verifier": SETTINGS})) == 8


# --- what a run leaves behind ---------------------------------------------------------------------


def solver_group() -> Group:
    item = stage_input("solver")
    return Group(item, [external_sample(item, k) for k in range(2)])


def test_another_models_answers_never_enter_a_batch():
    group = solver_group()
    with pytest.raises(ValueError, match="not to be trained"):
        training_rows([group], {sample.sample_id: ((0, 1.0),) for sample in group.samples})


def test_the_rollout_log_has_its_text_and_no_tokens():
    group = solver_group()
    line = rollout_line(3, group.input, group.samples[1])
    assert (line["external"], line["response"], line["final"], line["reward"]) == (
        True,
        "<think>hm</think>2",
        "2",
        1.0,
    )
    assert [line[name] for name in ("prompt_tokens", "tokens", "policy_version")] == [None] * 3
    assert (line["token_ids"], line["segments"]) == ([], [])


def step_result(group: Group) -> StepResult:
    return StepResult(
        step=1,
        trained=[],
        completed=[group],
        ended=[],
        waiting={},
        in_flight=0,
        unfinished=0,
        held=0,
        stale=0,
        oldest_waiting={},
        input_ages={},
    )


def test_an_external_solver_has_no_lengths(tmp_path):
    config = composed(f"marsrl.run.output_dir={tmp_path / 'run'}", "marsrl.run.progress=false", *SERVED)
    observer = TrainingObserver(config, typed_settings(config), total_steps=9)
    metrics = observer.describe(step_result(solver_group()))
    assert metrics["role/solver/reward_mean"] == 0.5
    assert not [name for name in metrics if "length" in name]


def test_the_example_says_who_solved():
    from marsrl_verl.reporting.example import _name

    item = stage_input("solver")
    assert _name(Call(item, external_sample(item, 0))) == "Solver (external)"
