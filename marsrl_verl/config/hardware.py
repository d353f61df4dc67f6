"""A cheap look at the machine: NVIDIA GPUs, asked of the driver, not of torch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def detect_cluster() -> str:
    """The option of group `cluster` for this machine: `1xgpu` where a GPU answers, else `cpu`."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return "cpu"
    return "1xgpu" if count_gpus() > 0 else "cpu"


def count_gpus() -> int:
    """Number of NVIDIA GPUs that `nvidia-smi` lists; 0 without the tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
