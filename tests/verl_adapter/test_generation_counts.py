"""What a step's generation rounds are counted to have done, and what vLLM counts of the prompts it read."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's statistics")

import fake_ray
from fake_ray import Answer
from marsrl_script import ScriptedEngine
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from rollout_fakes import Worker, make_request, manager_of, member, streamed
from scheduler_tools import build
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import rollout_manager
from marsrl_verl.verl_adapter.rollout_server.generation import (
    Generation,
    Round,
    RoundCounts,
    executed_calls,
)
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import (
    PrefillCounters,
    keeps_statistics,
    read_counters,
)
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer

REQUESTS = [make_request("g")]


# --- vLLM's registry ------------------------------------------------------------------------------


@pytest.fixture
def logger_of_two_engines():
    """vLLM's own logger, as a front end with two engines behind it has it."""
    from vllm import EngineArgs
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    from marsrl_verl.demo.files import tiny_model

    yield PrometheusStatLogger(EngineArgs(model=tiny_model()).create_engine_config(), [0, 1])
    unregister_vllm_metrics()


def test_vllms_counters_are_added_up_over_its_engines(logger_of_two_engines):
    from vllm.v1.engine import FinishReason as VLLMFinishReason
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

    assert read_counters() == PrefillCounters()
    for engine, hits, seconds in ((0, 64, 0.5), (1, 16, 0.25)):
        cache, ended = PrefixCacheStats(), IterationStats()
        cache.record(100, hits, preempted=False)
        request = FinishedRequestStats(finish_reason=VLLMFinishReason.STOP, prefill_time=seconds)
        ended.finished_requests = [request]
        logger_of_two_engines.record(SchedulerStats(prefix_cache_stats=cache), ended, engine_idx=engine)
    found = PrefillCounters(prompt_tokens=200, cached_tokens=80, seconds=0.75)
    assert read_counters() == found
    assert asyncio.run(MarsRLvLLMServer.prefill_counters(SimpleNamespace())) == found


def test_without_statistics_there_is_nothing_to_read():
    assert read_counters() is None


def test_an_answer_is_seen_after_its_step_was_counted():
    from vllm.v1.engine.async_llm import AsyncLLM

    async def counted_when_the_caller_wakes() -> list[str]:
        events, answered, steps = [], asyncio.Event(), asyncio.Queue()

        def process(*_args: Any) -> SimpleNamespace:
            answered.set()
            return SimpleNamespace(request_outputs=[], reqs_to_abort=[])

        engine = MagicMock(output_handler=None, log_stats=True)
        engine.engine_core.get_output_async = steps.get
        engine.output_processor.process_outputs = process
        engine.logger_manager.record = lambda **_stats: events.append("counted")
        AsyncLLM._run_output_handler(engine)
        steps.put_nowait(MagicMock(outputs=["the last output of the round"]))
        await answered.wait()
        engine.output_handler.cancel()
        return list(events)

    assert asyncio.run(counted_when_the_caller_wakes()) == ["counted"]


@pytest.mark.parametrize(
    ("verls", "own", "kept"),
    [
        (True, {}, False),
        (False, {}, True),
        (True, {"vllm": {"disable_log_stats": False}}, True),
        (False, {"vllm": {"disable_log_stats": True}}, False),
        (False, {"vllm": {"disable_log_stats": None}}, True),
        (False, {"vllm": None}, True),
    ],
)
def test_statistics_are_kept_where_the_engine_is_told_to(verls, own, kept):
    assert keeps_statistics(OmegaConf.create({"disable_log_stats": verls, "engine_kwargs": own})) is kept


# --- the manager ----------------------------------------------------------------------------------


class Server:
    """A server whose engine reads a prompt of 10 tokens in each round, 4 of them from its cache."""

    def __init__(self, statistics: bool = True) -> None:
        self.statistics, self.readings = statistics, 0
        self.prefill_counters = fake_ray.Method(self._read)

    def _read(self) -> PrefillCounters | None:
        self.readings += 1
        found = PrefillCounters(10, 4, 0.5) if self.readings % 2 == 0 else PrefillCounters()
        return found if self.statistics else None


@pytest.fixture
def manager(monkeypatch):
    """Of a worker that answers every request with two trajectories of one prompt of three tokens."""

    def answer(item, k):
        return Trajectory(f"g#{k}", [Sequence("solver", [1, 2, 3], [4], [0.0])], FinishReason.STOP)

    return manager_of(monkeypatch, Worker(answer))


@pytest.mark.parametrize(
    ("statistics", "read", "shared"),
    [((True, True), PrefillCounters(20, 8, 1.0), 3), ((True, False), None, 0)],
    ids=["all servers", "one without"],
)
def test_a_round_tells_what_all_servers_read_in_it(manager, statistics, read, shared):
    manager.measure_prefill([Server(one) for one in statistics])
    done = manager.start(REQUESTS, {}).wait()
    assert (done.prefill, done.shared_prompt_tokens) == (read, shared)


def test_servers_are_read_before_the_round_is_given_out(monkeypatch):
    server, given_out_after = Server(), []

    def answer(item, k):
        given_out_after.append(server.readings)
        return member(item, k)

    manager = manager_of(monkeypatch, Worker(answer))
    manager.measure_prefill([server])
    manager.start(REQUESTS, {}).wait()
    assert (given_out_after, server.readings) == ([1, 1], 2)


def test_nobody_asks_for_an_evaluations_statistics(manager):
    server = Server()
    manager.measure_prefill([server])
    assert len(streamed(manager, REQUESTS)) == 1
    assert server.readings == 0


