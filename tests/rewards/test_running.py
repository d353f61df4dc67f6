"""Rewards that are called with a time limit: what they raise, return or never return."""

import asyncio
import inspect
import threading
import time

import pytest
from reward_tools import (
    AnswerAsInfo,
    Asynchronous,
    Constant,
    Raises,
    RaisesLater,
    ReturnsAwaitable,
    ReturnsNumber,
    request,
)

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ServiceError
from marsrl_verl.rewards.math_verify import MathVerifyReward
from marsrl_verl.rewards.running import RewardRunner, RewardUnavailableError

LIMIT_S = 0.05


def score(reward: RoleReward) -> RewardResult:
    return asyncio.run(RewardRunner(reward).score(request()))


class RaisesWhatItIsGiven(RoleReward):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def score(self, request):
        raise self.error


def test_rewards_run_beside_the_caller_and_coroutines_in_a_loop_of_their_own():
    ordinary, coroutine = Constant(), Asynchronous()
    assert score(ordinary) == RewardResult(1.0)
    assert ordinary.thread is not threading.main_thread()
    assert score(coroutine) == RewardResult(0.5)
    assert coroutine.thread is not threading.main_thread()
    assert score(ReturnsAwaitable()) == RewardResult(0.5)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Raises(), "): KeyError: 'no such answer'"),
        (RaisesLater(), "): ValueError: judge is offline"),
        (ReturnsNumber(), "score returned float, expected a RewardResult"),
        (Constant(float("nan")), "the reward is nan"),
        (AnswerAsInfo(), "the result's info is str, expected a mapping"),
        (RaisesWhatItIsGiven(SystemExit("done")), "SystemExit: done"),
        (Constant(1.0, note={"a", "b"}), "the result's info.answer is a builtins.set, expected plain values"),
    ],
)
def test_what_goes_wrong_in_a_reward_is_a_result(reward, message):
    result = score(reward)
    assert (result.value, result.graded, result.raised) == (0.0, False, True)
    assert message in result.error
    where = inspect.getsourcefile(type(reward))
    assert result.error.startswith(f"{type(reward).__name__} ({where}, line "), "also of a long error"


@pytest.mark.parametrize(
    "error", [ServiceError("the judge sleeps"), TimeoutError("9 s"), ConnectionResetError()]
)
def test_a_service_that_does_not_answer_is_no_fault_of_the_reward(error):
    result = score(RaisesWhatItIsGiven(error))
    assert (result.graded, result.raised) == (False, False)
    assert type(error).__name__ in result.error


def test_an_unfinished_response_is_paid_nothing():
    cut = request("2", reason=FinishReason.LENGTH)
    result = asyncio.run(RewardRunner(Constant(0.7, note="2")).score(cut))
    assert (result.value, result.info["answer"]) == (0.0, "2")


def test_a_reward_may_pay_unfinished_responses():
    class PaysAnyway(Constant):
        pays_unfinished = True

    result = asyncio.run(RewardRunner(PaysAnyway(0.7)).score(request(reason=FinishReason.LENGTH)))
    assert result.value == 0.7


