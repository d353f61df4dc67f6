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

from . import kernel, wall
from .keeper import keep
from .kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)
from .rules import COMMAND, MIB, NAMESPACES, Rules, Site, content, receive, send

_SPACES = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
_TICK_S = 0.05
"""How often the memory of a sandbox is looked at."""
_LONGEST_END_S = 0.2
"""For the processes of a sandbox to be gone before the answer is sent: less than the client's `GRACE_S`."""


class Supervisor:
    """Looks after one sandbox at a time; its process does nothing else.

    Args:
        place: the way to the client.
        slot: number of the supervisor among those that there are at a time.
    """

    def __init__(self, place: socket.socket, rules: Rules, site: Site, slot: int) -> None:
        self._place, self._rules, self._site, self._slot = place, rules, site, slot
        self._keeper = 0
        """The process with which the sandbox ends: a fork of the supervisor, or the command."""
        self._interpreter = 0
        """The one of which the program is a fork."""
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._total, self._head, self._tail = 0, bytearray(), bytearray()

    def run(self) -> None:
        """Have one sandbox after the other, as long as somebody wants one."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        while self._one():
            continue

    def _one(self) -> bool:
        """From an empty sandbox to the answer about its program; whether another one is wanted."""
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
            send(self._place, {"failed": self._drained(output) or "the sandbox ended as it began"})
            return False
        self._interpreter = self._parent_of_the_program()
        send(self._place, {"ready": True})
        request = receive(self._place)
        if request is None:
            self._end()
            return False
        answer = self._supervise(json.dumps(request).encode(), code, output, status)
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
            self._keeper = subprocess.Popen(
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
            spaces = _SPACES if self._site.as_root else _SPACES | CLONE_NEWUSER
        self._keeper = kernel.fork(spaces)
        if self._keeper == 0:
            try:
                # A program that held the pipe's other end too would wait for ever once nobody else is left.
                self._place.close()
                for ours in outer:
                    os.close(ours)
                # What goes wrong in there is said where the program's output goes.
                os.dup2(output, 1)
                os.dup2(output, 2)
                if spaces & CLONE_NEWUSER:
                    wall.write_maps(self._site.proc, user, group)
                if spaces:
                    wall.mount_scratch(rules.disk_mb, rules.readable)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
                os._exit(70)
            keep(rules, code, status, run_as, self._site.address_space)

    def _supervise(self, request: bytes, code: int, output: int, status: int) -> dict[str, Any] | None:
        """Hand the program over and wait until something has ended; None: nobody wants the answer."""
        began = time.monotonic()
        deadline, why = began + self._rules.timeout_s, ""
        waiting = memoryview(struct.pack("<I", len(request)) + request)
        poll = select.poll()
        for descriptor in (output, status, self._place.fileno()):
            poll.register(descriptor, select.POLLIN)
        os.set_blocking(code, False)
        poll.register(code, select.POLLOUT)
        ended = b""
        while not why:
            left = deadline - time.monotonic()
            if left <= 0:
                why = "timeout"
                break
            for descriptor, _ in poll.poll(1000 * min(left, _TICK_S)):
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
            if not why and time.monotonic() - began > _TICK_S and self._memory() > self._rules.memory_mb:
                why = "memory"
        seconds = time.monotonic() - began
        self._end()
        if why == "cancelled":
            return None
        self._drain(output)
        answer = {"why": why, "seconds": seconds, "left_out": self._omitted_bytes, **self._output()}
        if why == "ended":
            answer["status"] = struct.unpack("<i", ended)[0] if len(ended) == 4 else None
        return answer

    def _end(self) -> None:
        """End the keeper and with it, whatever it is doing, every process of the sandbox."""
        try:
            os.kill(self._keeper, signal.SIGKILL)
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
        """What was written before the end; a process that does not end must not hold it up."""
        os.set_blocking(output, False)
        most = self._total + MIB
        try:
            while self._total < most and self._read(output):
                continue
        except BlockingIOError:
            return

    def _drained(self, output: int) -> str:
        self._drain(output)
        return bytes(self._head).decode(errors="replace").strip().replace("\n", "; ")

    @property
    def _omitted_bytes(self) -> int:
        return self._total - len(self._head) - len(self._tail)

    def _output(self) -> dict[str, str]:
        if not self._omitted_bytes:
            return {"head": bytes(self._head + self._tail).decode(errors="replace"), "tail": ""}
        head, tail = bytes(self._head), bytes(self._tail)
        return {"head": head.decode(errors="replace"), "tail": tail.decode(errors="replace")}

    def _memory(self) -> float:
        """MiB that the program's processes hold beside what they share with the interpreter, which is among
        them where a command has started it."""
        shared = self._held(self._interpreter)
        return sum(max(0, self._held(pid) - shared) for pid in self._processes()) / 1024

    def _processes(self) -> list[int]:
        """Those that the keeper started, and theirs: it inherits whoever has lost its parent."""
        found: list[int] = []
        waiting = [self._keeper]
        while waiting and len(found) < 4096:
            below = self._children(waiting.pop())
            found += below
            waiting += below
        return found

    def _parent_of_the_program(self) -> int:
        """The keeper itself, or the interpreter that a command has started below processes of its own. The
        program is there and waits, so that it is the last one."""
        parent, last = self._keeper, self._keeper
        while below := self._children(last):
            parent, last = last, below[-1]
        return parent

    def _children(self, pid: int) -> list[int]:
        try:
            return [int(one) for one in content(self._site.proc, f"{pid}/task/{pid}/children").split()]
        except OSError:
            return []  # it has ended

    def _held(self, pid: int) -> int:
        """KiB of memory of a process that lie in no file."""
        try:
            lines = content(self._site.proc, f"{pid}/status").splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _written(descriptor: int, waiting: memoryview) -> memoryview:
    try:
        return waiting[os.write(descriptor, waiting) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:  # the program has ended already
        return waiting[:0]


def _reap(block: bool = False) -> bool:
    """Take note of ended children; whether there are others."""
    while True:
        try:
            if os.waitpid(-1, 0 if block else os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False
