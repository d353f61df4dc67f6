"""Checks of what the engine, the processor and Ray can do."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.cluster_resources import cpus_on_one_node
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.settings.issues import ConfigIssue

_ROLLOUT, _FSDP = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config"
_CHUNKED = f"{_ROLLOUT}.enable_chunked_prefill"
_MOST_CPU_RANKS = 2
_PLATFORM = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"


def check_reading(ctx: Context) -> Iterator[ConfigIssue]:
    """How many prompt tokens the engine reads at once, where prompts are read whole."""
    key, least = f"{_ROLLOUT}.max_num_batched_tokens", ctx.get(f"{_ROLLOUT}.max_model_len")
    if not ctx.get(_CHUNKED) and ctx.get(key) < least:
        what = f"Prompts are read whole ({_CHUNKED} = False), and the longest sequence has {least} tokens."
        yield ctx.issue(key, what, f"Set it to at least {least}, or {_CHUNKED}=true.")


def check_cpu(ctx: Context) -> Iterator[ConfigIssue]:
    """What the processor cannot do."""
    if not ctx.on_cpu:
        return
    if ctx.get(_CHUNKED) and ctx.settings.run.seeded_tokens != "none":
        what = "vLLM's CPU engine dies when it reads a prompt in parts for a request with a seed of its own."
        yield ctx.issue(_CHUNKED, what, "Set it to false, or marsrl.run.seeded_tokens=none.")
    if ctx.get(_PLATFORM) != "cpu":
        what = "The CPU needs more settings than this one: engine, number formats, variables of the workers."
        yield ctx.issue("trainer.device", what, "Leave it out and choose cluster=cpu.")
    if ctx.config.trainer.n_gpus_per_node > _MOST_CPU_RANKS:
        what = f"The CPU platform runs with 1 or {_MOST_CPU_RANKS} ranks; more would wait for each other."
        yield ctx.issue("trainer.n_gpus_per_node", what, f"Set it to at most {_MOST_CPU_RANKS}.")
    if ctx.config.trainer.nnodes > 1:
        what = "The CPU platform runs on one machine."
        yield ctx.issue("trainer.nnodes", what, "Set it to 1, or use a GPU cluster.")
    for name in ("offload_policy", "param_offload", "optimizer_offload"):
        if ctx.get(f"{_FSDP}.{name}"):
            what = "Weights and optimizer already lie in main memory."
            yield ctx.issue(f"{_FSDP}.{name}", what, "Leave it false.")


def check_ray_resources(ctx: Context) -> Iterator[ConfigIssue]:
    """Resources that a Ray of this run's own would declare: too few, and every worker waits forever."""
    if joins_cluster(ctx.config):
        return  # the cluster has its own, and the launcher drops these keys
    gpus = ctx.config.trainer.n_gpus_per_node + own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    for name, least, meaning in (
        ("num_gpus", gpus, "trainer.n_gpus_per_node and the engine's own"),
        ("num_cpus", cpus_on_one_node(ctx.config), "those reserved with the GPUs, and a free one"),
    ):
        key = f"ray_kwargs.ray_init.{name}"
        value, fix = ctx.get(key), "Leave it out: Ray counts them."
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            yield ctx.issue(key, "Expected a number.", fix)
        elif value is not None and value < least:
            what = f"The run asks Ray for more ({meaning} = {least}) and would wait for them forever."
            yield ctx.issue(key, what, fix)
