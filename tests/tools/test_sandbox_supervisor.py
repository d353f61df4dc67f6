"""A sandbox ends with its supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SUPERVISOR_KILLED = """
import os, signal, socket, sys
from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.isolation import layout_of, rules_for
from marsrl_verl.tools.python.jail import init, syscalls
from marsrl_verl.tools.python.jail.rules import Site, receive
from marsrl_verl.tools.python.jail.supervisor import Supervisor

syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
syscalls.end_with_parent = lambda: None  # as for a process whose parent ended before it could ask for it
settings = PythonConfig(target="python", preload=[], memory_mb=256)
proc = os.open("/proc", os.O_PATH)
site = Site(proc, address_space=init.address_space_of(proc))
ours, theirs = socket.socketpair()
supervisor = os.fork()
if supervisor == 0:
    ours.close()
    Supervisor(theirs, rules_for(settings, Isolation.SECCOMP, layout_of(sys.executable)), site, 0).run()
theirs.close()
assert receive(ours) == {"ready": True}
os.kill(supervisor, signal.SIGKILL)
try:
    while True:
        os.waitpid(-1, 0)
except ChildProcessError:
    print("all have ended")
"""


def test_a_program_without_a_supervisor_ends():
    """Also where the kernel was not asked in time to end it."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    script = subprocess.Popen([sys.executable, "-c", SUPERVISOR_KILLED], start_new_session=True, **piped)
    try:
        said, failed = script.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        left = _children(script.pid)
        for process in left:
            os.kill(process, signal.SIGKILL)
        script.communicate()
        pytest.fail(f"{len(left)} processes were left")
    assert said == "all have ended\n", failed


def _children(process: int) -> list[int]:
    """And theirs."""
    below = [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [*below, *(pid for one in below for pid in _children(one))]
