"""The cluster that a run is connected to, looked at before anything waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.config.cluster_resources import demands, describe_demands, describe_nodes, fits
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

Nodes = Sequence[Mapping[str, float]]
_PAUSE = 5.0
"""Seconds between two looks."""


def require_resources(
    config: DictConfig,
    look: Callable[[], tuple[Nodes, Nodes]] | None = None,
    sleep: Callable[[float], Any] = time.sleep,
) -> None:
    """Returns once the cluster can give the run what it takes; `look` returns the resources of all nodes, and
    what is free of them. ConfigError: it could not within `marsrl.run.cluster_wait_s` seconds."""
    look = look or _ask_ray
    required, left = demands(config), float(config.marsrl.run.cluster_wait_s)
    nodes, free = look()
    if not fits(required, free) and left > 0:
        print(
            f"The cluster has {describe_nodes(free)} free; waiting up to {left:.0f} s for "
            f"{describe_demands(required)}.",
            flush=True,
        )
    while not fits(required, free) and left > 0:
        sleep(min(_PAUSE, left))
        left -= _PAUSE
        nodes, free = look()
    if not fits(required, free):
        raise ConfigError([_shortage(config, nodes, free)])


def _shortage(config: DictConfig, nodes: Nodes, free: Nodes) -> ConfigIssue:
    required = demands(config)
    what = f"The run takes {describe_demands(required)}. "
    if fits(required, nodes):
        what += f"The cluster has that, but others use it: free are {describe_nodes(free)}."
        fix = "End them, or set marsrl.run.cluster_wait_s to the seconds that the run may wait for them."
    elif joins_cluster(config):
        what += f"The cluster has {describe_nodes(nodes)}."
        fix = "Name a smaller cluster, or add nodes (`ray start --num-cpus --num-gpus` says what one offers)"
        fix += "; for nodes that are about to join set marsrl.run.cluster_wait_s to seconds."
    else:
        what += f"This machine has {describe_nodes(nodes)}."
        fix = "Use fewer GPUs (trainer.n_gpus_per_node)."
    return ConfigIssue("trainer.n_gpus_per_node", what, fix, config.trainer.n_gpus_per_node)


def _ask_ray() -> tuple[Nodes, Nodes]:
    import ray
    from ray._private.state import available_resources_per_node  # as verl's own check of GPUs

    alive = [node for node in ray.nodes() if node["Alive"]]
    # A node that has just come may not have reported yet: none of it is in use.
    free = available_resources_per_node()
    nodes = [node["Resources"] for node in alive]
    return nodes, [free.get(node["NodeID"], node["Resources"]) for node in alive]