def test_without_servers_nothing_is_read_or_counted(manager, monkeypatch):
    monkeypatch.setattr(rollout_manager, "shared_tokens", lambda prompts: pytest.fail("prompts were counted"))
    assert manager.start(REQUESTS, {}).wait().prefill is None


def test_a_server_that_is_gone_is_an_engine_that_is_gone(manager):
    gone = fake_ray.actor(prefill_counters=lambda: Answer(error=ActorDiedError()))
    manager.measure_prefill([gone])
    with pytest.raises(EngineUnavailableError, match="gone"):
        manager.start(REQUESTS, {})


# --- a step's counts ------------------------------------------------------------------------------


@dataclass
class Done:
    outputs: list

    def wait(self) -> Round:
        return Round(self.outputs, 0.25)


class Engine(ScriptedEngine):
    def start(self, requests, sampling) -> Done:
        return Done(self.generate(requests, sampling))


def test_a_long_answer_is_counted_segment_by_segment():
    # The prompt is `user: 1 + 1`, 11 bytes; the answers have 50 and 30 bytes, a segment 20.
    problem = Problem("p0", "1 + 1", "2", messages=({"role": "user", "content": "1 + 1"},))
    engine = Engine(lambda item, k: Reply("x" * (50 if k == 0 else 30)))
    method = build(MarsRL, MathPrompts(), group_size=2, train_roles=["solver"])
    scheduler = Scheduler(method, "pipelined")
    generation = Generation(scheduler, engine, {"solver": Sampling(100, 100, segment_tokens=20)})
    counts = []
    for step in (1, 2, 3):
        scheduler.start_step(step, [problem] if step == 1 else [])
        counts.append(generation.finish())
        scheduler.finish_step()
    # Neither did an engine tell what it read, nor did a tool run.
    assert counts == [
        RoundCounts(rounds=1, trajectories=2, tokens=40, continued_tokens=0, seconds=0.25),
        RoundCounts(rounds=1, trajectories=2, tokens=30, continued_tokens=2 * (11 + 20), seconds=0.25),
        RoundCounts(rounds=1, trajectories=1, tokens=10, continued_tokens=11 + 40, seconds=0.25),
    ]


def called(number: int, *calls: tuple[str, bool]) -> Trajectory:
    events = [{"kind": "tool", "call_id": name, "executed": ran} for name, ran in calls]
    return Trajectory(f"g#{number}", [], FinishReason.STOP, events=[*events, {"kind": "other"}])


def test_tool_calls_count_once_however_many_trajectories_share_them():
    counts = RoundCounts()
    shared = ("g#0/0", True)
    forks = [called(0, shared, ("g#0/1", True)), called(1, shared, ("g#1/1", True), ("g#1/2", False))]
    counts.add(Round([RolloutOutput("g", forks)], 0.25))
    assert counts.tool_calls == 3
    # A later round of trajectories that were paused.
    later = called(0, shared, ("g#0/1", True), ("g#0/2", True))
    counts.add(Round([RolloutOutput("g", [later])], 0.25), executed_calls(forks))
    assert counts.tool_calls == 4
    assert counts.metrics()["rollout/executed_tool_calls"] == 4


def metrics_of(*rounds: Round) -> dict[str, float]:
    counts = RoundCounts()
    for one in rounds:
        counts.add(one)
    return counts.metrics()


def test_hits_beyond_what_a_rounds_prompts_share_make_up_for_no_other_round():
    missed = Round([], 1.0, PrefillCounters(100, 10, 0.5), shared_prompt_tokens=40)
    from_before = Round([], 1.0, PrefillCounters(100, 90, 0.5), shared_prompt_tokens=60)
    metrics = metrics_of(missed, from_before)
    assert metrics["rollout/prompt_tokens"] == 200
    assert metrics["rollout/prefix_cache_hit_frac"] == 100 / 200
    assert metrics["rollout/shared_prompt_tokens"] == 100
    assert metrics["rollout/shared_prefix_hit_frac"] == (10 + 60) / 100
    assert metrics["rollout/prefill_seconds"] == 1.0


READ = {"prefill_seconds", "prompt_tokens", "prefix_cache_hit_frac", "shared_prompt_tokens",
        "shared_prefix_hit_frac"}  # fmt: skip


@pytest.mark.parametrize(
    ("read", "shared", "found"),
    [
        pytest.param(None, 0, set(), id="no statistics"),
        pytest.param(PrefillCounters(0, 0, 0.5), 40, {"prefill_seconds"}, id="the cache is off"),
        pytest.param(PrefillCounters(50, 0, 0.5), 0, READ - {"shared_prefix_hit_frac"}, id="none shared"),
        pytest.param(PrefillCounters(50, 0, 0.5), 40, READ, id="all but calls of tools"),
    ],
)
def test_what_was_not_observed_is_absent(read, shared, found):
    names = {name.removeprefix("rollout/") for name in metrics_of(Round([], 1.0, read, shared))}
    assert names & {*READ, "executed_tool_calls"} == found


def test_a_state_that_was_written_without_these_counts_is_continued():
    older = {"rounds": 2, "trajectories": 9, "tokens": 70, "continued_tokens": 5, "seconds": 0.5}
    generation = Generation(MagicMock(), MagicMock(), {})
    generation.load_state_dict(older)
    assert generation.state_dict() == {**asdict(RoundCounts()), **older}
    generation.load_state_dict(generation.state_dict())
