"""How responses come to the reward workers: few calls, none of which waits for many grades."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("verl", reason="verl's reward worker")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from rollout_fakes import RewardWorker

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.verl_adapter.rollout_server.scoring import LEAST_IN_A_CALL, MOST_IN_A_CALL, GroupScorer


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
