"""Differences of verl's trainer ranks on the CPU: process group, offloading."""

from __future__ import annotations

import os
from typing import Any


def initialize_gloo() -> None:
    """Creates the default process group with gloo, unless there is one. Upstream behaviour:
    `verl.utils.distributed.initialize_global_process_group_ray`, which leaves an existing one alone, asks for
    "cpu:gloo,<device>:<backend>", here "cpu:gloo,cpu:gloo", which torch rejects as a duplicate."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    dist.init_process_group(
        backend="gloo",
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )


def offload_without_pinned_memory() -> None:
    """Lets verl offload weights as FSDP2 does, from main memory into main memory. Upstream behaviour:
    `FSDPEngine._build_fsdp_module` gives a model that is only read, or trains with `offload_policy`, the
    `CPUOffloadPolicy` that its module names, with pinned memory, which only a machine with an accelerator
    has."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.workers.engine.fsdp import transformer_impl

    def unpinned(**_: Any) -> CPUOffloadPolicy:
        return CPUOffloadPolicy(pin_memory=False)

    transformer_impl.CPUOffloadPolicy = unpinned
