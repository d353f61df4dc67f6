"""Defaults of `cluster=cpu` that depend on the model and the processor.

Models of up to `SMALL_MODEL_BYTES`, such as those of the toy tasks, compute in float32 on one thread, each
row by itself. For a real model that is several times too slow.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from marsrl_verl.attention.layer_kinds import FULL, layer_kinds
from marsrl_verl.config import hf_folder
from marsrl_verl.config.model_shapes import largest_weight

SMALL_MODEL_BYTES = 40 << 20
"""Weights on disk of a model that counts as tiny, at most."""
_SMALLEST_BUCKET_MIB = 64
_USUAL_BUCKET_MIB = 2048
"""verl's, for models whose shape is not known."""
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in `/proc/cpuinfo` for instructions that multiply bfloat16, on x86 and on ARM. Without them it is
emulated: slower than float32, and less exact."""


def is_real(model: Any) -> bool:
    """True if a model is larger than those of the toy tasks; one that is not here yet counts as real."""
    if model is None:
        return False
    folder = hf_folder.local_folder(str(model))
    if folder is None:
        return hf_folder.is_hub_id(str(model))
    return sum(path.stat().st_size for path in hf_folder.weight_files(folder)) > SMALL_MODEL_BYTES


def dtype(model: Any) -> str:
    """Number format in which engine and trainer compute; the trained weights are float32 either way."""
    return "bfloat16" if is_real(model) and _BF16_FLAGS & _processor_flags() else "float32"


def param_dtype(model: Any) -> str:
    """The same by FSDP's name."""
    return {"bfloat16": "bf16", "float32": "fp32"}[dtype(model)]


def threads(model: Any, ranks: Any) -> str:
    """OMP_NUM_THREADS of every process: a rank's part of the processors for a real model, since engine and
    trainer take turns. Where the variable is set already it stays."""
    if own := os.environ.get("OMP_NUM_THREADS"):
        return own
    return str(max(1, processors() // max(1, int(ranks)))) if is_real(model) else "1"


def processors(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of processors of this process: of its affinity, and in a container at most of its quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((groups / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota.isdigit() and int(period) > 0:
            return max(1, min(cores, -(-int(quota) // int(period))))
    return cores


def shares_prefixes(model: Any) -> bool:
    """True if the prompt that a group's rows share is computed once: for a real model all of whose layers
    attend to everything, as far as that is known."""
    config = hf_folder.known_config(model)
    return config is not None and is_real(model) and layer_kinds(config) == {FULL}


def weight_bucket(model: Any) -> int:
    """MiB of the buffer in which weights travel to an engine: verl's has to hold each weight whole, in
    float32 here."""
    config = hf_folder.known_config(model)
    largest = 0 if config is None else largest_weight(config)
    if not largest:
        return _USUAL_BUCKET_MIB if is_real(model) else _SMALLEST_BUCKET_MIB
    return max(_SMALLEST_BUCKET_MIB, -(-4 * largest // (1 << 20)))


@lru_cache(maxsize=1)
def _processor_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return next(
        (frozenset(value.split()) for key, _, value in lines if key.strip().lower() in ("flags", "features")),
        frozenset(),
    )
