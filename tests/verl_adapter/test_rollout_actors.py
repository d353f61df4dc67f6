"""From stage inputs to scored samples: workers, servers and reward workers, with fakes for Ray's actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import fake_ray
from fake_ray import Answer, FakeRay
from marsrl_verl.verl_adapter.group_client import GroupClient
from ray.exceptions import ActorDiedError, NodeDiedError, RayTaskError
from vllm.logprobs import FlatLogprobs
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.exceptions import EngineDeadError

from marsrl_verl.core.types import FinishReason, Outcome, Problem, Sample, SamplingSettings, StageInput
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.single_call import EngineUnavailableError
from marsrl_verl.verl_adapter import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.generation import Round
from marsrl_verl.verl_adapter.rollout_manager import MarsRLAgentLoopManager, MarsRLAgentLoopWorker
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer
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


# --- the client of verl's servers -----------------------------------------------------------------


class Servers:
    """verl's `LLMServerClient` with one server behind it."""

    def __init__(self, answer: Callable[..., list]) -> None:
        self.answer, self.calls, self.released = answer, [], []

    async def _acquire_server(self, request_id, **extra):
        self.acquired = (request_id, extra)
        return "server-0", SimpleNamespace(generate_group=Method(self._generate))

    def _release_server(self, server_id, request_id=None):
        self.released.append((server_id, request_id))

    async def _generate(self, prompt_ids, sampling, request_id, n):
        self.calls.append((prompt_ids, sampling, request_id, n))
        return self.answer(n)


def complete(servers: Servers, n: int = 2) -> list:
    return asyncio.run(GroupClient(servers).complete("group", [5, 6], SETTINGS, 4, n))


def test_a_group_is_one_request_with_the_roles_settings():
    servers = Servers(lambda n: [([7, 8], [-0.1, -0.2], "stop", 3), ([9], [-0.3], "length", 3)])
    first, second = complete(servers)
    assert (first.token_ids, first.log_probs, first.policy_version) == ([7, 8], [-0.1, -0.2], 3)
    assert [first.finish_reason, second.finish_reason] == [FinishReason.STOP, FinishReason.LENGTH]
    ((prompt, sampling, _, n),) = servers.calls
    assert (prompt, n) == ([5, 6], 2)
    assert sampling == {"max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": None}
    assert servers.acquired == ("group", {"prompt_ids": [5, 6], "n": 2})
    assert servers.released == [("server-0", "group")]


def test_a_group_that_is_asked_again_has_another_engine_id():
    servers = Servers(lambda n: [])
    complete(servers)
    complete(servers)
    first, second = (request_id for _, _, request_id, _ in servers.calls)
    assert first != second
    assert first.startswith("group:") and second.startswith("group:")


def test_an_aborted_request_is_n_samples_without_tokens():
    completions = complete(Servers(lambda n: []), n=3)
    assert [(one.token_ids, one.finish_reason) for one in completions] == [([], FinishReason.ABORTED)] * 3


def test_an_unknown_finish_reason_counts_as_aborted():
    (completion,) = complete(Servers(lambda n: [([7], [-0.1], "repetition", 0)]), n=1)
    assert completion.finish_reason is FinishReason.ABORTED


def through_ray(error: Exception, method: str = "generate_group") -> Exception:
    """As the caller of an actor sees what a method of it raised."""
    return RayTaskError(method, "Traceback: …", error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorDiedError(), EngineUnavailableError),
        (NodeDiedError("the node is gone"), EngineUnavailableError),
        (through_ray(EngineUnavailableError("the engine's process has ended")), EngineUnavailableError),
        (through_ray(ValueError("no")), ValueError),
        (ValueError("no"), ValueError),
    ],
)
def test_a_server_is_released_whatever_it_raises(error, expected):
    def fails(n):
        raise error

    servers = Servers(fails)
    with pytest.raises(expected):
        complete(servers)
    assert servers.released == [("server-0", "group")]


# --- the server -----------------------------------------------------------------------------------


