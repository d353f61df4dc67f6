"""The facts about a machine that decide whether a run works on it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from marsrl_verl.config.ray_cluster import AUTO, LOCAL, RAY_CLIENT, no_cluster_at
from marsrl_verl.machine.gpus import Gpu, answer_of, gpu_devices, list_gpus, visible
from marsrl_verl.machine.packages import CPU, CUDA_ONLY, FLASH, GPU, versions_of
from marsrl_verl.reporting.files import existing, refusal
from marsrl_verl.tools.python.config import Isolation
from marsrl_verl.tools.python.isolation import IsolationError, probing

RAY_PORTS = {6379: "the head of a Ray cluster", 8265: "its dashboard, which takes jobs"}
"""Ports of this machine that `ray start --head` opens."""
_LARGE = ("torch", "transformers", "vllm", "verl", "ray")
"""Packages of thousands of modules that every process of a run imports."""
_PROBE = "import torch; print(torch.version.cuda, torch.cuda.is_available())"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and the Python environment that looks at it."""

    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that matter and are installed."""
    gpus: tuple[Gpu, ...] = ()
    hidden_gpus: int = 0
    """GPUs that CUDA_VISIBLE_DEVICES leaves out."""
    gpu_devices: bool = False
    """A device file of a GPU is there, whether or not its driver answers."""
    nvcc: str | None = None
    """Release of the CUDA compiler, e.g. `13.0`."""
    torch_cuda: str | None = None
    """CUDA that torch is built for, and whether torch finds a GPU; None if torch was not run."""
    torch_error: str | None = None
    """Why torch, which is installed, can't be imported."""
    flash_error: str | None = None
    """Why flash-attn, which is installed, can't be imported."""
    free_disk: Mapping[str, int] = field(default_factory=dict)
    """Free bytes of the disks that a run writes to, by folder."""
    unwritable: Mapping[str, str] = field(default_factory=dict)
    """Folders of these in which nothing can be written, and why."""
    shared_memory: int = 0
    """Bytes of /dev/shm."""
    memory: int = 0
    """Bytes of main memory."""
    cpus: int = 0
    open_files: int = 0
    """Files that a process may open."""
    busy_ports: tuple[int, ...] = ()
    """Ports of `RAY_PORTS` that something listens on."""
    ray_address: str | None = None
    """RAY_ADDRESS."""
    no_cluster: str | None = None
    """Why there is no cluster at it."""
    isolation: Isolation | None = None
    """The strongest that the Python tool's programs can have here; None: none at all."""
    not_isolated: Mapping[str, str] = field(default_factory=dict)
    """By kind, why a stronger one is not to be had; without any, the reason under an empty name."""
    uncompiled: tuple[str, ...] = ()
    """Packages without bytecode, in a Python that writes none (PYTHONDONTWRITEBYTECODE)."""


def look(output: Path) -> Machine:
    """Looks at this machine; runs are to be written to `output`."""
    gpus = list_gpus()
    seen = visible(gpus)
    packages = versions_of(["verl", *CPU, *GPU, *FLASH, *CUDA_ONLY])
    torch_cuda, torch_error = _python_output(_PROBE) if gpus and "torch" in packages else (None, None)
    isolation, not_isolated = asyncio.run(_isolation())
    return Machine(
        python=platform.python_version(),
        packages=packages,
        gpus=tuple(seen),
        hidden_gpus=len(gpus) - len(seen),
        gpu_devices=gpu_devices(),
        nvcc=_nvcc(),
        torch_cuda=torch_cuda,
        torch_error=torch_error,
        flash_error=_python_output("import flash_attn")[1] if gpus and "flash-attn" in packages else None,
        free_disk={str(folder): shutil.disk_usage(existing(folder)).free for folder in _written(output)},
        unwritable={str(folder): why for folder in _written(output) if (why := refusal(folder))},
        shared_memory=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=len(os.sched_getaffinity(0)),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        busy_ports=tuple(port for port in RAY_PORTS if _listens(port)),
        ray_address=(address := os.environ.get("RAY_ADDRESS")),
        no_cluster=_no_cluster_at(address),
        isolation=isolation,
        not_isolated=not_isolated,
        uncompiled=_uncompiled(_LARGE) if sys.dont_write_bytecode else (),
    )


async def _isolation() -> tuple[Isolation | None, Mapping[str, str]]:
    try:
        async with probing() as closed:
            return closed.isolation, closed.passed_over
    except (IsolationError, OSError) as error:
        return None, {"": str(error)}


def _no_cluster_at(address: str | None) -> str | None:
    if address in (None, "", AUTO, LOCAL):
        return None
    return no_cluster_at(address.removeprefix(RAY_CLIENT))


def _uncompiled(packages: Iterable[str]) -> tuple[str, ...]:
    """Packages that are installed without bytecode, which uv leaves out by default."""
    specs = [(name, importlib.util.find_spec(name)) for name in packages]
    files = [(name, spec.origin) for name, spec in specs if spec is not None and spec.origin is not None]
    return tuple(name for name, file in files if not Path(importlib.util.cache_from_source(file)).exists())


def _written(output: Path) -> list[Path]:
    """Runs; models of the hub; Ray's sessions."""
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    ray = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    return [output.absolute(), hub, ray]


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    tool = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    # One that does not run builds nothing.
    found = re.search(r"release (\d+\.\d+)", answer_of([tool, "--version"])) if tool else None
    return found.group(1) if found else None


def _python_output(code: str) -> tuple[str | None, str | None]:
    """Output of a fresh interpreter of this environment, and the last line of its error. Fresh: importing
    torch takes seconds, and a broken build may end the process that imports it."""
    command = [sys.executable, "-c", code]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return None, "no answer within 180 s"
    if answer.returncode == 0:
        return answer.stdout.strip(), None
    return None, (answer.stderr.strip().splitlines() or [f"ended with status {answer.returncode}"])[-1]


def _listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) == 0
