"""One sandbox: a supervisor outside, a keeper and the program inside.

The supervisor is a fork of the server. It makes the sandbox ready, waits for a program, reads its output, and
ends everything inside when the program, its time or its client has ended. The keeper is a fork of the
supervisor, or of a command such as bubblewrap's, and the first process of the sandbox: in a process namespace
no signal from inside reaches it, it inherits whatever a program leaves behind, and with it all of that ends.
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
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from . import kernel, program, seccomp, wall
from .kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOSUID,
)

NAMESPACES, COMMAND, LANDLOCK, SECCOMP = "namespaces", "bubblewrap", "landlock", "seccomp"
"""How a sandbox is closed (`Rules.kind`)."""
_TICK_S = 0.05
"""How often the memory of a sandbox is looked at."""
_LONGEST_END_S = 0.5
"""For the processes of a sandbox to be gone before the answer is sent."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all sandboxes of a server."""

    kind: str
    timeout_s: float
    memory_mb: int
    """What a program may take beside the interpreter, in all of its processes."""
    disk_mb: int
    """Size of its folder for files."""
    processes: int
    """Processes and threads that it may start; 0: no processes."""
    output_mb: int
    """A program that writes more is ended."""
    head: int
    tail: int
    """Bytes of the output that are kept."""
    echo: bool
    preload: list[str]
    readable: list[str]
    """See `wall.shown`."""
    paths: list[str]
    """Folders of the interpreter's packages."""
    command: list[str]
    """Kind `bubblewrap`: what starts an interpreter in a sandbox, up to its own arguments."""

    @property
    def alone(self) -> bool:
        """Whether sandboxes have no namespaces."""
        return self.kind in (LANDLOCK, SECCOMP)


@dataclass(slots=True)
class Site:
    """What a server knows of its place."""

    proc: int
    """Descriptor of the machine's `/proc`."""
    as_root: bool = False
    """Root behind the wall, without a user namespace."""
    first_user: int | None = None
    """As root: the first of the users that programs run as, one per slot."""
    address_space: int = 0
    """Bytes of address space that the interpreter has by itself."""


def send(place: socket.socket, message: dict[str, Any]) -> None:
    """Send a message: its length in 4 bytes, and JSON."""
    data = json.dumps(message).encode()
    place.sendall(struct.pack("<I", len(data)) + data)


def receive(place: socket.socket) -> dict[str, Any] | None:
    """Wait for a message; None at the end."""
    head = _exactly(place, 4)
    data = None if head is None else _exactly(place, struct.unpack("<I", head)[0])
    return None if data is None else json.loads(data)


