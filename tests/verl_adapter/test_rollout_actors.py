"""From requests to scored trajectories: workers and reward workers, with fakes for Ray's actors."""

from __future__ import annotations

import asyncio
import functools
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import fake_ray
import rollout_fakes
from fake_ray import Answer, FakeRay, through_ray
from ray.exceptions import ActorDiedError
from rollout_fakes import CHAT, SAMPLING, RewardWorker, Worker, make_request, member, started, streamed

from marsrl_verl.core.request import Problem
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import engine_watch, rollout_manager
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.round_watch import SAVABLE_ERRORS, GroupCounts
from marsrl_verl.verl_adapter.rollout_server.scoring import (
    LEAST_IN_A_CALL,
    MOST_IN_A_CALL,
    GroupScorer,
    without_tracebacks,
)
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RolloutWorker, RoundId, describe

BOTH_WAYS = pytest.mark.parametrize("ask", [started, streamed])
RAISED = RewardResult(0.0, error="Mine: ValueError: no number", graded=False, raised=True)


def members(outputs: list[RolloutOutput]) -> list[Trajectory]:
    return [one for output in outputs for one in output.trajectories]


# --- the manager ----------------------------------------------------------------------------------


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
    """Ask for 4 groups of 8; two grades of a group whose name begins with `bad` fail."""

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


# --- the worker -----------------------------------------------------------------------------------


class Program:
    """A rollout program without a model; later requests are answered first."""

    async def run(self, request, context):
        await asyncio.sleep(0.02 if request.group_id == "g0" else 0)
        found = [member(request, k) for k in range(request.n)]
        for one, reward in zip(found, await context.score(found), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, found)


@pytest.fixture
def worker_of(monkeypatch):
    def make(*rewards) -> RolloutWorker:
        made = rollout_fakes.worker_of(monkeypatch, rewards=list(rewards))
        made._runner.programs = {"single_call": Program}
        return made

    return make


def answered(worker: RolloutWorker, *requests) -> list[RequestResult]:
    return asyncio.run(worker.run_requests(requests, SAMPLING, RoundId(1, 3)))


def test_outputs_come_back_in_the_order_of_the_requests_each_trajectory_with_its_reward(worker_of):
    worker = worker_of(RewardWorker(), RewardWorker())
    done = answered(worker, make_request("g0", n=3), make_request("g1"), make_request("g2"))
    found = members([one.output for one in done])
    assert max(one.seconds for one in done) >= 0.02
    assert worker._client.synced == 3, "sessions of before a sync are over"
    assert " ".join(one.trajectory_id for one in found) == "g0#0 g0#1 g0#2 g1#0 g1#1 g2#0 g2#1"
    assert [one.value for one in found] == [0, 1, 2, 0, 1, 0, 1]
    assert found[0].figures == {"reflection_words": 0.0}, "of its text: a single token has no n-grams"
    counts = asyncio.run(worker.counts())
    assert counts == GroupCounts(submitted=3, answered=3, scored=3, graded=7, tokens=7)
    assert (counts.round, counts.before, counts.stages, counts.oldest) == (1, (0, 0, 0), {}, None)


def test_a_request_that_is_given_up_is_forgotten(worker_of):
    worker = worker_of(RewardWorker())

    class Never:
        async def run(self, request, context):
            await asyncio.sleep(3600)

    worker._runner.programs = {"single_call": Never}

    async def give_up():
        asking = asyncio.ensure_future(worker.run_request(make_request("g0"), SAMPLING, RoundId(1, 0)))
        await asyncio.sleep(0)
        assert list(worker._running) == ["g0"]
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(give_up())
    assert not worker._running and not worker._answered
    assert asyncio.run(worker.counts()).submitted == asyncio.run(worker.counts()).scored == 1


def test_a_worker_tells_which_program_blocks_it_and_where(worker_of):
    worker, began, go = worker_of(RewardWorker()), threading.Event(), threading.Event()

    class Blocks:
        async def run(self, request, context):
            began.set()
            go.wait(20)
            return RolloutOutput(request.group_id, [])

    worker._runner.programs = {"single_call": Blocks}
    thread = threading.Thread(target=answered, args=(worker, make_request("g1")))
    thread.start()
    assert began.wait(20)
    said = asyncio.run(worker.running())
    go.set()
    thread.join()
    line = Blocks.run.__code__.co_firstlineno + 2
    assert said == f"single_call, at {__file__}, line {line}"
    assert not worker._running


def test_groups_that_end_together_are_spread_over_the_reward_workers_in_one_call_each(worker_of):
    rewards = RewardWorker(), RewardWorker()
    done = answered(worker_of(*rewards), *[make_request(f"g{i}") for i in range(1, 6)])
    assert [one.seen for one in rewards] == [
        [["g1#0", "g1#1", "g3#0", "g3#1", "g5#0", "g5#1"]],
        [["g2#0", "g2#1", "g4#0", "g4#1"]],
    ]
    assert [one.value for one in members([one.output for one in done])] == [0, 1] * 5


