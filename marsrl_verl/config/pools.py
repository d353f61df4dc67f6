"""GPUs on which the engine decodes: the trainer's, or its own.

verl's own keys decide: `actor_rollout_ref.rollout.nnodes` above 0 gives the engine nodes of its own, with
`actor_rollout_ref.rollout.n_gpus_per_node` GPUs each; weights then travel through the checkpoint engine
named by `actor_rollout_ref.rollout.checkpoint_engine.backend`.
"""

from __future__ import annotations

from typing import Any

SHARED_SYNC = "naive"
"""verl's weight sync inside the processes that trainer and engine share."""
CPU_SYNC = "gloo"
"""Our weight sync between two pools on the CPU platform (`verl_adapter.cpu.weight_sync`)."""
GPU_SYNC = "nccl"
"""verl's weight sync between two pools of NVIDIA GPUs."""
CPU_SYNC_MODULE = "marsrl_verl.verl_adapter.cpu.weight_sync"


def own_pool_gpus(rollout: Any) -> int:
    """GPUs of the engine alone, by `actor_rollout_ref.rollout`; 0 where it shares the trainer's."""
    return int(rollout.nnodes) * int(rollout.n_gpus_per_node) if int(rollout.nnodes) > 0 else 0
