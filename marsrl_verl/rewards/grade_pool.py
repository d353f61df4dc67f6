"""Run a grading function in processes of their own, which a time limit really ends.

Symbolic mathematics on text that a model wrote may run for ever or eat all memory, inside C code that
no handler interrupts. A server process imports the function once and forks graders, so one that was ended is
replaced within some hundredths of a second. The server is started with `subprocess`: neither fork, which is
unsafe beside the threads of a Ray actor, nor multiprocessing's spawn, which would run the parent's main
module again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any

CALLS_PER_GRADER = 1000
"""A grader is replaced after so many calls, before a library's caches fill its memory."""
_BRIEF_S = 0.25
"""A call that takes longer no longer counts as one of the `processes` that answer brief ones."""
_GRACE_S = 10.0
"""Seconds after the wall limit, at which the kernel ends a grader, for the news of its end to arrive."""
_LONG_ENOUGH_S = 60.0
_ANSWERS_DOING = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})


class TooHard(Exception):
    """The call exceeded the limits of time or memory, or crashed its process: its arguments caused
    that."""


class GradeFailure(Exception):
    """The function raised, or its process can't be started or was ended from outside."""


class _Grader:
    """The pool's end of one forked process, or of the server."""

    def __init__(self, place: socket.socket, server: subprocess.Popen[bytes] | None) -> None:
        self.place, self.server, self.calls = place, server, 0
        self._buffer = b""

    def ask(self, line: bytes) -> None:
        """Sends a call."""
        self.calls += 1
        try:
            self.place.settimeout(_GRACE_S)
            self.place.sendall(line)
        except OSError:  # it has ended; the news of that can still be read
            self._buffer = b""

    def reply(self, patience_s: float) -> dict[str, Any]:
        """Returns the process's reply; `{"ended": wait status}` if it ended (status None if the server is
        gone too); or `{"silent": True}`."""
        self.place.settimeout(patience_s)
        try:
            return self._read()
        except TimeoutError:
            return {"silent": True}
        except (OSError, ValueError):  # half a reply
            return {"ended": None}

    def _read(self) -> dict[str, Any]:
        line = b""
        while not line:
            while b"\n" not in self._buffer:
                chunk = self.place.recv(65536)
                if not chunk:
                    return {"ended": None}
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


