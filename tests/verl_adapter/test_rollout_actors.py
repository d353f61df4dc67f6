"""From requests to scored trajectories: workers and reward workers, with fakes for Ray's actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import fake_ray
from fake_ray import Answer, FakeRay
from ray.exceptions import ActorDiedError, RayTaskError

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.rollout_server import worker as worker_module
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.round_watch import SAVABLE_ERRORS, GroupCounts
from marsrl_verl.verl_adapter.rollout_server.scoring import without_tracebacks
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RolloutWorker, RoundId

SETTINGS = Sampling(max_new_tokens=8, max_prompt_tokens=99, temperature=0.7, top_p=0.9, top_k=5)


class Method:
    """A method of a Ray actor: called by `.remote`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


def make_request(name: str, n: int = 2, role: str = "solver") -> RolloutRequest:
    return RolloutRequest(name, Problem("p", "1+1", "2"), role, role, ({"role": "user", "content": "?"},), n)


def trajectory(name: str, k: int, finish: FinishReason = FinishReason.STOP) -> Trajectory:
    return Trajectory(f"{name}#{k}", [Sequence("solver", [1], [2], [-0.5])], finish, f"text {name}#{k}")


def through_ray(error: Exception, method: str = "generate_group") -> Exception:
    """As the caller of an actor sees what a method of it raised."""
    return RayTaskError(method, "Traceback: …", error).as_instanceof_cause()


# --- the manager ----------------------------------------------------------------------------------


class Worker:
    """A rollout worker that answers at once."""

    def __init__(self, ends: Callable[[str, int], FinishReason], rewards: dict[str, RewardResult]) -> None:
        self.requests: list[RolloutRequest] = []
        self.turns: set[RoundId] = set()
        self.ends, self.rewards = ends, rewards
        self.run_request = fake_ray.Method(self._run)
        self.run_requests = fake_ray.Method(self._run_all)

    def _run(self, request, sampling, turn):
        self.requests.append(request)
        self.turns.add(turn)
        return RequestResult(self._output(request), seconds=float(len(self.requests)))

    def _run_all(self, requests, sampling, turn):
        answers = [self._run(one, sampling, turn) for one in requests]
        return answers if len(answers) > 1 else answers[0]

    def _output(self, request):
        members = [trajectory(request.group_id, k, self.ends(request.group_id, k)) for k in range(request.n)]
        for one in members:
            one.reward = self.rewards.get(request.role)
        return RolloutOutput(request.group_id, members)


@pytest.fixture
def manager_of(monkeypatch):
    """A manager with the given number of workers."""
    monkeypatch.setattr(engine_watch, "ray", FakeRay())

    def make(
        count: int, ends=lambda name, k: FinishReason.STOP, rewards: dict[str, RewardResult] | None = None
    ) -> MarsRLAgentLoopManager:
        manager = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
        manager.agent_loop_workers = [Worker(ends, rewards or {}) for _ in range(count)]
        return manager

    return make


def members(outputs: list[RolloutOutput]) -> list[Trajectory]:
    return [one for output in outputs for one in output.trajectories]


@pytest.mark.parametrize(("workers", "requests"), [(1, 4), (2, 5), (3, 1), (4, 4), (3, 11)])
def test_requests_are_dealt_out_evenly_and_each_is_answered_once(manager_of, workers, requests):
    manager = manager_of(workers)
    names = [f"g{i}" for i in range(requests)]
    outputs = manager.start([make_request(name) for name in names], {"solver": SETTINGS}).wait().outputs
    assert sorted(one.group_id for one in outputs) == sorted(names)
    found = sorted(one.trajectory_id for one in members(outputs))
    assert found == sorted(f"{name}#{k}" for name in names for k in range(2))
    sizes = [len(worker.requests) for worker in manager.agent_loop_workers]
    assert max(sizes) - min(sizes) <= 1


def test_a_round_takes_as_long_as_its_slowest_worker(manager_of):
    started = manager_of(2).start([make_request(name) for name in "abc"], {"solver": SETTINGS})
    assert started.wait().seconds == 2.0
    nothing = manager_of(2).start([], {"solver": SETTINGS}).wait()
    assert (nothing.outputs, nothing.seconds) == ([], 0.0)


