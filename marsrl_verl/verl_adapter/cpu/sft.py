"""verl's SFT trainer where there is no GPU: `torchrun … -m marsrl_verl.verl_adapter.cpu.sft`, with the
settings of `examples/sft/trainer.sh`."""

from __future__ import annotations

import os

import torch.distributed as dist
from verl.trainer import sft_trainer
from verl.utils import distributed
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


def gloo() -> tuple[int, int, int]:
    """A process group of gloo alone: verl's own names it twice on a processor, which torch refuses."""
    dist.init_process_group("gloo")
    return int(os.environ["LOCAL_RANK"]), dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    distributed.initialize_global_process_group = gloo
    # verl knows its FSDP engine for other devices only.
    EngineRegistry.register("language_model", "fsdp2", "cpu", "cpu")(FSDPEngineWithLMHead)
    sft_trainer.main()