class GradePool:
    """Calls one function of JSON-able arguments in a few reusable processes. Safe to share among threads.

    Args:
        target: `package.module:function`, importable in a fresh interpreter with this one's path. The module
            must not start threads. A function `warm_up` in it is called once, before the first fork.
        processes: most calls at the same time, and as many again that take long. Processes are forked when
            they are needed.
        timeout_s: most seconds of processor time per call; a busy machine does not shorten it.
        memory_mb: most address space of a process.
        wall_s: most seconds per call by the clock; None: 30 times `timeout_s` or `_LONG_ENOUGH_S`, whichever
            is less, but at least 3 times `timeout_s`.
        start_timeout_s: most seconds until the server has imported the function.
    """

    def __init__(
        self,
        target: str,
        *,
        processes: int = 4,
        timeout_s: float = 1.0,
        memory_mb: int = 4096,
        wall_s: float | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s}, expected more than 0")
        if memory_mb < 512:
            raise ValueError(f"memory_mb is {memory_mb}, expected at least 512")
        if processes < 1:
            raise ValueError(f"processes is {processes}, expected at least 1")
        self.target, self.timeout_s, self.memory_mb, self.processes = target, timeout_s, memory_mb, processes
        self.wall_s = max(3 * timeout_s, min(30 * timeout_s, _LONG_ENOUGH_S)) if wall_s is None else wall_s
        self.start_timeout_s = start_timeout_s
        self.starts = self.forks = 0
        """Starts of the server, and forks of a process."""
        self._turns, self._long_turns = threading.Semaphore(processes), threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Grader] = []

    def longest_s(self, calls: int) -> float:
        """Most seconds of a call by the clock while there are `calls` at a time: two attempts, each behind
        those that have the processes."""
        return 2 * math.ceil(calls / self.processes) * (_BRIEF_S + self.wall_s + _GRACE_S)

    def call(self, *arguments: Any) -> Any:
        """Calls the function.

        A call whose process got too little of the machine or died is repeated once, behind those that
        wait. One that used up its processor time is not: it would do so again.

        Raises:
            TooHard: too much time or memory, or the process crashed twice over it.
            GradeFailure: the function raised, or there is no process; the message says how.
        """
        line = (json.dumps(arguments) + "\n").encode()
        reply = self._ask(line)
        if _is_over(reply) and _signal(reply.get("ended")) is not signal.SIGPROF:
            reply = self._ask(line)
        if "result" in reply:
            return reply["result"]
        if "error" in reply:
            raise GradeFailure(f"{self.target} raised {reply['error']}")
        if "exhausted" in reply:
            raise TooHard(f"{self.target} ended with {reply['exhausted']}")
        raise self._end(reply)

    def close(self) -> None:
        """Ends all processes; calls that run fail. A later call would start new ones."""
        with self._lock:
            self._stop()

    def _ask(self, line: bytes) -> dict[str, Any]:
        with ExitStack() as brief:
            brief.enter_context(self._turns)
            grader = self._take()
            grader.ask(line)
            reply = grader.reply(_BRIEF_S)
            if "silent" not in reply:
                return self._release(grader, reply)
            with self._long_turns:
                brief.close()  # the next one need not wait for this one
                return self._release(grader, grader.reply(self.wall_s + _GRACE_S))

    def _release(self, grader: _Grader, reply: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            is_current = grader.server is self._server
            if is_current and reply.get("ended", 0) is None:
                self._stop()  # nobody was left to say how the process ended
            if _is_over(reply) or grader.calls >= CALLS_PER_GRADER or not is_current:
                grader.place.close()
            else:
                self._idle.append(grader)
        return reply

    def _end(self, reply: dict[str, Any]) -> Exception:
        status = reply.get("ended")
        ended_by = _signal(status)
        if ended_by is signal.SIGPROF:
            return TooHard(f"timeout: {self.target} took more than {self.timeout_s:g} s of processor time")
        if ended_by is signal.SIGALRM or "silent" in reply:
            return TooHard(f"timeout: {self.target} took more than {self.wall_s:g} s, twice")
        if ended_by in _ANSWERS_DOING:
            return TooHard(f"{self.target}: its process ended with {ended_by.name}, twice")
        if status is None:
            return GradeFailure(f"{self.target}: its processes were ended, twice")
        how = ended_by.name if ended_by else f"exit status {os.waitstatus_to_exitcode(status)}"
        return GradeFailure(f"{self.target}: its process ended with {how}, twice")

    def _take(self) -> _Grader:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._running(), [b"+"], [theirs.fileno()])
                except OSError:  # the server is gone
                    self._stop()
                    socket.send_fds(self._running(), [b"+"], [theirs.fileno()])
            self.forks += 1
            return _Grader(ours, self._server)

    def _running(self) -> socket.socket:
        """The way to the server, which is started if there is none."""
        if self._control is not None and self._server is not None and self._server.poll() is None:
            return self._control
        self._stop()
        worker = "marsrl_verl.rewards.grade_worker"
        limits = (self.timeout_s, self.memory_mb, self.wall_s)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", worker, self.target, *map(str, limits)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C is for the parent: a grader that it ended would make a right answer count as wrong.
                start_new_session=True,
                # Threads of a numeric library would not survive the fork.
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self.starts += 1
        greeting = _Grader(self._control, self._server).reply(self.start_timeout_s)
        if "ready" in greeting:
            return self._control
        try:
            if "failed" in greeting:
                raise GradeFailure(f"{self.target} can't be imported: {greeting['failed']}")
            if "silent" in greeting:
                raise GradeFailure(f"{self.target}: no start within {self.start_timeout_s:g} s")
            with suppress(subprocess.TimeoutExpired):  # it closed the connection and lives on
                self._server.wait(timeout=10)
            raise GradeFailure(f"{self.target}: its process ended with exit status {self._server.poll()}")
        finally:
            self._stop()

    def _stop(self) -> None:
        server, self._server = self._server, None
        control, self._control = self._control, None
        for grader in self._idle:
            grader.place.close()
        self._idle.clear()
        if control is not None:
            control.close()
        if server is not None:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)  # the graders are of its session
            server.wait()


def _is_over(reply: dict[str, Any]) -> bool:
    """True if the process that sent the reply can take no further call."""
    return "ended" in reply or "silent" in reply


def _signal(status: int | None) -> signal.Signals | None:
    """Returns the signal that ended a process, by its wait status; None if it ended itself."""
    if status is None or not os.WIFSIGNALED(status):
        return None
    return signal.Signals(os.WTERMSIG(status))
