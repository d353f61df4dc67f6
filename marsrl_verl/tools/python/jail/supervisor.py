"""Outside of a sandbox: its supervisor.

The supervisor is a fork of the server. It makes a sandbox ready, waits for a program, reads its output, and
ends everything inside when the program, its time or its client has ended; then it makes the next one, since a
sandbox has one program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from dataclasses import asdict
from typing import Any

from . import mounts, syscalls
from .init import keep
from .rules import COMMAND, MIB, NAMESPACES, Rules, Site, framed, receive, send
from .syscalls import CLONE_NEWPID, CLONE_NEWUSER, SPACES
from .usage import Usage, lower_priority

_LOOK_S = 0.02
"""Seconds between two looks at what a sandbox takes; more where a look takes long, so that looking takes a
fifth of a processor at most."""
_AGAIN_S = 0.005
"""A child that `vfork` has just made seems to hold what its parent does: a second look decides."""
_FAIR_S = 1.0
"""Seconds of processor time after which a program has only what no other process wants."""
_LONGEST_END_S = 0.2
"""Most seconds for a sandbox's processes to be gone before the answer: less than the client's `GRACE_S`."""


class Supervisor:
    """Looks after one sandbox at a time; its process does nothing else. `place` is the way to the client, and
    `slot` its number among the supervisors that there are at a time."""

    def __init__(self, place: socket.socket, rules: Rules, site: Site, slot: int) -> None:
        self._place, self._rules, self._site, self._slot = place, rules, site, slot
        self._init = 0
        """The process with which the sandbox ends: a fork of the supervisor, or the command."""
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._total, self._head, self._tail = 0, bytearray(), bytearray()

    def run(self) -> None:
        """Runs one sandbox after the other, until none is wanted any more."""
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        while self._one():
            continue

    def _one(self) -> bool:
        """Runs a sandbox up to the answer about its program; true if another one is wanted."""
        self._total, self._head, self._tail = 0, bytearray(), bytearray()
        output, inner_output = os.pipe()
        status, inner_status = os.pipe()
        inner_code, code = os.pipe()
        try:
            self._start(inner_code, inner_output, inner_status, (code, output, status))
        except OSError as error:
            send(self._place, {"failed": str(error)})
            return False
        for inner in (inner_code, inner_output, inner_status):
            os.close(inner)
        first = os.read(status, 1)
        if first != b"r":
            self._end()
            self._drain(output)
            said = self._head.decode(errors="replace").strip().replace("\n", "; ")
            send(self._place, {"failed": said or "the sandbox ended as it began"})
            return False
        sockets = 0 if self._rules.alone else self._site.socket_bytes
        usage = Usage(self._site.proc, self._init, sockets)
        send(self._place, {"ready": True})
        request = receive(self._place)
        if request is None:
            self._end()
            return False
        answer = self._supervise(framed(request), code, output, status, usage)
        if answer is None:
            return False
        send(self._place, answer)
        for ours in (code, output, status):
            os.close(ours)
        _reap(block=True)
        return True

    def _start(self, code: int, output: int, status: int, outer: tuple[int, ...]) -> None:
        rules = self._rules
        if rules.kind == COMMAND:
            self._init = subprocess.Popen(
                [*rules.command, str(code), str(status), json.dumps(asdict(rules))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(code, status),
                cwd="/",
            ).pid
            return
        user, group = os.geteuid(), os.getegid()
        first_user, spaces = self._site.first_user, 0
        run_as = None if first_user is None else first_user + self._slot
        if rules.kind == NAMESPACES:
            spaces = SPACES | CLONE_NEWPID | (0 if self._site.as_root else CLONE_NEWUSER)
        self._init = syscalls.fork(spaces)
        if self._init == 0:
            try:
                # A program that held the pipe's other end too would wait for ever once nobody else is left.
                self._place.close()
                for ours in outer:
                    os.close(ours)
                # What goes wrong in there is said where the program's output goes.
                os.dup2(output, 1)
                os.dup2(output, 2)
                if spaces & CLONE_NEWUSER:
                    mounts.write_maps(self._site.proc, user, group)
                if spaces:
                    mounts.mount_scratch(rules.disk_mb, rules.readable)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
                os._exit(70)
            keep(rules, code, status, run_as, self._site.address_space)

    def _supervise(
        self, request: bytes, code: int, output: int, status: int, usage: Usage
    ) -> dict[str, Any] | None:
        """Hands the program over and waits until something has ended; None: nobody wants the answer."""
        began = time.monotonic()
        deadline, why = began + self._rules.timeout_s, ""
        next_look = began + _LOOK_S
        waiting = memoryview(request)
        poll = select.poll()
        for descriptor in (output, status, self._place.fileno()):
            poll.register(descriptor, select.POLLIN)
        os.set_blocking(code, False)
        poll.register(code, select.POLLOUT)
        ended = b""
        while not why:
            now = time.monotonic()
            if now >= deadline:
                why = "timeout"
                break
            for descriptor, _ in poll.poll(1000 * max(0.0, min(deadline, next_look) - now)):
                if descriptor == code:
                    waiting = _written(code, waiting)
                    if not waiting:
                        poll.unregister(code)
                        os.dup2(self._nothing, code)  # its end is what the program reads up to
                elif descriptor == output:
                    if not self._read(output):
                        poll.unregister(output)
                elif descriptor == status:
                    ended = os.read(status, 64)
                    why = "ended"
                else:
                    why = "cancelled"
            if not why and self._total > self._rules.output_mb * MIB:
                why = "output"
            if not why and time.monotonic() >= next_look:
                before = time.process_time()
                why = self._look(usage)
                next_look = time.monotonic() + max(_LOOK_S, 4 * (time.process_time() - before))
        seconds = time.monotonic() - began
        self._end()
        if why == "cancelled":
            return None
        self._drain(output)
        answer = {"why": why, "seconds": seconds, **self._output()}
        if why == "ended":
            answer["status"] = struct.unpack("<i", ended)[0] if len(ended) == 4 else None
        return answer

    def _look(self, usage: Usage) -> str:
        """Why the program has to end, if it takes too much."""
        processes = usage.processes()
        if usage.exceeds(self._rules.memory_mb, processes):
            time.sleep(_AGAIN_S)
            processes = usage.processes()
            if usage.exceeds(self._rules.memory_mb, processes):
                return "memory"
        seconds = usage.seconds(processes)
        if seconds > _FAIR_S:
            lower_priority(self._site.proc, processes)
        return "cpu" if seconds > self._rules.timeout_s else ""

    def _end(self) -> None:
        """Ends the init process and with it, whatever it is doing, every process of the sandbox."""
        try:
            os.kill(self._init, signal.SIGKILL)
        except ProcessLookupError:
            return
        until = time.monotonic() + _LONGEST_END_S
        while _reap() and time.monotonic() < until:
            time.sleep(0.001)

    def _read(self, output: int) -> int:
        chunk = os.read(output, 65536)
        self._total += len(chunk)
        remaining = self._rules.head - len(self._head)
        self._head += chunk[:remaining] if remaining > 0 else b""
        self._tail += chunk[max(0, remaining) :]
        if len(self._tail) > self._rules.tail:
            del self._tail[: len(self._tail) - self._rules.tail]
        return len(chunk)

    def _drain(self, output: int) -> None:
        """Reads what was written before the end; a process that does not end must not hold it up."""
        os.set_blocking(output, False)
        most = self._total + MIB
        try:
            while self._total < most and self._read(output):
                continue
        except BlockingIOError:
            return

    def _output(self) -> dict[str, Any]:
        """The part of the output that is kept; without a gap in one piece, which a character may go on
        across."""
        left_out = self._total - len(self._head) - len(self._tail)
        head, tail = (self._head, self._tail) if left_out else (self._head + self._tail, bytearray())
        texts = {"head": head.decode(errors="replace"), "tail": tail.decode(errors="replace")}
        return {"left_out": left_out, **texts}


def _written(descriptor: int, waiting: memoryview) -> memoryview:
    try:
        return waiting[os.write(descriptor, waiting) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:  # the program has ended already
        return waiting[:0]


def _reap(block: bool = False) -> bool:
    """Takes note of ended children; whether there are others."""
    while True:
        try:
            if os.waitpid(-1, 0 if block else os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False
