"""What the doctor says of machines that are in order and of those that are not."""

from __future__ import annotations

import asyncio
import py_compile
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marsrl_verl.doctor import application
from marsrl_verl.doctor import machine as machine_facts
from marsrl_verl.doctor.diagnosis import Level, diagnose
from marsrl_verl.doctor.machine import Machine, look
from marsrl_verl.machine.gpus import Gpu, parse_gpus
from marsrl_verl.machine.packages import CPU, FLASH, FLASH_STEP, GPU, GPU_STEP
from marsrl_verl.tools.python import isolation
from marsrl_verl.tools.python.config import Isolation
from marsrl_verl.tools.python.pool import SandboxError
from marsrl_verl.version import REQUIRED_VERL

GIB = 1024**3
H100 = Gpu(0, "NVIDIA H100 80GB HBM3", 81559, 4, (9, 0), "580.95.05")
NODE = Machine(
    python="3.12.3",
    packages={"verl": REQUIRED_VERL, **GPU, **FLASH, "torch": "2.11.0+cu130"},
    gpus=tuple(replace(H100, index=index) for index in range(8)),
    gpu_devices=True,
    nvcc="13.0",
    torch_cuda="13.0 True",
    free_disk={"/runs": 5000 * GIB},
    shared_memory=200 * GIB,
    memory=1000 * GIB,
    cpus=128,
    open_files=65536,
    isolation=Isolation.NAMESPACES,
)
LAPTOP = replace(
    NODE, packages={"verl": REQUIRED_VERL, **CPU}, gpus=(), gpu_devices=False, nvcc=None, torch_cuda=None
)


def findings(machine: Machine) -> dict[str, str]:
    """What is not in order, by what it is about: level, finding, fix."""
    return {
        finding.about: f"{finding.level.value} {finding.what} | {finding.fix}"
        for finding in diagnose(machine)
        if finding.level is not Level.OK
    }


def test_machines_that_are_in_order():
    assert findings(NODE) == {}
    assert findings(LAPTOP) == {}


def test_a_machine_without_a_gpu_is_told_so():
    (gpus,) = [finding for finding in diagnose(LAPTOP) if finding.about == "GPUs"]
    assert "this machine has no NVIDIA GPU. Runs here use cluster=cpu" in gpus.what
    assert not {"driver", "nvcc", "flash-attn", "vllm"} & {finding.about for finding in diagnose(LAPTOP)}


def test_isolation_is_told_with_its_reason():
    refused = {"namespaces": "not permitted"}
    for kind, reasons in ((Isolation.NAMESPACES, {}), (Isolation.BUBBLEWRAP, refused)):
        machine = replace(LAPTOP, isolation=kind, not_isolated=reasons)
        (found,) = [one.what for one in diagnose(machine) if one.about == "isolation"]
        assert f"programs have {kind}" in found and "no way out" in found
        assert all(f"{name}: {why}" in found for name, why in reasons.items())


def test_isolation_is_tried_with_what_tools_import(monkeypatch):
    """Nothing else tells before a run that sandboxes do not see the environment's packages."""

    async def tried(settings, kind, layout):
        raise SandboxError(f"No module named {settings.preload[0]!r}")

    monkeypatch.setattr(isolation, "_tried", tried)
    found, reasons = asyncio.run(machine_facts._isolation())
    assert found is None and "namespaces: No module named 'numpy'" in reasons[""]


REASON = {"namespaces": "unshare: Operation not permitted", "bubblewrap": "there is no command bwrap"}


def test_isolation_that_is_strong():
    for kind in (Isolation.NAMESPACES, Isolation.BUBBLEWRAP):
        assert findings(replace(LAPTOP, isolation=kind, not_isolated=REASON)) == {}


