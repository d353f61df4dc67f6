"""From stage inputs to scored samples: workers and reward workers, with fakes for Ray's actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import fake_ray
from fake_ray import Answer, FakeRay
from ray.exceptions import RayTaskError

from marsrl_verl.core.types import FinishReason, Outcome, Problem, Sample, SamplingSettings, StageInput
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.single_call import EngineUnavailableError
from marsrl_verl.verl_adapter import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.generation import Round
from marsrl_verl.verl_adapter.rollout_manager import MarsRLAgentLoopManager, MarsRLAgentLoopWorker
from marsrl_verl.verl_adapter.round_watch import GroupCounts
from marsrl_verl.verl_adapter.scoring import without_tracebacks

SETTINGS = SamplingSettings(max_new_tokens=8, max_prompt_tokens=99, temperature=0.7, top_p=0.9, top_k=5)


class Method:
    """A method of a Ray actor: called by `.remote`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


def stage_input(name: str, n: int = 2, role: str = "solver") -> StageInput:
    return StageInput(name, Problem("p", "1+1", "2"), role, 0, role, ({"role": "user", "content": "?"},), n=n)


def sample(name: str, k: int, reason: FinishReason = FinishReason.STOP) -> Sample:
    return Sample(
        sample_id=f"{name}#{k}",
        group_id=name,
        prompt_ids=[1],
        response_ids=[2],
        rollout_log_probs=[-0.5],
        finish_reason=reason,
        text=f"text {name}#{k}",
        final_text="",
    )


def through_ray(error: Exception, method: str = "generate_group") -> Exception:
    """As the caller of an actor sees what a method of it raised."""
    return RayTaskError(method, "Traceback: …", error).as_instanceof_cause()


# --- the manager ----------------------------------------------------------------------------------


class Worker:
    """An agent-loop worker that answers at once."""

    def __init__(self, reasons: Callable[[str, int], FinishReason], outcomes: dict[str, Outcome]) -> None:
        self.shares: list[list[str]] = []
        self.reasons, self.outcomes = reasons, outcomes
        self.generate_samples = fake_ray.Method(self._generate)

    def _generate(self, inputs, sampling):
        self.shares.append([one.group_id for one in inputs])
        samples = [sample(i.group_id, k, self.reasons(i.group_id, k)) for i in inputs for k in range(i.n)]
        roles = {one.group_id: one.role for one in inputs}
        for one in samples:
            one.outcome = self.outcomes.get(roles[one.group_id])
        return Round(samples, seconds=float(len(inputs)))


@pytest.fixture
def manager_of(monkeypatch):
    """A manager with the given number of workers."""
    monkeypatch.setattr(engine_watch, "ray", FakeRay())

    def make(
        count: int, reasons=lambda name, k: FinishReason.STOP, outcomes: dict[str, Outcome] | None = None
    ) -> MarsRLAgentLoopManager:
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.agent_loop_workers = [Worker(reasons, outcomes or {}) for _ in range(count)]
        return manager

    return make


@pytest.mark.parametrize(("workers", "inputs"), [(1, 4), (2, 5), (3, 1), (4, 4), (3, 11)])
def test_inputs_are_dealt_out_evenly_and_each_is_answered_once(manager_of, workers, inputs):
    manager = manager_of(workers)
    names = [f"g{i}" for i in range(inputs)]
    samples = manager.generate([stage_input(name) for name in names], {"solver": SETTINGS})
    found = sorted(one.sample_id for one in samples)
    assert found == sorted(f"{name}#{k}" for name in names for k in range(2))
    shares = [worker.shares for worker in manager.agent_loop_workers]
    sizes = [len(share[0]) if share else 0 for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(share) <= 1 for share in shares), "one call per worker"
    assert sum(map(bool, shares)) == min(workers, inputs), "a worker without work is not called"


def test_a_round_takes_as_long_as_its_slowest_worker(manager_of):
    started = manager_of(2).start([stage_input(name) for name in "abc"], {"solver": SETTINGS})
    assert started.wait().seconds == 2.0
    assert manager_of(2).start([], {"solver": SETTINGS}).wait() == Round([], 0.0)


def test_rounds_without_a_single_answer_are_a_broken_engine(manager_of):
    broken = manager_of(2, lambda name, k: FinishReason.ERROR)
    broken.generate([stage_input(name) for name in "abcd"], {"solver": SETTINGS})
    with pytest.raises(EngineUnavailableError, match="last 8 requests"):
        broken.generate([stage_input(name) for name in "abcd"], {"solver": SETTINGS})
    one_answer = manager_of(2, lambda name, k: FinishReason.STOP if name == "b" else FinishReason.ERROR)
    samples = one_answer.generate([stage_input("a"), stage_input("b")], {"solver": SETTINGS})
    assert len(samples) == 4


def test_one_sample_without_an_engine_ends_the_round(manager_of):
    manager = manager_of(2)
    broken = fake_ray.Method(lambda *_: Answer(error=through_ray(EngineUnavailableError("server 0 is gone"))))
    manager.agent_loop_workers[1].generate_samples = broken
    with pytest.raises(EngineUnavailableError, match=r"^server 0 is gone$"):
        manager.generate([stage_input("a"), stage_input("b")], {"solver": SETTINGS})


