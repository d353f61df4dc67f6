"""What the processes of a sandbox take together is bounded, and ordinary programs work within it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.isolation import layout_of, rules_for
from marsrl_verl.tools.python.jail import supervisor
from marsrl_verl.tools.python.jail.rules import Site
from marsrl_verl.tools.python.jail.supervisor import Supervisor
from marsrl_verl.tools.python.jail.usage import Process, Usage, lower_priority
from marsrl_verl.tools.python.tool import PythonTool

pytestmark = pytest.mark.slow


def run(*programs: str, **given: Any) -> list[ToolResult]:
    """What programs return, one after the other, where they may start processes."""

    async def all_of_them() -> list[ToolResult]:
        usual = {"memory_mb": 128, "max_processes": 16, "timeout_s": 20.0, "prewarmed": 1, "retries": 0}
        config = PythonConfig(target="python", **{**usual, "min_isolation": "namespaces", **given})
        tool = PythonTool("python", config, seed=1)
        try:
            await tool.start()
        except ToolUnavailableError as error:
            pytest.skip(str(error))
        try:
            return [await tool.call(ToolCall("python", {"code": code}, "g#0/0")) for code in programs]
        finally:
            await tool.close()

    return asyncio.run(all_of_them())


EXECUTED = """
import os, sys, time
kept = "import time; x = bytearray(b'1') * (30 * 2**20); print('held', flush=True); time.sleep(60)"
for _ in range(12):
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-S', '-c', kept])
    time.sleep(0.05)
time.sleep(60)
"""
SHARED = """
import os, time
kept = bytearray(b'1') * (80 * 2**20)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
for _ in range(4): os.wait()
print('fine')
"""


def test_each_interpreter_of_its_own_counts_and_what_forks_share_counts_once():
    executed, shared = run(EXECUTED, SHARED, preload=["numpy", "sympy"])
    assert executed.info["ended"] == "memory" and executed.text.count("held") < 9, executed
    assert (shared.text, shared.outcome) == ("fine", ToolOutcome.OK)


ORDINARY = {
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nasyncio.run(f())",
        "3",
    ),
    "a pool": (
        "import multiprocessing as m\nwith m.Pool(3) as pool: print(pool.map(abs, [-1, -2]))",
        "[1, 2]",
    ),
    "a manager": (
        "import multiprocessing as m\nwith m.Manager() as one:\n    d = one.dict(a=1)\n    print(dict(d))",
        "{'a': 1}",
    ),
    "shared values": ("import multiprocessing as m\nm.Value('i', 3).value + m.Array('d', 10)[0]", "3.0"),
    "shared memory": (
        "from multiprocessing import shared_memory as s\nx = s.SharedMemory(create=True, size=100)\n"
        "print(x.size)\nx.unlink()",
        "100",
    ),
    "an executor": (
        "import concurrent.futures as c\nwith c.ProcessPoolExecutor(2) as p: print(list(p.map(abs, [-1])))",
        "[1]",
    ),
    "a database": (
        "import sqlite3\nd = sqlite3.connect('/tmp/x.db')\nd.execute('create table a (b)')\nd.commit()\n"
        "d.execute('insert into a values (1)').rowcount",
        "1",
    ),
    "a command": ("import subprocess as s\ns.run(['echo', '1'], capture_output=True, text=True).stdout", "1"),
    "numpy": ("import numpy as np\nfloat(np.linalg.det(np.ones((300, 300)) + np.eye(300)) > 0)", "1.0"),
    "a mapped file": (
        "import numpy as np\nx = np.memmap('/tmp/x', dtype='f4', mode='w+', shape=(10,))\nfloat(x.sum())",
        "0.0",
    ),
}


def test_ordinary_programs_work():
    results = run(*[code for code, _ in ORDINARY.values()], preload=["numpy"])
    found = {name: one.text.strip() for name, one in zip(ORDINARY, results, strict=True)}
    assert found == {name: text for name, (_, text) in ORDINARY.items()}


BUSY = """
import os
child = os.fork()
while os.sched_getscheduler(0) != os.SCHED_IDLE: pass
if child:
    os.wait()
    try: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError: print('lowered for good')
"""


def test_a_busy_program_soon_has_what_nobody_else_wants():
    (result,) = run(BUSY, preload=[])
    assert (result.text, result.outcome) == ("lowered for good", ToolOutcome.OK)


def test_a_session_of_its_own_gives_no_priority():
    """Linux shares time out by sessions first where `sched_autogroup_enabled` is set."""
    proc, (out, into) = os.open("/proc", os.O_PATH), os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.write(into, b"x")
        signal.pause()
    try:
        os.read(out, 1)
        group = Path(f"/proc/{child}/autogroup")
        if not group.exists():
            pytest.skip("this kernel has no groups by sessions")
        lower_priority(proc, [Process(child, (child,))])
        assert os.sched_getscheduler(child) == os.SCHED_IDLE
        assert group.read_text().split()[-1] == "19"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Used:
    """As much as a test says."""

    def __init__(self, seconds: float, over: tuple[bool, ...] = (False,)) -> None:
        self._seconds, self._over = seconds, iter(over)

    def processes(self) -> list[Process]:
        return []

    def seconds(self, _: Any) -> float:
        return self._seconds

    def exceeds(self, *_: Any) -> bool:
        return next(self._over)


@pytest.mark.parametrize(
    ("used", "why"),
    [
        (Used(0.5), ""),
        (Used(3.9), ""),
        (Used(4.1), "cpu"),
        (Used(0.5, (True, True)), "memory"),
        (Used(0.5, (True, False)), ""),  # a child of vfork, which has its parent's memory for a moment
    ],
)
def test_what_ends_a_program(used, why):
    settings = PythonConfig(target="python", preload=[], timeout_s=4.0)
    rules = rules_for(settings, Isolation.SECCOMP, layout_of(sys.executable))
    assert Supervisor(None, rules, Site(-1), 0)._look(used) == why


def test_processor_time_of_all_processes_is_told():
    config = PythonConfig(target="python", timeout_s=3.0)
    answer = {"why": "cpu", "left_out": 0, "head": "", "tail": "", "seconds": 1.0, "waited": 0.0}
    result = PythonTool("python", config, seed=1)._result(answer)
    assert result.outcome is ToolOutcome.TIMEOUT
    assert result.text == "[the program was ended after 3 s of processor time]"


def test_time_of_living_and_ended_processes_counts():
    proc = os.open("/proc", os.O_PATH)
    out, into = os.pipe()
    init = os.fork()
    if init == 0:
        supervisor.syscalls.end_with_parent()
        if (child := os.fork()) == 0:
            _burn(0.3)
            os._exit(0)
        os.waitpid(child, 0)
        if os.fork() == 0:
            _burn(0.3)
            os.write(into, b"x")
            signal.pause()
        signal.pause()
    try:
        usage = Usage(proc, init, 0)
        os.read(out, 1)
        assert 0.55 <= usage.seconds(usage.processes()) <= 1.0
    finally:
        for one in (*usage.processes(), Process(init, ())):
            os.kill(one.pid, signal.SIGKILL)
        os.waitpid(init, 0)


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
