import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from reward_tools import request

from marsrl_verl.rewards import grade_pool
from marsrl_verl.rewards.grade_pool import GradeFailure, GradePool, TooHard
from marsrl_verl.rewards.hybrid import HybridReward
from marsrl_verl.rewards.math_verify import MathVerifyReward
from marsrl_verl.rewards.running import TIMEOUT_S

pytestmark = pytest.mark.slow

BOMBS = (r"\boxed{9^{9^{9^9}}}", r"\boxed{100000!!}")


@pytest.fixture
def open_pool():
    """Makes pools that are closed with the test."""
    made: list[GradePool] = []

    def make(target: str, **options) -> GradePool:
        made.append(GradePool(target, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture(scope="module")
def reward():
    """What bombs and hostile answers meet, one after the other. It does all that MathVerifyReward does."""
    made = HybridReward(timeout_s=0.3)
    yield made
    made.close()


def test_processes_are_reused(open_pool):
    pool = open_pool("operator:add")
    assert (pool.starts, pool.forks) == (0, 0)
    assert [pool.call(i, 1) for i in range(5)] == [1, 2, 3, 4, 5]
    assert (pool.starts, pool.forks) == (1, 1)


def test_a_process_is_replaced_after_many_calls(open_pool, monkeypatch):
    monkeypatch.setattr(grade_pool, "CALLS_PER_GRADER", 3)
    pool = open_pool("os:getpid")
    first, second = {pool.call() for _ in range(3)}, {pool.call() for _ in range(3)}
    assert len(first) == len(second) == 1 and first != second
    assert pool.starts == 1


@pytest.mark.parametrize("call", [("reward_tools:never_ends", "hang", []), ("math:factorial", 10**9)])
def test_a_call_that_never_ends_is_ended_by_its_processor_time(open_pool, call):
    target, *arguments = call
    pool = open_pool(target, timeout_s=0.2)
    with pytest.raises(TooHard, match=r"took more than 0\.2 s of processor time"):
        pool.call(*arguments)
    assert pool.forks == 1, "it would take as long again"


def test_a_call_that_waits_is_ended_by_the_clock_and_asked_again(open_pool):
    pool = open_pool("time:sleep", wall_s=0.2)
    with pytest.raises(TooHard, match=r"took more than 0\.2 s, twice"):
        pool.call(60)
    assert pool.forks == 2
    assert pool.call(0) is None


def test_only_the_call_that_never_ends_is_delayed(open_pool):
    pool = open_pool("reward_tools:never_ends", processes=2, timeout_s=2.0)
    pool.call("warm", [])
    with ThreadPoolExecutor(2) as threads:
        bomb = threads.submit(pool.call, "hang", [])
        time.sleep(0.1)
        assert [pool.call(str(i), [str(i)])["correct"] for i in range(50)] == [True] * 50
        assert not bomb.done()
        with pytest.raises(TooHard):
            bomb.result()
    assert pool.call("5", ["5"])["correct"] is True
    assert pool.starts == 1


def test_calls_that_take_long_leave_their_places_to_brief_ones(open_pool):
    pool = open_pool("reward_tools:never_ends", processes=2, timeout_s=1.5)
    pool.call("warm", [])
    with ThreadPoolExecutor(2) as threads:
        bombs = [threads.submit(pool.call, "hang", []) for _ in range(2)]
        time.sleep(0.1)
        assert pool.call("5", ["5"])["correct"] is True
        assert not any(bomb.done() for bomb in bombs)
        assert all(isinstance(bomb.exception(), TooHard) for bomb in bombs)


def test_no_more_processes_than_asked_for(open_pool):
    pool = open_pool("reward_tools:process_after_a_while", processes=2)
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: pool.call(), range(16)))) == 2


OWNER = """
import threading, time
from marsrl_verl.rewards.grade_pool import GradePool
pool = GradePool('reward_tools:never_ends', timeout_s=1.5)
pool.call('warm', [])
threading.Thread(target=pool.call, args=('hang', []), daemon=True).start()
time.sleep(0.2)
print(pool._server.pid, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_when_the_owner_is_killed():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as owner:
        server = int(owner.stdout.readline())
        owner.kill()
    _wait_for_the_end_of(server)


def _wait_for_the_end_of(group: int) -> None:
    """Graders are reaped by whoever adopts them."""
    deadline = time.monotonic() + 30
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        pytest.fail("a grader outlived its owner")


def test_closing_ends_the_processes_and_a_later_call_starts_new_ones(open_pool):
    pool = open_pool("operator:add")
    assert pool.call(1, 2) == 3
    server = pool._server.pid
    pool.close()
    _wait_for_the_end_of(server)
    assert pool.call(1, 2) == 3
    assert pool.starts == 2


def test_a_killed_server_is_replaced(open_pool):
    pool = open_pool("operator:add")
    assert pool.call(1, 2) == 3
    os.killpg(pool._server.pid, signal.SIGKILL)
    assert [pool.call(i, 2) for i in range(3)] == [2, 3, 4]
    assert pool.starts == 2


# Not SIG_IGN, which the grader would inherit.
INTERRUPTED = """
import os, signal, threading
from marsrl_verl.rewards.grade_pool import GradePool
signal.signal(signal.SIGINT, lambda *_: None)
with_sleep = GradePool('time:sleep')
with_sleep.call(0)
threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()
print('graded', with_sleep.call(0.6), with_sleep.forks)
with_sleep.close()
"""


def test_ctrl_c_is_for_the_parent_alone():
    """A grader that it ended would make a right answer count as wrong."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, start_new_session=True)
    assert done.stdout == "graded None 1\n", done.stderr


