"""The other side of a `GradePool`: imports the grading function once and forks a grader whenever one is
requested.

Started as `python -m marsrl_verl.rewards.grade_worker module:function processor_s memory_mb wall_s` with a
Unix socket as standard input. Each byte that comes over it brings a socket, for which a grader is forked; a
grader answers one JSON line with one JSON line. When a grader ends, its wait status is sent over its own
socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def main(target: str, processor_s: float, memory_mb: int, wall_s: float) -> None:
    """Forks graders until the pool closes its end or is gone."""
    control = socket.socket(fileno=os.dup(0))
    # Whatever a library prints or reads must not get between the messages.
    with open(os.devnull, "r+") as nothing:
        for descriptor in (0, 1):
            os.dup2(nothing.fileno(), descriptor)
    try:
        module_name, _, name = target.partition(":")
        module = importlib.import_module(module_name)
        function = getattr(module, name)
        getattr(module, "warm_up", lambda: None)()
    except Exception as error:
        _send(control, {"failed": f"{type(error).__name__}: {error}"})
        return
    gc.collect()
    gc.freeze()  # a collection in a grader would copy every page of the modules
    _send(control, {"ready": True})
    _serve(control, lambda place: _grade(place, function, processor_s, memory_mb, wall_s))


def _serve(control: socket.socket, grade: Callable[[socket.socket], NoReturn]) -> None:
    graders: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            _report_ends(graders)
        if control in readable:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            place = socket.socket(fileno=descriptors[0])
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (control, woken, wake, *graders.values()):
                    other.close()
                grade(place)
            graders[process] = place


def _report_ends(graders: dict[int, socket.socket]) -> None:
    while graders:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        with graders.pop(process) as place:
            try:
                _send(place, {"ended": status}, before="\n")
            except OSError:  # the pool has dropped this grader
                continue


def _grade(
    place: socket.socket, function: Any, processor_s: float, memory_mb: int, wall_s: float
) -> NoReturn:
    """Answer calls until the pool closes its end; never returns."""
    status = 1
    try:
        _limit_memory(memory_mb)
        for line in place.makefile("rb"):
            # The kernel ends the process when a time is up, even inside one endless C call and even when the
            # pool is gone. Processor time is what counts: it is the same on a busy machine.
            signal.setitimer(signal.ITIMER_PROF, processor_s)
            signal.setitimer(signal.ITIMER_REAL, wall_s)
            try:
                reply: dict[str, Any] = {"result": function(*json.loads(line))}
            except (MemoryError, RecursionError) as error:
                reply = {"exhausted": type(error).__name__}
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _send(place, reply)
        status = 0
    finally:
        os._exit(status)  # nothing of the server's clean-up, in whatever way this ended


def _limit_memory(megabytes: int) -> None:
    """A runaway expansion ends as a MemoryError here, not as a machine out of memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    requested = megabytes * 2**20
    limit = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _send(place: socket.socket, data: dict[str, Any], before: str = "") -> None:
    place.sendall(f"{before}{json.dumps(data)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