def _exactly(place: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        chunk = place.recv(min(count, 65536))
        if not chunk:
            return None
        parts.append(chunk)
        count -= len(chunk)
    return b"".join(parts)


# --- outside --------------------------------------------------------------------------------


class Supervisor:
    """Looks after one sandbox; its process does nothing else.

    Args:
        place: the way to the client.
        slot: number of the sandbox among those that there are at a time.
    """

    def __init__(self, place: socket.socket, rules: Rules, site: Site, slot: int) -> None:
        self._place, self._rules, self._site, self._slot = place, rules, site, slot
        self._keeper = 0
        self._total, self._head, self._tail = 0, bytearray(), bytearray()

    def run(self) -> None:
        """From an empty sandbox to the answer about its program."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        output, inner_output = os.pipe()
        status, inner_status = os.pipe()
        inner_code, code = os.pipe()
        try:
            self._start(inner_code, inner_output, inner_status)
        except OSError as error:
            send(self._place, {"failed": str(error)})
            return
        for inner in (inner_code, inner_output, inner_status):
            os.close(inner)
        first = os.read(status, 1)
        if first != b"r":
            self._end()
            send(self._place, {"failed": self._drained(output) or "the sandbox ended as it began"})
            return
        send(self._place, {"ready": True})
        request = receive(self._place)
        if request is None:
            self._end()
            return
        answer = self._supervise(json.dumps(request).encode(), code, output, status)
        if answer is not None:
            send(self._place, answer)
        _reap(block=True)

    def _start(self, code: int, output: int, status: int) -> None:
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
        if rules.kind == NAMESPACES:
            spaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
            user, group = os.geteuid(), os.getegid()
            kernel.unshare(spaces if self._site.as_root else spaces | CLONE_NEWUSER)
            if not self._site.as_root:
                wall.write_maps(self._site.proc, user, group)
            size = f"size={rules.disk_mb}m,nr_inodes=16384,mode=1777"
            kernel.mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size)
        first_user = self._site.first_user
        run_as = None if first_user is None else first_user + self._slot
        self._keeper = os.fork()
        if self._keeper == 0:
            self._place.close()
            # What goes wrong in there is said where the program's output goes.
            os.dup2(output, 1)
            os.dup2(output, 2)
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
                        os.close(code)
                elif descriptor == output:
                    if not self._read(output):
                        poll.unregister(output)
                elif descriptor == status:
                    ended = os.read(status, 64)
                    why = "ended"
                else:
                    why = "cancelled"
            if not why and self._total > self._rules.output_mb * _MIB:
                why = "output"
            if not why and time.monotonic() - began > _TICK_S and self._memory() > self._rules.memory_mb:
                why = "memory"
        seconds = time.monotonic() - began
        self._end()
        if why == "cancelled":
            return None
        self._drain(output)
        answer = {"why": why, "seconds": seconds, "left_out": self._left_out, **self._output()}
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
        room = self._rules.head - len(self._head)
        self._head += chunk[:room] if room > 0 else b""
        self._tail += chunk[max(0, room) :]
        if len(self._tail) > self._rules.tail:
            del self._tail[: len(self._tail) - self._rules.tail]
        return len(chunk)

    def _drain(self, output: int) -> None:
        """What was written before the end; a process that does not end must not hold it up."""
        os.set_blocking(output, False)
        most = self._total + _MIB
        try:
            while self._total < most and self._read(output):
                continue
        except BlockingIOError:
            return

    def _drained(self, output: int) -> str:
        self._drain(output)
        return bytes(self._head).decode(errors="replace").strip().replace("\n", "; ")

    @property
    def _left_out(self) -> int:
        return self._total - len(self._head) - len(self._tail)

    def _output(self) -> dict[str, str]:
        if not self._left_out:
            return {"head": bytes(self._head + self._tail).decode(errors="replace"), "tail": ""}
        head, tail = bytes(self._head), bytes(self._tail)
        return {"head": head.decode(errors="replace"), "tail": tail.decode(errors="replace")}

    def _memory(self) -> float:
        """MiB that the program's processes hold beside what they share with the server."""
        shared = self._held(self._keeper)
        return sum(max(0, self._held(pid) - shared) for pid in self._processes()) / 1024

    def _processes(self) -> list[int]:
        """Those that the keeper started, and theirs: it inherits whoever has lost its parent."""
        found: list[int] = []
        waiting = [self._keeper]
        while waiting and len(found) < 4096:
            pid = waiting.pop()
            try:
                below = _content(self._site.proc, f"{pid}/task/{pid}/children").split()
            except OSError:
                continue  # it has ended
            found += map(int, below)
            waiting += map(int, below)
        return found

    def _held(self, pid: int) -> int:
        """KiB of memory of a process that lie in no file."""
        try:
            lines = _content(self._site.proc, f"{pid}/status").splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _content(folder: int, name: str) -> str:
    place = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(place, 65536).decode("ascii", "replace")
    finally:
        os.close(place)


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


# --- inside --------------------------------------------------------------------------------


def keep(rules: Rules, code: int, status: int, run_as: int | None, address_space: int) -> NoReturn:
    """Be the first process of a sandbox: start the program, wait for its end, tell it and end.

    Args:
        code: where the program comes from.
        status: where to say that it can come, and how it ended.
        run_as: the user of the program; None: the one that this is.
        address_space: see `Site`.
    """
    try:
        kernel.end_with_parent()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            _become_program(rules, code, status, run_as, address_space)
        os.close(code)
        for descriptor in (1, 2):
            os.close(descriptor)
        while True:
            ended, how = os.waitpid(-1, 0)
            if ended == child:
                os.write(status, struct.pack("<i", how))
                break
    finally:
        os._exit(0)


def _become_program(rules: Rules, code: int, status: int, run_as: int | None, address_space: int) -> NoReturn:
    try:
        os.setsid()
        _take_standard_input()
        kernel.drop_bounds()
        if run_as is not None:
            os.setgroups([])
            os.setresgid(run_as, run_as, run_as)
            os.setresuid(run_as, run_as, run_as)
        kernel.drop_capabilities()
        kernel.end_with_parent()  # again: it does not outlast another user
        _limit(rules, address_space)
        os.chdir("/" if rules.alone else "/tmp")
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rules.kind == LANDLOCK:
            kernel.landlock([*rules.readable, *(one for one in wall.DEVICES if os.path.exists(one))])
        seccomp.restrict(alone=rules.alone, processes=rules.processes > 0)
    except BaseException as error:
        os.write(2, f"the sandbox can't be closed: {type(error).__name__}: {error}".encode())
        os._exit(70)
    os.write(status, b"r")
    with open(code, "rb") as pipe:
        request = _request(pipe.read)
    os.closerange(3, 1024)
    program.run(request["code"], request["seed"], rules.echo)


def _request(read: Callable[[int], bytes]) -> dict[str, Any]:
    head = read(4)
    if len(head) < 4:
        os._exit(0)  # nobody wants it any more
    found: dict[str, Any] = json.loads(read(struct.unpack("<I", head)[0]))
    return found


def _take_standard_input() -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def address_space_of(proc: int) -> int:
    """Bytes of address space that this process has.

    Args:
        proc: descriptor of `/proc`.
    """
    return int(_content(proc, "self/statm").split()[0]) * resource.getpagesize()


def _limit(rules: Rules, address_space: int) -> None:
    seconds = int(rules.timeout_s) + 2
    for what, most in (
        (resource.RLIMIT_AS, address_space + rules.memory_mb * _MIB),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0 if rules.alone else rules.disk_mb * _MIB),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NPROC, None),
    ):
        if most is None:
            if rules.processes and not rules.alone:
                resource.setrlimit(what, (rules.processes, rules.processes))
            continue
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def main(arguments: list[str]) -> None:
    """A sandbox that a command has closed (`Rules.command`): the keeper in a fresh interpreter."""
    code, status, rules = int(arguments[0]), int(arguments[1]), Rules(**json.loads(arguments[2]))
    load(rules)
    keep(rules, code, status, None, address_space_of(os.open("/proc", os.O_PATH | os.O_CLOEXEC)))


def load(rules: Rules) -> None:
    """Import what programs are likely to need.

    Raises:
        Exception: what an import raised.
    """
    sys.path[:] = [*(one for one in sys.path if one in rules.paths or one.startswith(sys.base_prefix))]
    sys.path += [one for one in rules.paths if one not in sys.path]
    for name in rules.preload:
        importlib.import_module(name)
    if "numpy" in sys.modules:  # which imports this one when it is first asked for
        importlib.import_module("numpy.random")
    gc.collect()
    gc.freeze()  # a collection in a program would copy every page of the modules