def test_what_goes_wrong_in_the_process_is_told(open_pool):
    adder = open_pool("operator:add")
    with pytest.raises(GradeFailure, match="operator:add raised TypeError"):
        adder.call(1, "a")
    assert adder.call(1, 2) == 3
    assert adder.forks == 1
    with pytest.raises(GradeFailure, match="can't be imported: ModuleNotFoundError"):
        open_pool("no_such_module:f").call()
    with pytest.raises(GradeFailure, match="exit status 3, twice"):
        open_pool("reward_tools:dies").call("", [])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("reward_tools:greedy", "", []), "MemoryError"),
        (("reward_tools:nested", "", []), "RecursionError"),
        (("os:abort",), "SIGABRT, twice"),
    ],
)
def test_what_an_answer_does_to_its_process_is_the_answers_doing(open_pool, call, message):
    target, *arguments = call
    with pytest.raises(TooHard, match=message):
        open_pool(target).call(*arguments)


def test_what_a_library_prints_is_no_reply(open_pool):
    assert open_pool("reward_tools:noisy").call("7", []) == {"correct": True, "answer": "7", "error": None}


def test_any_text_reaches_the_process_unchanged(open_pool):
    text = "line\nbreak, “quotes”, \ud800, \u2028, \x00, " + "long " * 100_000
    assert open_pool("operator:concat").call(text, "!") == text + "!"


def test_threads_may_share_a_pool(open_pool):
    pool = open_pool("operator:mul", processes=3)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: pool.call(i, 2), range(100))) == [2 * i for i in range(100)]
    assert pool.forks <= 3


def test_settings_out_of_range_are_refused():
    for name, value in (("timeout_s", 0), ("memory_mb", 10), ("processes", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            HybridReward(**{name: value})


def test_a_bomb_is_a_wrong_answer(reward):
    for bomb in BOMBS:
        result = reward.score(request(bomb, "5"))
        assert (result.value, result.graded) == (0.0, True)
        assert result.error.startswith("timeout: ")
        assert bomb == rf"\boxed{{{result.info['answer']}}}"
    assert reward.score(request(r"\boxed{\sqrt{4}}", "2")).value == 1.0


def test_bombs_cost_no_more_than_their_own_processor_time(reward):
    # Not seconds: processor time is the same on a busy machine.
    ordinary = [(rf"\boxed{{\sqrt{{{k * k}}}}}", str(k)) for k in range(1000, 1040)]
    hard = [(bomb, str(k)) for k in (5, 6) for bomb in BOMBS]

    def one(answer):
        result = reward.score(request(*answer))
        assert (result.value, result.graded) == (float(answer not in hard), True)

    def graded(answers):
        used = _processor_seconds_of(reward.pool._server)
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, answers))
        return _processor_seconds_of(reward.pool._server) - used

    one(ordinary[0])  # starts the processes
    without, with_bombs = graded(ordinary), graded([*hard, *ordinary])
    assert with_bombs - without <= len(hard) * reward.pool.timeout_s + 1


def _processor_seconds_of(server) -> float:
    """Of a server and its graders, those that ended included."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        if int(fields[3]) == server.pid:  # its session
            ticks += sum(map(int, fields[11:13]))
            ticks += sum(map(int, fields[13:15])) if int(stat.parent.name) == server.pid else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def test_the_clock_leaves_time_within_the_limit_of_a_call():
    default, generous, endless = (MathVerifyReward(timeout_s=s) for s in (1.0, 20.0, 100.0))
    assert default.pool.wall_s == 30 and default.longest_s(1) < 100
    assert generous.longest_s(4) < TIMEOUT_S < endless.longest_s(4)
    assert generous.longest_s(5) == 2 * generous.longest_s(4)  # they wait for one of 4 processes
    assert HybridReward(timeout_s=20.0).longest_s(16) == generous.longest_s(16)


def test_text_that_tells_is_not_sent_to_a_process():
    with contextlib.closing(MathVerifyReward()) as reward:
        for text, truth, expected in [("2", "2", 1), ("3", "2", 0), ("0.5", r"\frac12", 1), ("x=2", "2", 1)]:
            assert reward.score(request(rf"\boxed{{{text}}}", truth)).value == expected
        assert reward.pool.starts == 0
        assert reward.score(request(r"\boxed{\sqrt{4}}", "2")).value == 1.0
        assert reward.pool.starts == 1


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + "9" * 5_000 + " 1/2}",
        r"\boxed{" + "9" * 5_000 + r"\frac{1}{2}}",
        r"\boxed{5\text{" + " " * 100_000 + "}}",
        r"\boxed{5\text{" + " " * 100_000,
        r"\boxed{" * 100_000,
        r"\boxed{1}, " * 50_000,
        r"\boxed{" + "(" * 50_000 + "}",
        r"\boxed{" + r"\frac{1}{" * 400 + "2" + "}" * 400 + "}",
        "the final answer is $" * 20_000,
    ],
    ids=lambda text: f"{text[:20]}…{len(text)}",
)
def test_hostile_answers_are_wrong_within_seconds(reward, text):
    start, used = time.monotonic(), time.process_time()
    result = reward.score(request(text, "7"))
    assert (result.value, result.graded) == (0.0, True)
    assert time.process_time() - used < 3, "in this process, on whose event loop others wait"
    assert time.monotonic() - start < 120