class Engine:
    """vLLM's engine: hands out prepared outputs of a request."""

    def __init__(self, outputs: list[Any], refusal: Exception | None = None) -> None:
        self.outputs, self.refusal, self.aborted, self.added = list(outputs), refusal, [], []
        self.dead, self.core_answered = False, 0
        self.output_processor = SimpleNamespace(request_states={})

    async def add_request(self, request_id, prompt, params):
        if self.refusal is not None:
            raise self.refusal
        self.added.append((request_id, prompt["prompt_token_ids"], params))
        return SimpleNamespace(get=self._next)

    async def _next(self):
        output = self.outputs.pop(0)
        if isinstance(output, BaseException):
            raise output
        return output

    async def abort(self, request_id):
        self.aborted.append(request_id)

    async def check_health(self):
        if self.dead:
            raise EngineDeadError()

    async def is_sleeping(self):
        self.core_answered += 1
        return False


def server(engine: Engine, admitted: bool = True) -> SimpleNamespace:
    made = SimpleNamespace(engine=engine, global_steps=6, _admitting=0)

    async def admit(request_id):
        if not admitted:
            return "refused"
        made._admitting += 1
        return None

    made._park_until_admitted = admit
    made._generate_group = lambda *arguments: MarsRLvLLMServer._generate_group(made, *arguments)
    return made


def generate(made: SimpleNamespace, n: int = 2) -> list:
    sampling = {"max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    return asyncio.run(MarsRLvLLMServer.generate_group(made, [5, 6], sampling, "r", n))


def completion(tokens: list[int], reason: str | None) -> SimpleNamespace:
    log_probs = FlatLogprobs()
    for token in tokens:
        log_probs.append_fast([token], [-token / 10], iter([1]), [None])
    return SimpleNamespace(token_ids=tuple(tokens), logprobs=log_probs, finish_reason=reason)


def test_the_server_samples_a_group_with_one_engine_request():
    unfinished = SimpleNamespace(finished=False)
    done = SimpleNamespace(finished=True, outputs=[completion([1, 2], "stop"), completion([3], None)])
    engine = Engine([unfinished, done])
    made = server(engine)
    assert generate(made) == [([1, 2], [-0.1, -0.2], "stop", 6), ([3], [-0.3], "abort", 6)]
    ((_, prompt, params),) = engine.added
    assert prompt == [5, 6]
    assert (params.n, params.logprobs, params.max_tokens, params.top_k) == (2, 0, 4, 5)
    assert made._admitting == 0


def test_a_refused_admission_reaches_no_engine():
    engine = Engine([])
    assert generate(server(engine, admitted=False)) == []
    assert engine.added == []


def test_an_engine_that_refuses_a_request_does_not_hold_up_the_next_weight_sync():
    made = server(Engine([], refusal=ValueError("prompt too long")))
    with pytest.raises(ValueError, match="prompt too long"):
        generate(made)
    assert made._admitting == 0, "verl pauses the server only when nobody is being admitted"


def test_a_cancelled_call_ends_its_request_in_the_engine():
    engine = Engine([asyncio.CancelledError()])
    with pytest.raises(asyncio.CancelledError):
        generate(server(engine))
    assert engine.aborted == ["r"]


@pytest.mark.parametrize("engine", [Engine([], refusal=EngineDeadError()), Engine([EngineDeadError()])])
def test_a_dead_engine_is_told_from_a_refused_request(engine):
    with pytest.raises(EngineUnavailableError, match="has ended"):
        generate(server(engine))


def decoded(tokens: int) -> SimpleNamespace:
    detokenizer = IncrementalDetokenizer()
    detokenizer.update(list(range(tokens)), stop_terminated=False)
    return SimpleNamespace(detokenizer=detokenizer)


def test_a_pulse_tells_requests_and_tokens_so_far():
    engine = Engine([])
    engine.output_processor.request_states = {"a": decoded(3), "b": decoded(4)}
    assert asyncio.run(MarsRLvLLMServer.pulse(server(engine), True)) == (2, 7)
    assert engine.core_answered == 1
    assert asyncio.run(MarsRLvLLMServer.pulse(server(engine), False)) == (2, 7)
    assert engine.core_answered == 1, "the core is at something else"


def test_a_pulse_of_a_dead_engine_is_an_error():
    engine = Engine([])
    engine.dead = True
    with pytest.raises(EngineUnavailableError, match="has ended"):
        asyncio.run(MarsRLvLLMServer.pulse(server(engine), False))


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
