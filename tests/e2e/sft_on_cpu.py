"""verl's SFT trainer where there is no GPU: a process group of gloo alone, and an engine for the device."""

from __future__ import annotations

import os

import torch.distributed as dist
from verl.trainer import sft_trainer
from verl.utils import distributed
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead


def gloo() -> tuple[int, int, int]:
    """verl's own names gloo twice on a processor, which torch refuses."""
    dist.init_process_group("gloo")
    return int(os.environ["LOCAL_RANK"]), dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    distributed.initialize_global_process_group = gloo
    EngineRegistry.register("language_model", "fsdp2", "cpu", "cpu")(FSDPEngineWithLMHead)
    sft_trainer.main()