def test_a_round_is_watched_while_it_lasts(manager_of, monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(engine_watch, "ray", ray)
    manager = manager_of(1)
    manager.agent_loop_workers[0].generate_samples = fake_ray.Method(lambda *_: Answer(silent=True))
    manager.agent_loop_workers[0].counts = fake_ray.Method(lambda: GroupCounts(1, 0, 0))
    stopped = fake_ray.actor(pulse=lambda through_core: Answer(silent=True))
    manager.watch(EngineWatch([stopped], 20.0, ray.clock), 500.0)
    with pytest.raises(EngineUnavailableError, match="no sign of life for 20 s"):
        manager.generate([stage_input("a")], {"solver": SETTINGS})


def test_a_round_in_which_every_grade_of_a_role_fails_is_refused(manager_of):
    failed = Outcome(0.0, error="Mine: ValueError: no number", graded=False)
    graded = manager_of(2, outcomes={"solver": Outcome(0.0), "verifier": failed})
    inputs = [stage_input(f"{role}{i}", role=role) for role in ("solver", "verifier") for i in range(4)]
    sampling = {"solver": SETTINGS, "verifier": SETTINGS}
    with pytest.raises(RewardUnavailableError, match=r"8 grades of the verifier failed.*Mine: ValueError"):
        graded.start(inputs, sampling).wait()
    few = manager_of(1, outcomes={"solver": failed})
    for name in "abc":
        few.generate([stage_input(name)], sampling)
    with pytest.raises(RewardUnavailableError, match="8 grades of the solver"):
        few.generate([stage_input("d")], sampling)


def test_a_reward_that_holds_its_threads_ends_the_run_with_a_sentence():
    """As Ray hands it on: from the reward worker to the agent-loop worker, and from there to the driver."""
    first = RayTaskError("run_single", "Traceback …", RewardUnavailableError("no thread is left"))
    passed = without_tracebacks(first.as_instanceof_cause())
    second = RayTaskError("generate_samples", "Traceback …", passed).as_instanceof_cause()
    last = without_tracebacks(second)
    assert type(last) is RewardUnavailableError
    assert str(last) == "no thread is left"
    other = RayTaskError("run_single", "Traceback …", KeyError("x")).as_instanceof_cause()
    assert without_tracebacks(other) is other


def test_prompts_that_are_too_long_are_no_broken_engine(manager_of):
    manager = manager_of(1, lambda name, k: FinishReason.PROMPT_TOO_LONG)
    assert len(manager.generate([stage_input("a")], {"solver": SETTINGS})) == 2


def test_verls_own_way_to_generate_is_refused_with_the_right_one(manager_of):
    with pytest.raises(TypeError, match="call generate"):
        manager_of(1).generate_sequences(None)


# --- the worker -----------------------------------------------------------------------------------


class RewardWorker:
    """Rewards a sample by the number at the end of its id, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.compute_score = Method(self._score)

    async def _score(self, data):
        requests = list(data.non_tensor_batch["score_request"])
        self.seen.append([request.sample_id for request in requests])
        outcomes = [Outcome(float(request.sample_id.split("#")[1])) for request in requests]
        return {"reward_score": 0.0, "reward_extra_info": {"outcomes": outcomes}}


@pytest.fixture
def worker_of(monkeypatch):
    """An agent-loop worker on fake reward workers; later inputs are answered first."""

    async def answer(one, settings, client, chat):
        await asyncio.sleep(0.02 if one.group_id == "g0" else 0)
        return [sample(one.group_id, k) for k in range(one.n)]

    def start(self, config, llm_client, teacher_client, reward_loop_worker_handles):
        self.llm_client, self.tokenizer = llm_client, None
        self.reward_loop_worker_handles = reward_loop_worker_handles

    monkeypatch.setattr(rollout_manager, "answer", answer)
    monkeypatch.setattr(rollout_manager, "chat_tokenizer", lambda config, tokenizer: None)
    monkeypatch.setattr(rollout_manager, "external_solver", lambda config, chat: None)
    monkeypatch.setattr(rollout_manager.AgentLoopWorker, "__init__", start)
    return lambda rewards: MarsRLAgentLoopWorker(None, None, reward_loop_worker_handles=rewards)


def test_samples_come_back_in_the_order_of_the_inputs_each_with_its_reward(worker_of):
    rewards = [RewardWorker(), RewardWorker()]
    inputs = [stage_input("g0", n=3), stage_input("g1"), stage_input("g2")]
    done = asyncio.run(worker_of(rewards).generate_samples(inputs, {"solver": SETTINGS}))
    samples = done.samples
    assert done.seconds >= 0.02
    assert [one.sample_id for one in samples] == ["g0#0", "g0#1", "g0#2", "g1#0", "g1#1", "g2#0", "g2#1"]
    assert [one.outcome.reward for one in samples] == [0, 1, 2, 0, 1, 0, 1]


def test_groups_that_end_together_are_spread_over_the_reward_workers_in_one_call_each(worker_of):
    rewards = [RewardWorker(), RewardWorker()]
    inputs = [stage_input(f"g{i}") for i in range(1, 6)]
    done = asyncio.run(worker_of(rewards).generate_samples(inputs, {"solver": SETTINGS}))
    assert [one.seen for one in rewards] == [
        [["g1#0", "g1#1", "g3#0", "g3#1", "g5#0", "g5#1"]],
        [["g2#0", "g2#1", "g4#0", "g4#1"]],
    ]
    assert [one.outcome.reward for one in done.samples] == [0, 1] * 5


def test_an_error_of_a_reward_worker_ends_the_round(worker_of):
    class Broken:
        def __init__(self):
            self.compute_score = Method(self._score)

        async def _score(self, data):
            raise RuntimeError("the reward worker is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        asyncio.run(worker_of([Broken()]).generate_samples([stage_input("g1")], {"solver": SETTINGS}))


def test_a_worker_without_reward_workers_says_so(worker_of):
    with pytest.raises(ValueError, match="no reward worker"):
        worker_of([])
