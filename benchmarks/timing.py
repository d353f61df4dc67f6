"""What the benchmarks of tensor code share: time, peak memory, and where it was measured."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.record import machine


def tensor_machine(device: object) -> str:
    """`machine` with torch's threads."""
    return f"{machine(('torch', 'triton', 'transformers'), device)}, {torch.get_num_threads()} threads"


def milliseconds(work: Callable[[], object], device: str) -> float:
    """Time of one call; on a GPU between two events on its stream."""
    if device == "cpu":
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def peak_memory(work: Callable[[], object], device: str) -> float | None:
    """Peak memory of one call beyond what was taken before, MiB.

    On the processor that is resident memory, pages of the process, where the system tells its peak (Linux).
    """
    if device == "cpu":
        return resident_peak(work)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measured(work: Callable[[], object], device: str, repeats: int) -> tuple[float, float | None]:
    """Median milliseconds and peak memory, after one call that is not measured."""
    work()
    peak = peak_memory(work, device)
    return statistics.median(milliseconds(work, device) for _ in range(repeats)), peak


def resident_peak(work: Callable[[], object]) -> float | None:
    """By how much resident memory rises while `work` runs, MiB; None where the kernel does not tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def kilobytes(name: str) -> int:
        (found,) = (line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(found.split()[1])

    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that is kept would hide what `work` takes
        reset.write_text("5")  # the peak is the present size from here on
    except (AttributeError, OSError):
        return None
    before = kilobytes("VmRSS")
    work()
    return (kilobytes("VmHWM") - before) / 1024