def test_requests_are_answered_one_by_one(manager_of):
    manager = manager_of(2)
    assert manager.outputs() == []
    manager.submit([make_request("a"), make_request("b")], {"solver": SETTINGS})
    manager.submit([make_request("c")], {"solver": SETTINGS})
    slow = Answer(silent=True)
    manager._streamed[slow] = make_request("d")
    assert sorted(one.group_id for one in manager.outputs()) == ["a", "b", "c"]
    assert list(manager._streamed) == [slow], "what is not there yet is waited for the next time"
    slow.silent, slow.value = False, RequestResult(RolloutOutput("d", [trajectory("d", 0)]), 1.0)
    assert [one.group_id for one in manager.outputs()] == ["d"]
    assert manager.outputs() == []


def test_workers_take_turns_however_few_requests_come_at_a_time(manager_of):
    manager = manager_of(3)
    for name in "abcdef":
        manager.submit([make_request(name)], {"solver": SETTINGS})
        manager.outputs()
    assert [len(worker.requests) for worker in manager.agent_loop_workers] == [2, 2, 2]


def test_one_by_one_too_a_broken_engine_is_noticed(manager_of):
    broken = manager_of(2, lambda name, k: FinishReason.ERROR)
    broken.submit([make_request(name) for name in "abcdefgh"], {"solver": SETTINGS})
    with pytest.raises(EngineUnavailableError, match="last 8 requests"):
        broken.outputs()


def test_after_a_sync_sessions_are_new_ones(manager_of):
    manager = manager_of(1)
    manager.start([make_request("a")], {"solver": SETTINGS}).wait()
    manager.forget_routes()
    manager.start([make_request("a")], {"solver": SETTINGS}).wait()
    assert manager.agent_loop_workers[0].turns == {RoundId(1, 0), RoundId(2, 1)}


def test_rounds_without_a_single_answer_are_a_broken_engine(manager_of):
    broken = manager_of(2, lambda name, k: FinishReason.ERROR)
    broken.start([make_request(name) for name in "abcd"], {"solver": SETTINGS}).wait()
    with pytest.raises(EngineUnavailableError, match="last 8 requests"):
        broken.start([make_request(name) for name in "abcd"], {"solver": SETTINGS}).wait()
    one_answer = manager_of(2, lambda name, k: FinishReason.STOP if name == "b" else FinishReason.ERROR)
    outputs = one_answer.start([make_request("a"), make_request("b")], {"solver": SETTINGS}).wait().outputs
    assert len(members(outputs)) == 4


def test_one_request_without_an_engine_ends_the_round(manager_of):
    manager = manager_of(2)
    broken = fake_ray.Method(lambda *_: Answer(error=through_ray(EngineUnavailableError("server 0 is gone"))))
    manager.agent_loop_workers[1].run_requests = broken
    with pytest.raises(EngineUnavailableError, match=r"^server 0 is gone$"):
        manager.start([make_request("a"), make_request("b")], {"solver": SETTINGS}).wait()


@pytest.mark.parametrize(
    "error", [ActorDiedError(), through_ray(ActorDiedError())], ids=["rollout", "reward"]
)
def test_the_death_of_a_worker_leaves_a_state_that_can_be_saved(manager_of, error):
    def begun():
        manager = manager_of(2)
        dies = fake_ray.Method(lambda *_: Answer(error=error))
        manager.agent_loop_workers[1].run_requests = manager.agent_loop_workers[1].run_request = dies
        return manager

    requests = [make_request("a"), make_request("b")]
    with pytest.raises(SAVABLE_ERRORS, match="has died"):
        begun().start(requests, {"solver": SETTINGS}).wait()
    manager = begun()
    manager.submit(requests, {"solver": SETTINGS})
    with pytest.raises(SAVABLE_ERRORS, match="has died"):
        manager.outputs()


