"""Time and memory of phases, and messages between processes as Ray carries them."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Phase:
    """What a phase took, all of its parts together. Memory is resident memory of the process, MiB."""

    name: str
    side: str
    """`driver`, `background` for what it does in a thread beside others' work, or `other processes`."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    resident_after: float = 0.0
    peak: float = 0.0
    sent: float = 0.0
    """MiB that it wrote to disk or for other processes (in Ray's object store until they are read)."""


@dataclass(slots=True)
class Meter:
    """Measures one phase at a time, in this process."""

    side: str = "driver"
    phases: dict[str, Phase] = field(default_factory=dict)
    _open: tuple[Phase, float, float] | None = None

    def begin(self, name: str, side: str | None = None) -> None:
        """Ends the phase that is open and begins another, or goes on with an earlier one.

        Args:
            side: whose it is, if not the meter's.
        """
        self.pause()
        phase = self.phases.setdefault(name, Phase(name, side or self.side))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size from here on
        self._open = (phase, time.perf_counter(), time.process_time())

    def pause(self) -> str | None:
        """Ends the phase that is open; what follows is not measured. Returns its name."""
        if self._open is None:
            return None
        phase, wall, cpu = self._open
        self._open = None
        phase.seconds += time.perf_counter() - wall
        phase.cpu_seconds += time.process_time() - cpu
        phase.resident_after = memory("VmRSS")
        phase.peak = max(phase.peak, memory("VmHWM"))
        return phase.name

    def sent(self, size: int) -> None:
        """Counts bytes that the open phase has written."""
        assert self._open is not None, "bytes are counted inside a phase"
        self._open[0].sent += size / 2**20

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Others work; the open phase goes on afterwards."""
        name = self.pause()
        yield
        if name is not None:
            self.begin(name)

    def rows(self) -> list[dict[str, Any]]:
        """All phases in order, as plain data."""
        self.pause()
        return [asdict(phase) for phase in self.phases.values()]


def memory(name: str) -> float:
    """`VmRSS` or `VmHWM` of this process, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}: this benchmark needs Linux")


def settle() -> None:
    """Gives freed memory back to the system, so that what begins now is seen."""
    ctypes.CDLL(None).malloc_trim(0)


_numbers = itertools.count()


class Store:
    """Objects in files of shared memory, packed as Ray packs them: pickle 5, arrays out of band.

    As in Ray, what is read is mapped: arrays are views of it, everything else is built anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, value: Any) -> tuple[str, int]:
        """Path and size in bytes."""
        import pickle

        from ray import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        packed = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(packed), *(buffer.raw() for buffer in buffers)]
        path = self.folder / f"{os.getpid()}-{next(_numbers)}"
        with path.open("wb") as file:
            file.write(struct.pack(f"<{len(parts) + 1}q", len(parts), *(part.nbytes for part in parts)))
            for part in parts:
                file.seek(_aligned(file.tell()))
                file.write(part)
        return str(path), path.stat().st_size

    @staticmethod
    def get(path: str) -> Any:
        """The object; its file is gone as soon as no view of it is left."""
        import pickle

        with open(path, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        os.unlink(path)
        (count,) = struct.unpack_from("<q", mapped)
        sizes = struct.unpack_from(f"<{count}q", mapped, 8)
        parts, place = [], 8 * (count + 1)
        for size in sizes:
            place = _aligned(place)
            parts.append(mapped[place : place + size])
            place += size
        return pickle.loads(parts[0], buffers=parts[1:])


def _aligned(place: int) -> int:
    return place + -place % 64
