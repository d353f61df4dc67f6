"""The rollout worker: its rounds, its calls of reward workers, the figures of texts."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl's agent loops")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

import rollout_fakes
from rollout_fakes import CHAT, SAMPLING, RewardWorker, make_request, member

from marsrl_verl.core.request import Problem
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.rollout_server.round_watch import GroupCounts
from marsrl_verl.verl_adapter.rollout_server.scoring import (
    LEAST_IN_A_CALL,
    MAX_IN_A_CALL,
    GroupScorer,
)
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult, RolloutWorker, RoundId, describe


def members(outputs: list[RolloutOutput]) -> list[Trajectory]:
    return [one for output in outputs for one in output.trajectories]


class Program:
    """A workflow without a model; later requests are answered first."""

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
        made._runner.workflows = {"single_call": Program}
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
    assert counts == GroupCounts(submitted=3, answered=3, scored=3, graded=7, tokens=0)
    assert (counts.round, counts.before, counts.stages, counts.oldest) == (1, (0, 0, 0), {}, None)
    worker._client.tokens = 5
    asyncio.run(worker.run_requests((make_request("g3"),), SAMPLING, RoundId(2, 3)))
    counts = asyncio.run(worker.counts())
    assert (counts.round, counts.tokens, counts.before) == (2, 5, (3, 3, 5))


def test_a_request_that_is_given_up_is_forgotten(worker_of):
    worker = worker_of(RewardWorker())

    class Never:
        async def run(self, request, context):
            await asyncio.sleep(3600)

    worker._runner.workflows = {"single_call": Never}

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

    worker._runner.workflows = {"single_call": Blocks}
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
    assert LEAST_IN_A_CALL <= 200 <= MAX_IN_A_CALL


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