SICK = {
    "nothing but a filter": (
        replace(LAPTOP, isolation=Isolation.SECCOMP, not_isolated=REASON),
        "isolation",
        "min_isolation is landlock unless told otherwise",
    ),
    "no namespaces": (
        replace(LAPTOP, isolation=Isolation.LANDLOCK, not_isolated=REASON),
        "isolation",
        "warn the Python tool's programs have landlock alone (namespaces: unshare: Operation not",
    ),
    "no isolation": (
        replace(LAPTOP, isolation=None, not_isolated={"": "seccomp: no"}),
        "isolation",
        "can't isolate programs here (seccomp: no)",
    ),
    "old driver": (replace(NODE, gpus=(replace(H100, driver="550.54.15"),)), "driver", "580 or newer"),
    "no driver": (replace(LAPTOP, gpu_devices=True), "GPUs", "nvidia-smi is missing or fails"),
    "hidden": (replace(LAPTOP, hidden_gpus=8), "GPUs", "CUDA_VISIBLE_DEVICES hides all 8 GPUs"),
    "old GPU": (replace(NODE, gpus=(replace(H100, capability=(7, 5)),)), "GPUs", "compute capability 8.0"),
    "small GPU": (replace(NODE, gpus=(replace(H100, memory_mib=40960),)), "GPUs", "gpu_gib=40"),
    "busy GPU": (replace(NODE, gpus=(replace(H100, used_mib=30000),)), "GPUs", "the memory of GPU 0"),
    "nothing installed": (replace(NODE, packages={"verl": REQUIRED_VERL}), "vllm", GPU_STEP),
    "flash": (replace(NODE, packages={**NODE.packages, "flash-attn": "2.7.0"}), "flash-attn", FLASH_STEP),
    "broken flash-attn": (
        replace(NODE, flash_error="ImportError: undefined symbol: _ZN3c10"),
        "flash-attn",
        "undefined symbol",
    ),
    "another vLLM": (replace(NODE, packages={**NODE.packages, "vllm": "0.23.1"}), "vllm", "FAIL 0.23.1; 0"),
    "another Ray": (replace(NODE, packages={**NODE.packages, "ray": "2.50.0"}), "ray", "warn 2.50.0; 2.60.0"),
    "made for the CPU": (
        replace(NODE, packages={"verl": REQUIRED_VERL, **CPU}),
        "environment",
        f"`{GPU_STEP}`, then `{FLASH_STEP}`",
    ),
    "broken torch": (
        replace(NODE, torch_cuda=None, torch_error="OSError: libcudnn.so.9: cannot open shared object file"),
        "torch",
        "libcudnn.so.9",
    ),
    "torch without CUDA": (replace(NODE, torch_cuda="None False"), "torch", "finds no GPU"),
    "builds for CUDA": (
        replace(LAPTOP, packages={**LAPTOP.packages, "torch": "2.13.0+cpu", "torchaudio": "2.11.1"}),
        "torchaudio",
        "`pip uninstall -y torchaudio`",
    ),
    "another verl": (replace(NODE, packages={**NODE.packages, "verl": "0.8.0"}), "verl", "FAIL 0.8.0; 0.9.1"),
    "Python": (replace(NODE, python="3.13.1"), "Python", "3.10 to 3.12 work"),
    "folder": (
        replace(NODE, unwritable={"/runs": "Read-only file system"}),
        "disk",
        "nothing can be written in /runs: Read-only file system",
    ),
    "disk": (replace(NODE, free_disk={"/runs": 20 * GIB}), "disk", "20 GiB free at /runs"),
    "container": (replace(NODE, shared_memory=64 * 1024**2), "shared memory", "--shm-size"),
    "files": (replace(NODE, open_files=1024), "open files", "ulimit -n"),
    "dead cluster": (
        replace(NODE, ray_address="10.0.0.1:6379", no_cluster="Nobody answers at 10.0.0.1:6379"), "Ray",
        "FAIL RAY_ADDRESS: Nobody answers at 10.0.0.1:6379",
    ),
    "ports": (replace(NODE, busy_ports=(6379,)), "ports", "port 6379"),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "about", "hint"), SICK.values(), ids=SICK.keys())
def test_what_is_wrong_is_said_with_its_fix(machine, about, hint):
    found = findings(machine)
    assert hint in found[about]
    assert found[about].partition(" | ")[2], "there is a fix"


def test_the_compiler_is_wanted_only_where_flash_attn_is_to_be_built():
    assert "nvcc" not in findings(replace(NODE, nvcc=None))
    without = replace(NODE, packages={name: v for name, v in NODE.packages.items() if name != "flash-attn"})
    assert "Install the CUDA 13 toolkit" in findings(replace(without, nvcc=None))["nvcc"]
    assert "CUDA 12.4; torch is built for CUDA 13" in findings(replace(without, nvcc="12.4"))["nvcc"]
    assert "nvcc" not in findings(without)


def test_a_cluster_that_the_run_joins_is_no_warning():
    assert findings(replace(NODE, busy_ports=(6379, 8265), ray_address="10.0.0.1:6379")) == {}


def test_lines_of_nvidia_smi():
    text = (
        "0, NVIDIA H100 80GB HBM3, 81559, 4, 9.0, 580.95.05\n"
        "1, NVIDIA GB10, [N/A], [N/A], 12.1, 580.95.05\n"
        "Failed to initialize NVML: Driver/library version mismatch\n"
    )
    first, second = parse_gpus(text)
    assert first == H100
    assert (second.index, second.memory_mib, second.capability) == (1, 0, (12, 1))


@pytest.mark.parametrize(("machine", "status"), [(LAPTOP, 0), (replace(LAPTOP, gpu_devices=True), 1)])
def test_status_and_last_line(monkeypatch, capsys, machine, status):
    monkeypatch.setattr(application, "look", lambda output: machine)
    assert application.main([]) == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("Nothing is missing." if status == 0 else "1 problem, 0 warnings.")


def test_packages_that_every_process_compiles_anew(monkeypatch, tmp_path):
    (tmp_path / "compiled.py").write_text("")
    (tmp_path / "bare.py").write_text("")
    py_compile.compile(str(tmp_path / "compiled.py"))
    monkeypatch.syspath_prepend(tmp_path)
    assert machine_facts._uncompiled(["compiled", "bare", "not_installed_at_all"]) == ("bare",)
    assert "bare have none" in findings(replace(NODE, uncompiled=("bare",)))["bytecode"]


def test_a_look_at_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("marsrl_verl.doctor.machine.list_gpus", lambda: [])
    found = look(tmp_path / "not" / "there")
    assert found.cpus >= 1 and found.memory > 0 and found.gpus == ()
    assert found.torch_cuda is None, "nobody imports torch where there is no GPU"
    assert abs(found.free_disk[str(tmp_path / "not" / "there")] - shutil.disk_usage(tmp_path).free) < GIB
    assert Path("/dev/shm").is_dir() == (found.shared_memory > 0)
