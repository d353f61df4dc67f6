import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from reward_tools import request

from marsrl_verl.rewards.grade_process import GradeFailure, GradeProcess, GradeTimeout
from marsrl_verl.rewards.math_verify import MathVerifyReward


@pytest.fixture
def open_process():
    """Makes processes that are ended with the test."""
    made: list[GradeProcess] = []

    def make(target: str, **options) -> GradeProcess:
        made.append(GradeProcess(target, **options))
        return made[-1]

    yield make
    for process in made:
        process.close()


def test_a_process_is_started_once_and_reused(open_process):
    process = open_process("operator:add")
    assert process.starts == 0
    assert [process.call(i, 1) for i in range(5)] == [1, 2, 3, 4, 5]
    assert process.starts == 1


def test_a_call_that_never_ends_is_ended_and_the_next_one_works(open_process):
    process = open_process("reward_tools:never_ends", timeout_s=0.3)
    with pytest.raises(GradeTimeout, match=r"never_ends took longer than 0\.3 s"):
        process.call("hang", [])
    process.timeout_s = 30
    assert process.call("5", ["5"])["correct"] is True
    assert process.starts == 2


def test_a_call_inside_c_code_that_holds_the_interpreter_is_ended_too(open_process):
    process = open_process("math:factorial", timeout_s=0.3)
    with pytest.raises(GradeTimeout):
        process.call(10**9)


def test_the_worker_itself_gives_up_when_nobody_ends_it(open_process):
    running = open_process("math:factorial", timeout_s=0.001)._running()
    assert running.stdin is not None
    running.stdin.write(b"[1000000000]\n")
    running.stdin.flush()
    assert running.wait(timeout=60) == 1


def test_a_worker_whose_parent_is_gone_ends(open_process):
    running = open_process("operator:add")._running()
    assert running.stdin is not None
    running.stdin.close()
    assert running.wait(timeout=60) == 0


def test_ctrl_c_is_for_the_parent_alone():
    # A grader that it ended would make a right answer count as wrong.
    code = (
        "import os, signal, threading\n"
        "from marsrl_verl.rewards.grade_process import GradeProcess\n"
        # Not SIG_IGN, which the grader would inherit.
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "with_sleep = GradeProcess('time:sleep')\n"
        "with_sleep.call(0)\n"
        "threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()\n"
        "print('graded', with_sleep.call(0.6))\n"
        "with_sleep.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, start_new_session=True
    )
    assert done.stdout == "graded None\n", done.stderr


def test_what_goes_wrong_in_the_process_is_told(open_process):
    adder = open_process("operator:add")
    with pytest.raises(GradeFailure, match="operator:add raised TypeError"):
        adder.call(1, "a")
    assert adder.call(1, 2) == 3
    assert adder.starts == 1
    with pytest.raises(GradeFailure, match="can't be imported: ModuleNotFoundError"):
        open_process("no_such_module:f").call()
    with pytest.raises(GradeFailure, match="exit status 3"):
        open_process("reward_tools:dies").call("", [])
    with pytest.raises(GradeFailure, match="MemoryError"):
        open_process("reward_tools:greedy").call("", [])


def test_what_a_library_prints_is_no_reply(open_process):
    assert open_process("reward_tools:noisy").call("7", []) == {"correct": True, "answer": "7", "error": None}


def test_any_text_reaches_the_process_unchanged(open_process):
    text = "line\nbreak, “quotes”, \ud800, \u2028, \x00, " + "long " * 100_000
    assert open_process("operator:concat").call(text, "!") == text + "!"


def test_threads_may_share_a_process(open_process):
    process = open_process("operator:mul")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: process.call(i, 2), range(100))) == [2 * i for i in range(100)]
    assert process.starts == 1


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="timeout_s is 0"):
        MathVerifyReward(timeout_s=0)
    with pytest.raises(ValueError, match="memory_mb is 10"):
        MathVerifyReward(memory_mb=10)


def test_the_reward_turns_a_timeout_into_an_outcome():
    reward = MathVerifyReward(timeout_s=0.3, grader="reward_tools:never_ends")
    hung = reward.score(request("hang", "5"))
    assert hung.reward == 0.0
    assert hung.error.startswith("timeout: ")
    reward.process.timeout_s = 30
    assert reward.score(request("5", "5")).reward == 1.0
    reward.close()


def test_the_real_grader_works_in_its_process():
    reward = MathVerifyReward(timeout_s=60)
    assert reward.score(request(r"so \boxed{\sqrt{4}}", "2")).reward == 1.0
    assert reward.score(request(r"so \boxed{3}", "2")).reward == 0.0
    reward.close()