def test_an_error_of_a_reward_worker_ends_the_round(worker_of):
    async def score(data):
        raise RuntimeError("the reward worker is gone")

    broken = SimpleNamespace(compute_score=SimpleNamespace(remote=score))
    with pytest.raises(RuntimeError, match="is gone"):
        answered(worker_of(broken), make_request("g1"))


def test_a_worker_without_reward_workers_says_so(worker_of):
    with pytest.raises(ValueError, match="no reward worker"):
        worker_of()


# --- its calls of reward workers: few, none of which waits for many grades --------------------------


def group(name: str, size: int) -> list[ScoreRequest]:
    problem, stop = Problem("p", "?", "2"), FinishReason.STOP
    return [ScoreRequest(f"{name}#{k}", "solver", "solver", problem, "", "", stop) for k in range(size)]


def sizes(worker: RewardWorker) -> list[int]:
    return list(map(len, worker.seen))


def test_calls_grow_where_grades_come_quickly_and_shrink_where_they_do_not():
    async def run(seconds):
        ticks = iter(x * seconds for x in range(10**6))
        worker = RewardWorker()
        scorer = GroupScorer([worker], clock=lambda: next(ticks))
        for _ in range(2):
            await scorer.score(group("g", 200))
        return sizes(worker)

    full = [LEAST_IN_A_CALL] * (200 // LEAST_IN_A_CALL) + [200 % LEAST_IN_A_CALL]
    # The clock is read as a call begins and as it ends: one after the other took 0.8 s, and 1 ms.
    assert asyncio.run(run(0.8)) == full * 2
    assert asyncio.run(run(1e-5))[len(full) :] == [200]
    assert LEAST_IN_A_CALL <= 200 <= MOST_IN_A_CALL


def test_a_call_holds_no_more_than_a_reward_worker_grades_at_a_time():
    async def run():
        worker = RewardWorker()
        scorer = GroupScorer([worker])
        groups = await asyncio.gather(*[scorer.score(group(f"g{i}", 8)) for i in range(32)])
        assert [[one.value for one in results] for results in groups] == [[*range(8)]] * 32
        assert sizes(worker) == [LEAST_IN_A_CALL] * (256 // LEAST_IN_A_CALL)

    asyncio.run(run())


def test_no_group_waits_for_the_slowest_of_all():
    async def run():
        worker = RewardWorker(calls_at_once=1)
        scorer = GroupScorer([worker])
        first, second = (asyncio.ensure_future(scorer.score(group(f"g{i}", LEAST_IN_A_CALL))) for i in (0, 1))
        await asyncio.wait({first}, timeout=10)
        assert first.done() and not second.done()
        worker.let_go.set()
        assert len(await second) == LEAST_IN_A_CALL

    asyncio.run(run())


def test_the_scored_part_of_a_large_group_is_counted_and_the_group_comes_back_in_order():
    async def run():
        size = 2 * LEAST_IN_A_CALL + 1
        workers = [RewardWorker(), RewardWorker(calls_at_once=0)]
        scorer = GroupScorer(workers)
        whole = asyncio.ensure_future(scorer.score(group("g", size)))
        while scorer.graded < LEAST_IN_A_CALL + 1:
            await asyncio.sleep(0)
        assert not whole.done()
        workers[1].let_go.set()
        assert [one.value for one in await whole] == [*range(size)]
        assert scorer.graded == size

    asyncio.run(asyncio.wait_for(run(), timeout=20))


# --- figures of texts -----------------------------------------------------------------------------


def sequence(role: str, *parts: tuple[str, int]) -> Sequence:
    """Of (text, whether the policy sampled it)."""
    text = "".join(part for part, _ in parts)
    mask = [own for part, own in parts for _ in part]
    return Sequence(role, [1], list(map(ord, text)), [0.0] * len(text), mask, text=text)


def described(*sequences: Sequence) -> Trajectory:
    one = Trajectory("g#0", list(sequences), FinishReason.STOP, text="".join(s.text for s in sequences))
    describe(RolloutOutput("g", [one]), CHAT)
    return one


def test_words_and_tokens_of_tools_do_not_count():
    found = described(sequence("solver", ("wait, abcd", 1), ("however, check: abcd" * 9, 0), ("hmm", 1)))
    assert found.figures == {"reflection_words": 2.0, "distinct": pytest.approx(1.0)}


def test_each_of_several_sequences_has_figures_of_its_own():
    found = described(sequence("meta", ("wait, hmm", 1)), sequence("reasoning", ("a" * 30, 1)))
    meta, reasoning = (one.figures for one in found.sequences)
    assert found.figures == {}
    assert (meta["reflection_words"], reasoning["reflection_words"]) == (2.0, 0.0)
    assert reasoning["repetition"] == pytest.approx(10 / 11)
