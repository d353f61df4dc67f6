"""Memory and processor time of a sandbox's processes, by the machine's `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from .rules import content

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_MOST = 4096
"""Processes that are looked at; there are never so many."""
_HELD = ("RssAnon:", "RssShmem:", "VmSwap:")
_SHARED_OUT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its threads."""

    pid: int
    threads: tuple[int, ...]


class Usage:
    """Usage of the sandbox below its init process, the first one, which inherits those that lost
    their parent.

    Args:
        proc: descriptor of the machine's `/proc`.
        socket_bytes: most memory of a socket; 0: the sandbox has no network namespace, in which they could be
            counted.
    """

    def __init__(self, proc: int, init: int, socket_bytes: int) -> None:
        self._proc, self._init, self._socket_bytes = proc, init, socket_bytes
        self.interpreter = self._parent_of_the_program()
        self._own = self._held(_threads(proc, self.interpreter)) or 0
        """KiB of the interpreter. Counted once, however many processes share it or have one of their own."""
        self._cpu_before = self._ticks([init, *(one.pid for one in self.processes())])

    def processes(self) -> list[Process]:
        """Processes that the init process started, and theirs. A child belongs to its parent's thread that
        forked it."""
        found: list[Process] = []
        waiting = [self._init]
        while waiting and len(found) < _MOST:
            for thread in _threads(self._proc, waiting.pop()):
                for pid in self._children(thread):
                    found.append(Process(pid, tuple(_threads(self._proc, pid))))
                    waiting.append(pid)
        return found

    def seconds(self, processes: Iterable[Process]) -> float:
        """Processor time of the program's processes, of those too that have ended and were waited for."""
        return _TICK * (self._ticks([self._init, *(one.pid for one in processes)]) - self._cpu_before)

    def exceeds(self, max_mb: float, processes: Iterable[Process]) -> bool:
        """True if the processes hold more MiB beside the interpreter. What several share counts once."""
        most = 1024 * max_mb + self._own - self._sockets()
        held = {one: kib for one in processes if (kib := self._held(one.threads)) is not None}
        if len(held) < 2 or sum(held.values()) <= most:  # cheap: an upper bound where some of it is shared
            return sum(held.values()) > most
        return sum(self._share(one, kib) for one, kib in held.items()) > most

    def _share(self, process: Process, held: int) -> int:
        """KiB of a process, each page divided by the number of processes that have it."""
        found = self._first_of(process.threads, "smaps_rollup", _SHARED_OUT)
        # Where the kernel does not tell, it counts as a fork of the interpreter.
        return max(0, held - self._own) if found is None else found

    def _held(self, threads: Iterable[int]) -> int | None:
        """KiB of memory of a process that lie in no file; None: it has ended."""
        return self._first_of(threads, "status", _HELD)

    def _first_of(self, threads: Iterable[int], name: str, fields: tuple[str, ...]) -> int | None:
        """The answer of the first thread that knows: one may have ended before the others, and knows nothing
        then."""
        found = (_kib(self._proc, f"{thread}/{name}", fields) for thread in threads)
        return next((kib for kib in found if kib is not None), None)

    def _sockets(self) -> float:
        """KiB that the sandbox's sockets may hold, those included that are on their way through another."""
        if not self._socket_bytes:
            return 0.0
        try:
            used = content(self._proc, f"{self.interpreter}/net/sockstat").split("\n", 1)[0]
        except OSError:
            return 0.0  # it has ended
        return int(used.split()[-1]) * self._socket_bytes / 1024

    def _ticks(self, pids: Iterable[int]) -> int:
        """User and system time, and that of children that were waited for."""
        total = 0
        for pid in pids:
            try:
                fields = content(self._proc, f"{pid}/stat").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended, and is its parent's or the init process's now
            total += sum(map(int, fields[11:15]))
        return total

    def _parent_of_the_program(self) -> int:
        """The init process itself, or the interpreter that a command has started below its own processes. The
        program is there and waits, so that it is the last one."""
        parent, last = self._init, self._init
        while below := self._children(last):
            parent, last = last, below[-1]
        return parent

    def _children(self, thread: int) -> list[int]:
        try:
            return [int(one) for one in content(self._proc, f"{thread}/task/{thread}/children").split()]
        except OSError:
            return []  # it has ended


def _threads(proc: int, pid: int) -> list[int]:
    try:
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return []  # it has ended
    try:
        return [int(name) for name in os.listdir(folder)]
    except OSError:
        return []
    finally:
        os.close(folder)


def _kib(proc: int, name: str, fields: tuple[str, ...]) -> int | None:
    """The sum of some lines of a file; None: they are not to be had."""
    try:
        lines = content(proc, name).splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(fields)]
    return sum(found) if found else None


def lower_priority(proc: int, processes: Iterable[Process]) -> None:
    """Leaves processes, and what they start, the time that no other process wants. Failures are ignored: a
    process has ended, or root here lacks CAP_SYS_NICE; what it takes is bounded even so."""
    for process in processes:
        for thread in process.threads:
            with suppress(ProcessLookupError, PermissionError):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        # Where the kernel shares time out by sessions first, a thread's priority counts within its session.
        with suppress(OSError):
            place = os.open(f"{process.pid}/autogroup", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
            with open(place, "wb", buffering=0) as file:
                file.write(b"19")
