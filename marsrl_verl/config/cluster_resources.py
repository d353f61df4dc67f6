"""Resources that a run takes of a Ray cluster, and a check that the cluster has them.

Ray waits silently for resources that do not exist: a group of workers that fits on no node never starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from marsrl_verl.config.pools import own_pool_gpus

TRAINER_CPUS = 3
"""CPUs that verl reserves beside each GPU of the trainer (`ResourcePoolManager.max_colocate_count`)."""
CPU_PLATFORM_CPUS = 1
"""The same on the CPU platform, where `task_runner` asks for less: one process is all that works there."""
ENGINE_CPUS = 2
"""CPUs that verl reserves beside each GPU of an engine that has GPUs of its own (`init_standalone`)."""
_FREE_CPUS = 1
"""Every other process of a run (servers, rollout and reward workers) holds no CPU, but Ray starts it only
where one is free."""


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """Logical GPUs and CPUs that must lie on one node."""

    gpus: int
    cpus: int


def trainer_cpus(config: DictConfig) -> int:
    """CPUs that are reserved beside each GPU of the trainer."""
    return CPU_PLATFORM_CPUS if str(config.trainer.device) == "cpu" else TRAINER_CPUS


def demands(config: DictConfig) -> list[NodeDemand]:
    """Demands of the run, node by node; two of them may share a node."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    ranks = int(trainer.n_gpus_per_node)
    found = [NodeDemand(ranks, ranks * trainer_cpus(config))] * int(trainer.nnodes)
    if apart := own_pool_gpus(rollout):
        engine = int(rollout.tensor_model_parallel_size) * int(rollout.data_parallel_size)
        each = min(engine, int(rollout.n_gpus_per_node))
        found += [NodeDemand(each, each * ENGINE_CPUS)] * (apart // each)
    return found


def cpus_on_one_node(config: DictConfig) -> int:
    """CPUs that a machine needs to hold the whole run."""
    return sum(demand.cpus for demand in demands(config)) + _FREE_CPUS


def fits(required: Sequence[NodeDemand], nodes: Sequence[Mapping[str, float]]) -> bool:
    """True if nodes with these resources (`GPU`, `CPU`) can hold all demands: the largest first, each on the
    node that has the fewest GPUs left."""
    free = [[node.get("GPU", 0), node.get("CPU", 0) - _FREE_CPUS] for node in nodes]
    for demand in sorted(required, key=lambda one: (-one.gpus, -one.cpus)):
        having = [node for node in free if node[0] >= demand.gpus and node[1] >= demand.cpus]
        if not having:
            return False
        chosen = min(having, key=lambda node: (node[0], node[1]))
        chosen[0] -= demand.gpus
        chosen[1] -= demand.cpus
    return True


def describe_demands(required: Sequence[NodeDemand]) -> str:
    """E.g. `4 x (8 GPUs and 24 CPUs on one node), and a free CPU on each of these nodes`."""
    parts = [
        f"{count} x ({_amount(one.gpus, 'GPU')} and {_amount(one.cpus, 'CPU')} on one node)"
        for one, count in Counter(required).items()
    ]
    return f"{' and '.join(parts)}, and a free CPU on each of these nodes"


def describe_nodes(nodes: Sequence[Mapping[str, float]]) -> str:
    """E.g. `3 x (8 GPUs, 128 CPUs)`."""
    kinds = Counter((int(node.get("GPU", 0)), int(node.get("CPU", 0))) for node in nodes)
    parts = [
        f"{count} x ({_amount(gpus, 'GPU')}, {_amount(cpus, 'CPU')})" for (gpus, cpus), count in kinds.items()
    ]
    return ", ".join(parts) or "no node"


def _amount(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