class Blocks(RoleReward):
    """Does not return before it is let go, unless the response says otherwise."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.returned = threading.Semaphore(0)

    def score(self, request):
        if request.text != "quick":
            self.let_go.wait()
            self.returned.release()
        return RewardResult(1.0)


class BlocksItsLoop(Blocks):
    async def score(self, request):
        return super().score(request)


class NeverAnswers(RoleReward):
    async def score(self, request):
        await asyncio.sleep(3600)


@pytest.fixture
def blocks():
    reward = Blocks()
    yield reward
    reward.let_go.set()


def score_all(runner: RewardRunner, *texts: str) -> list[RewardResult]:
    async def run() -> list[RewardResult]:
        return list(await asyncio.gather(*[runner.score(request(text)) for text in texts]))

    return asyncio.run(run())


def test_a_call_over_its_limit_is_a_failed_grade_that_names_the_setting(blocks):
    runner = RewardRunner(blocks, LIMIT_S, "marsrl.reward.solver")
    slow, quick = score_all(runner, "slow", "quick")
    assert (slow.value, slow.graded, slow.raised) == (0.0, False, False)
    assert "no result within 0.05 s (marsrl.reward.solver.timeout_s)" in slow.error
    assert quick == RewardResult(1.0)


def test_a_thread_that_overruns_is_replaced_and_counts_until_it_returns(blocks):
    runner = RewardRunner(blocks, LIMIT_S, threads=2)
    assert [one.graded for one in score_all(runner, "slow", "quick", "quick")] == [False, True, True]
    blocks.let_go.set()
    assert blocks.returned.acquire(timeout=10)
    blocks.let_go.clear()
    # With the first thread still counted, this second one would be the last.
    deadline = time.monotonic() + 10
    while runner._threads._stuck and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [one.graded for one in score_all(runner, "slow", "quick")] == [False, True]


def test_a_reward_that_holds_every_thread_is_unavailable(blocks):
    runner = RewardRunner(blocks, LIMIT_S, "marsrl.reward.solver", threads=2)
    with pytest.raises(RewardUnavailableError, match=r"Blocks: no result .*solver.timeout_s\) in 2 calls"):
        score_all(runner, *["slow"] * 5)
    with pytest.raises(RewardUnavailableError, match="no thread is left"):
        score_all(runner, "quick")


def test_waiting_for_a_thread_is_not_the_rewards_time():
    class Takes(RoleReward):
        def score(self, request):
            time.sleep(0.03)
            return RewardResult(1.0)

    results = score_all(RewardRunner(Takes(), 0.5, threads=1), *["a"] * 20)
    assert all(one.graded for one in results), results


def test_a_reward_that_ends_its_calls_itself_is_not_given_up_before():
    class OwnQueue(RoleReward):
        def __init__(self):
            self.turns = threading.Semaphore(2)

        def score(self, request):
            with self.turns:
                time.sleep(0.02)
            return RewardResult(1.0)

        def longest_s(self, calls):
            return 10.0 * calls

    results = score_all(RewardRunner(OwnQueue(), LIMIT_S), *["a"] * 40)
    assert all(one.graded for one in results), results


def test_a_coroutine_over_its_limit_is_a_failed_grade():
    results = score_all(RewardRunner(NeverAnswers(), LIMIT_S), *["a"] * 40)
    assert not any(one.graded or one.raised for one in results)
    assert "no result within 0.05 s" in results[0].error


def test_a_coroutine_that_blocks_its_loop_costs_its_neighbours_and_later_calls_nothing(monkeypatch):
    monkeypatch.setattr("marsrl_verl.rewards.running._GRACE_S", 0.05)
    reward = BlocksItsLoop()
    runner = RewardRunner(reward, LIMIT_S)
    try:
        blocked, *others = score_all(runner, "slow", *["quick"] * 5)
        assert "the coroutine blocks its event loop" in blocked.error
        assert others == [RewardResult(1.0)] * 5
        assert score_all(runner, "quick") == [RewardResult(1.0)]
    finally:
        reward.let_go.set()


class NotesItsThreads(RoleReward):
    def __init__(self):
        self.threads = set()

    def score(self, request):
        self.threads.add(threading.current_thread())
        return RewardResult(1.0)


class NotesItsLoop(NotesItsThreads):
    async def score(self, request):
        return super().score(request)


@pytest.mark.parametrize("kind", [NotesItsThreads, NotesItsLoop])
def test_a_closed_runner_leaves_no_thread_behind(kind):
    reward = kind()
    runner = RewardRunner(reward)
    score_all(runner, "a", "b")
    assert reward.threads and all(one.is_alive() for one in reward.threads)
    runner.close()
    for one in reward.threads:
        one.join(10)
        assert not one.is_alive(), one.name


def test_under_load_no_good_answer_is_lost_to_the_graders_processes():
    """Many calls wait for few processes, some of which are lost to hopeless texts."""
    reward = MathVerifyReward(timeout_s=0.3, grader="reward_tools:never_ends", processes=2)
    runner = RewardRunner(reward, LIMIT_S)
    try:
        results = score_all(runner, *(["2"] * 20 + ["hang"]) * 3)
    finally:
        runner.close()
    assert all(one.graded for one in results), results
    assert [one.value for one in results] == ([1.0] * 20 + [0.0]) * 3