def test_a_round_is_watched_while_it_lasts(manager_of, monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(engine_watch, "ray", ray)
    monkeypatch.setattr(engine_watch, "running_process", lambda _: "")
    manager = manager_of(1)
    manager.agent_loop_workers[0].run_requests = fake_ray.Method(lambda *_: Answer(silent=True))
    manager.agent_loop_workers[0].counts = fake_ray.Method(lambda: GroupCounts(1, 0, 0))
    stopped = fake_ray.actor(pulse=lambda through_core: Answer(silent=True))
    manager.watch(EngineWatch([stopped], 20.0, ray.clock), 500.0)
    with pytest.raises(EngineUnavailableError, match="no sign of life for 20 s"):
        manager.start([make_request("a")], {"solver": SETTINGS}).wait()


def test_a_round_in_which_every_grade_of_a_role_fails_is_refused(manager_of):
    failed = RewardResult(0.0, error="Mine: ValueError: no number", graded=False)
    graded = manager_of(2, rewards={"solver": RewardResult(0.0), "verifier": failed})
    graded.config = compose_config(parse_arguments(("cluster=cpu",))).config
    requests = [make_request(f"{role}{i}", role=role) for role in ("solver", "verifier") for i in range(4)]
    sampling = {"solver": SETTINGS, "verifier": SETTINGS}
    with pytest.raises(RewardUnavailableError, match=r"8 grades of the verifier failed.*Mine: ValueError"):
        graded.start(requests, sampling).wait()
    few = manager_of(1, rewards={"solver": failed})
    few.config = compose_config(parse_arguments(("cluster=cpu",))).config
    for name in "abc":
        few.start([make_request(name)], sampling).wait()
    with pytest.raises(RewardUnavailableError, match="8 grades of the solver"):
        few.start([make_request("d")], sampling).wait()


RAISED = RewardResult(0.0, error="Mine: ValueError: no number", graded=False, raised=True)


@pytest.fixture
def half_raises(manager_of):
    """A manager whose second worker's rewards raise, with the Verifier's limit above that."""
    manager = manager_of(2, rewards={"solver": RAISED, "verifier": RAISED})
    words = ("marsrl.reward.verifier.max_failed_frac=0.8", "cluster=cpu")
    manager.config = compose_config(parse_arguments(words)).config
    manager.agent_loop_workers[0].rewards = {"solver": RewardResult(0.0), "verifier": RewardResult(0.0)}
    return manager


def test_a_reward_that_raises_too_often_ends_the_run_as_configured(half_raises):
    sampling = {"solver": SETTINGS, "verifier": SETTINGS}
    judged = [make_request(f"v{i}", role="verifier") for i in range(8)]
    for _ in range(3):
        half_raises.start(judged, sampling).wait()
    requests = [make_request(f"s{i}") for i in range(8)]
    half_raises.start(requests, sampling).wait()
    with pytest.raises(RewardUnavailableError, match=r"solver raised in 16 of 32 .*Mine: ValueError"):
        half_raises.start(requests, sampling).wait()


def test_what_is_answered_one_by_one_is_a_round_too(half_raises):
    def ask(round_: int) -> None:
        half_raises.submit([make_request(f"{round_}{name}") for name in "abcd"], {"solver": SETTINGS})
        while half_raises.outputs():
            pass

    ask(1)
    with pytest.raises(RewardUnavailableError, match=r"solver raised in 8 of 16 .* last 2 rounds"):
        ask(2)


def test_a_reward_that_holds_its_threads_ends_the_run_with_a_sentence():
    """As Ray hands it on: from the reward worker to the rollout worker, and from there to the driver."""
    first = RayTaskError("run_single", "Traceback …", RewardUnavailableError("no thread is left"))
    passed = without_tracebacks(first.as_instanceof_cause())
    second = RayTaskError("run_requests", "Traceback …", passed).as_instanceof_cause()
    last = without_tracebacks(second)
    assert type(last) is RewardUnavailableError
    assert str(last) == "no thread is left"
    other = RayTaskError("run_single", "Traceback …", KeyError("x")).as_instanceof_cause()
    assert without_tracebacks(other) is other


def test_prompts_that_are_too_long_are_no_broken_engine(manager_of):
    manager = manager_of(1, lambda name, k: FinishReason.PROMPT_TOO_LONG)
    assert len(members(manager.start([make_request("a")], {"solver": SETTINGS}).wait().outputs)) == 2


def test_verls_own_way_to_generate_is_refused_with_the_right_one(manager_of):
    with pytest.raises(TypeError, match="call start or submit"):
        manager_of(1).generate_sequences(None)


# --- the worker -----------------------------------------------------------------------------------


class RewardWorker:
    """Rewards a trajectory by the number at the end of its id, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.compute_score = Method(self._score)

    async def _score(self, data):
        requests = list(data.non_tensor_batch["score_request"])
        self.seen.append([request.trajectory_id for request in requests])
        outcomes = [RewardResult(float(request.trajectory_id.split("#")[1])) for request in requests]
        return {"reward_score": 0.0, "reward_extra_info": {"outcomes": outcomes}}


class Program:
    """A rollout program without a model; later requests are answered first."""

    async def run(self, request, context):
        await asyncio.sleep(0.02 if request.group_id == "g0" else 0)
        members = [trajectory(request.group_id, k) for k in range(request.n)]
        for one, reward in zip(members, await context.score(members), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, members)


@pytest.fixture
def worker_of(monkeypatch):
    """A rollout worker on fake reward workers."""

    def start(self, config, llm_client, teacher_client, reward_loop_worker_handles):
        self.llm_client, self.tokenizer = llm_client, None
        self.reward_loop_worker_handles = reward_loop_worker_handles

    monkeypatch.setattr(worker_module, "typed_settings", lambda config: MarsRLConfig(algo=Config()))
    monkeypatch.setattr(worker_module, "chat_tokenizer", lambda config, tokenizer: None)
    monkeypatch.setattr(worker_module, "policy_set", lambda config: PolicySet())
    monkeypatch.setattr(worker_module, "answer_sources", lambda config: {})
    monkeypatch.setattr(worker_module.AgentLoopWorker, "__init__", start)

    def make(rewards) -> RolloutWorker:
        made = RolloutWorker(None, None, reward_loop_worker_handles=rewards)
        made._runner.programs = {"single_call": Program}
        return made

    return make


def answered(worker: RolloutWorker, requests: list[RolloutRequest]) -> list[RequestResult]:
    async def run() -> list[RequestResult]:
        found = await worker.run_requests(requests, {"solver": SETTINGS}, RoundId(1, 3))
        return found if isinstance(found, list) else [found]

    return asyncio.run(run())


def found_in(answers: list[RequestResult]) -> list[Trajectory]:
    return members([one.output for one in answers])


def test_outputs_come_back_in_the_order_of_the_requests_each_trajectory_with_its_reward(worker_of):
    worker = worker_of([RewardWorker(), RewardWorker()])
    done = answered(worker, [make_request("g0", n=3), make_request("g1"), make_request("g2")])
    found = found_in(done)
    assert max(one.seconds for one in done) >= 0.02
    assert worker._client.synced == 3, "sessions of before a sync are over"
    assert [one.trajectory_id for one in found] == [
        "g0#0", "g0#1", "g0#2", "g1#0", "g1#1", "g2#0", "g2#1",
    ]  # fmt: skip
    assert [one.value for one in found] == [0, 1, 2, 0, 1, 0, 1]
    counts = asyncio.run(worker.counts())
    assert counts == GroupCounts(submitted=3, answered=3, scored=3, graded=7)


def test_the_figures_of_a_text_come_with_it(worker_of):
    done = answered(worker_of([RewardWorker()]), [make_request("g0", n=1)])
    (one,) = found_in(done)
    assert one.figures == {"reflection_words": 0.0}, "a single token has no n-grams"


def test_groups_that_end_together_are_spread_over_the_reward_workers_in_one_call_each(worker_of):
    rewards = [RewardWorker(), RewardWorker()]
    done = answered(worker_of(rewards), [make_request(f"g{i}") for i in range(1, 6)])
    assert [one.seen for one in rewards] == [
        [["g1#0", "g1#1", "g3#0", "g3#1", "g5#0", "g5#1"]],
        [["g2#0", "g2#1", "g4#0", "g4#1"]],
    ]
    assert [one.value for one in found_in(done)] == [0, 1] * 5


def test_an_error_of_a_reward_worker_ends_the_round(worker_of):
    class Broken:
        def __init__(self):
            self.compute_score = Method(self._score)

        async def _score(self, data):
            raise RuntimeError("the reward worker is gone")

    with pytest.raises(RuntimeError, match="is gone"):
        answered(worker_of([Broken()]), [make_request("g1")])


def test_a_worker_without_reward_workers_says_so(worker_of):
    with pytest.raises(ValueError, match="no reward worker"):
        worker_of([])
