"""A gloo process group for the trainer's ranks."""

from __future__ import annotations

import os


def initialize_gloo() -> None:
    """Create the default process group with gloo, unless there is one.

    Upstream behaviour: `verl.utils.distributed.initialize_global_process_group_ray` asks for
    "cpu:gloo,<device>:<backend>", on this platform "cpu:gloo,cpu:gloo", which torch refuses as a
    duplicate. It leaves an existing group alone.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return
    dist.init_process_group(
        backend="gloo",
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )
