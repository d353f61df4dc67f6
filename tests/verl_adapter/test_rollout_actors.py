"""The manager of rollout workers, with fakes for Ray's actors."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import fake_ray
import rollout_fakes
from fake_ray import Answer, FakeRay, through_ray
from ray.exceptions import ActorDiedError
from rollout_fakes import SAMPLING, Worker, make_request, member, started, streamed

from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.round_watch import SAVABLE_ERRORS, GroupCounts
from marsrl_verl.verl_adapter.rollout_server.scoring import (
    without_tracebacks,
)
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RoundId

BOTH_WAYS = pytest.mark.parametrize("ask", [started, streamed])
RAISED = RewardResult(0.0, error="Mine: ValueError: no number", graded=False, raised=True)


def members(outputs: list[RolloutOutput]) -> list[Trajectory]:
    return [one for output in outputs for one in output.trajectories]


@pytest.fixture
def manager_of(monkeypatch):
    return functools.partial(rollout_fakes.manager_of, monkeypatch)


@pytest.mark.parametrize(("workers", "requests"), [(1, 4), (2, 5), (3, 1), (4, 4), (3, 11)])
def test_requests_are_dealt_out_evenly_and_each_is_answered_once(manager_of, workers, requests):
    manager = manager_of(*[Worker() for _ in range(workers)])
    names = [f"g{i}" for i in range(requests)]
    outputs = started(manager, [make_request(name) for name in names])
    assert sorted(one.group_id for one in outputs) == sorted(names)
    found = sorted(one.trajectory_id for one in members(outputs))
    assert found == sorted(f"{name}#{k}" for name in names for k in range(2))
    sizes = [len(worker.requests) for worker in manager.agent_loop_workers]
    assert max(sizes) - min(sizes) <= 1


def test_a_round_takes_as_long_as_its_slowest_worker(manager_of):
    manager = manager_of(Worker(), Worker())
    assert manager.start([make_request(name) for name in "abc"], SAMPLING).wait().seconds == 2.0
    nothing = manager.start([], SAMPLING).wait()
    assert (nothing.outputs, nothing.seconds) == ([], 0.0)


def test_requests_are_answered_one_by_one(manager_of):
    manager = manager_of(Worker(), Worker())
    assert manager.outputs() == []
    manager.submit([make_request("a"), make_request("b")], SAMPLING)
    manager.submit([make_request("c")], SAMPLING)
    slow, late = Answer(silent=True), make_request("d")
    manager._streamed[slow] = late
    assert sorted(one.group_id for one in manager.outputs()) == ["a", "b", "c"]
    assert list(manager._streamed) == [slow], "what is not there yet is waited for the next time"
    slow.silent, slow.value = False, RequestResult(RolloutOutput("d", [member(late, 0)]), 1.0)
    assert [one.group_id for one in manager.outputs()] == ["d"]
    assert manager.outputs() == []


def test_workers_take_turns_however_few_requests_come_at_a_time(manager_of):
    manager = manager_of(Worker(), Worker(), Worker())
    for name in "abcdef":
        streamed(manager, [make_request(name)])
    assert [len(worker.requests) for worker in manager.agent_loop_workers] == [2, 2, 2]


def test_after_a_sync_sessions_are_new_ones(manager_of):
    manager = manager_of(Worker())
    started(manager, [make_request("a")])
    manager.forget_routes()
    started(manager, [make_request("a")])
    assert manager.agent_loop_workers[0].rounds == {RoundId(1, 0), RoundId(2, 1)}


@BOTH_WAYS
def test_requests_without_a_single_answer_are_a_broken_engine(manager_of, ask):
    def fails(item, k):
        return member(item, k, FinishReason.STOP if item.group_id == "answered" else FinishReason.ERROR)

    requests = [make_request(name) for name in "abcdefg"]
    assert len(ask(manager_of(Worker(fails)), [*requests, make_request("answered")])) == 8
    with pytest.raises(EngineUnavailableError, match="last 8 requests"):
        ask(manager_of(Worker(fails)), [*requests, make_request("h")])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(
            through_ray(EngineUnavailableError("server 0 is gone")), "^server 0 is gone$", id="engine"
        ),
        pytest.param(ActorDiedError(), "has died", id="rollout worker"),
        pytest.param(through_ray(ActorDiedError()), "has died", id="reward worker"),
    ],
)
def test_what_has_died_ends_the_round_with_a_state_that_can_be_saved(manager_of, ask, error, said):
    broken = Worker()
    broken.run_requests = broken.run_request = fake_ray.Method(lambda *_: Answer(error=error))
    with pytest.raises(SAVABLE_ERRORS, match=said):
        ask(manager_of(Worker(), broken), [make_request("a"), make_request("b")])


def test_a_round_is_watched_while_it_lasts(manager_of, monkeypatch):
    worker = fake_ray.actor(run_requests=lambda *_: Answer(silent=True), counts=lambda: GroupCounts(1, 0, 0))
    manager, ray = manager_of(worker), FakeRay()
    monkeypatch.setattr(engine_watch, "ray", ray)
    monkeypatch.setattr(engine_watch, "running_process", lambda _: "")
    stopped = fake_ray.actor(pulse=lambda through_core: Answer(silent=True))
    manager.watch(EngineWatch([stopped], 20.0, ray.clock), 500.0)
    with pytest.raises(EngineUnavailableError, match="no sign of life for 20 s"):
        started(manager, [make_request("a")])


def test_a_reward_that_raises_too_often_ends_the_run_as_configured(manager_of):
    graded = Worker(lambda item, k: member(item, k, reward=RewardResult(0.0)))
    raises = Worker(lambda item, k: member(item, k, reward=RAISED))
    manager = manager_of(graded, raises, words=("marsrl.reward.verifier.max_failed_frac=0.8",))
    for _ in range(3):
        started(manager, [make_request(f"v{i}", "verifier") for i in range(8)])
    requests = [make_request(f"s{i}") for i in range(8)]
    started(manager, requests)
    with pytest.raises(RewardUnavailableError, match=r"solver raised in 16 of 32 .*Mine: ValueError"):
        started(manager, requests)


def test_of_an_episode_each_grade_counts_for_the_role_whose_reward_gave_it(manager_of):
    """The Solver's is never at fault, and its limit does not excuse the Verifier's."""
    graded = RewardResult(1.0)
    episodes = Worker(lambda item, k: member(item, k, reward=graded, verifier=graded if k else RAISED))
    limits = ("marsrl.reward.solver.max_failed_frac=0", "marsrl.reward.verifier.max_failed_frac=0.4")
    manager, requests = manager_of(episodes, words=limits), [make_request(f"s{i}") for i in range(8)]
    started(manager, requests)
    with pytest.raises(RewardUnavailableError, match=r"verifier raised in 16 of 32 .*Mine: ValueError"):
        started(manager, requests)


@pytest.fixture
def rounds(manager_of):
    """Asks for 4 groups of 8; two grades of a group whose name begins with `bad` fail."""

    def answer(item, k):
        fails = k < 2 and item.group_id.startswith("bad")
        return member(item, k, reward=RAISED if fails else RewardResult(1.0))

    manager = manager_of(Worker(answer))
    return lambda ask, kind: ask(manager, [make_request(f"{kind}{k}", n=8) for k in range(4)])


def test_good_held_out_rows_do_not_hide_bad_training_rows(rounds):
    rounds(started, "bad")
    rounds(streamed, "good")
    with pytest.raises(RewardUnavailableError, match=r"16 of 64 grades of its last 2 rounds"):
        rounds(started, "bad")


def test_a_bad_evaluation_is_no_bad_round_of_training(rounds):
    rounds(streamed, "bad")
    rounds(started, "bad")
    rounds(started, "good")
    with pytest.raises(RewardUnavailableError, match="no number"):
        rounds(streamed, "bad")


def test_a_reward_that_holds_its_threads_ends_the_run_with_a_sentence():
    """As Ray hands it on: from the reward worker to the rollout worker, and from there to the driver."""
    first = through_ray(RewardUnavailableError("no thread is left"), "run_single")
    last = without_tracebacks(through_ray(without_tracebacks(first), "run_requests"))
    assert type(last) is RewardUnavailableError
    assert str(last) == "no thread is left"
    other = through_ray(KeyError("x"))
    assert without_tracebacks(other) is other


def test_verls_own_way_to_generate_is_refused_with_the_right_one(manager_of):
    with pytest.raises(TypeError, match="call start or submit"):
        manager_of().generate_sequences(None)


class Once:
    """A worker whose call brings what it is given."""

    def __init__(self, call) -> None:
        self.run_request = SimpleNamespace(remote=lambda *_: asyncio.ensure_future(call()))


def test_a_request_for_an_event_loop_says_when_its_process_is_gone(manager_of):
    async def dead():
        raise ActorDiedError()

    async def engine_dead():
        raise through_ray(EngineUnavailableError("the engine's process has ended"), "run_request")

    async def held():
        raise through_ray(RewardUnavailableError("no thread is left"), "run_request")

    async def right():
        return RequestResult(RolloutOutput("g0", []), 1.0)

    def answer(call):
        return asyncio.run(manager_of(Once(call)).answer(make_request("g0"), SAMPLING))

    for gone in (dead, engine_dead):
        with pytest.raises(EngineUnavailableError):
            answer(gone)
    with pytest.raises(RewardUnavailableError, match=r"^no thread is left$"):
        answer(held)
    assert answer(right).group_id == "g0"


def test_a_request_that_is_given_up_is_cancelled_at_its_worker(manager_of, monkeypatch):
    cancelled = []
    monkeypatch.setattr(rollout_manager.ray, "cancel", cancelled.append)

    async def never():
        await asyncio.sleep(3600)

    async def give_up():
        asking = asyncio.ensure_future(manager_of(Once(never)).answer(make_request("g0"), SAMPLING))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(give_up())
    assert len(cancelled) == 1
