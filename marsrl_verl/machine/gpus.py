"""NVIDIA GPUs, as the driver reports them, not torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_QUERY = "index,name,memory.total,memory.used,compute_cap,driver_version"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as the driver describes it."""

    index: int
    name: str
    memory_mib: int
    used_mib: int
    capability: tuple[int, int]
    """Compute capability, (9, 0) of Hopper."""
    driver: str


def count_gpus() -> int:
    """Number of NVIDIA GPUs that this process may use."""
    return len(visible(list_gpus()))


def visible(gpus: list[Gpu]) -> list[Gpu]:
    """GPUs that CUDA_VISIBLE_DEVICES leaves; Ray counts them in the same way."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    names = [name for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    return gpus[: len(names)]


def list_gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine; none where the driver's tool is missing or fails."""
    if not gpu_devices():
        return []
    return parse_gpus(ask_driver())


def gpu_devices() -> bool:
    """True if the machine shows the device file of a GPU, whether or not its driver works."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def ask_driver() -> str:
    """Returns `nvidia-smi`'s output on all GPUs, one a line; empty without the tool or if it fails."""
    tool = shutil.which("nvidia-smi")
    return answer_of([tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]) if tool else ""


def answer_of(command: list[str]) -> str:
    """Returns the output of a command; empty if it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def parse_gpus(text: str) -> list[Gpu]:
    """The lines of `ask_driver`, e.g. `0, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 580.95.05`."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 6 and cells[0].isdigit():
            major, _, minor = cells[4].partition(".")
            capability = (_number(major), _number(minor))
            gpus.append(
                Gpu(int(cells[0]), cells[1], _number(cells[2]), _number(cells[3]), capability, cells[5])
            )
    return gpus


def _number(cell: str) -> int:
    """0 where the driver has no answer (`[N/A]`: some devices share the machine's memory)."""
    return int(cell) if cell.isdigit() else 0
