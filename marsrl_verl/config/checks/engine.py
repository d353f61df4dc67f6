"""Checks of numbers and names that verl, vLLM or Ray would refuse late, or accept without sense."""

from __future__ import annotations

from typing import Any

from marsrl_verl.config.checks.context import Context, at_least, one_of
from marsrl_verl.config.cluster_resources import cpus_on_one_node
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.settings.issues import ConfigIssue

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_CHUNKED = f"{_ROLLOUT}.enable_chunked_prefill"
_ENGINE_TYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_TRAINER_TYPES = ("fp32", "bf16", "fp16", "float32", "bfloat16", "float16")
_MOST_CPU_RANKS = 2
_PLATFORM = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"
_LEAST: tuple[tuple[str, float, str], ...] = (
    (f"{_ACTOR}.ppo_epochs", 1, "a step has an update"),
    ("reward.num_workers", 1, "somebody has to score the responses"),
    (f"{_ROLLOUT}.agent.num_workers", 1, "somebody has to ask the engine"),
    (f"{_ROLLOUT}.max_num_seqs", 1, "the engine decodes at least one sequence"),
    (f"{_ROLLOUT}.max_num_batched_tokens", 1, "the engine reads at least one token"),
    (f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 1, "weights travel in buckets"),
    ("data.dataloader_num_workers", 0, "0 reads in the driver"),
    (f"{_ACTOR}.optim.lr", 0, "it is the step of the optimizer"),
    (f"{_ACTOR}.optim.weight_decay", 0, "it shrinks the weights"),
    (f"{_ACTOR}.optim.clip_grad", 0, "it is the largest norm of a gradient"),
)


def check_numbers(ctx: Context) -> list[ConfigIssue]:
    """Numbers with a least value, or a range."""
    problems = [problem for key, least, why in _LEAST for problem in at_least(key, ctx.get(key), least, why)]
    key = f"{_ROLLOUT}.gpu_memory_utilization"
    share = ctx.get(key)
    if not 0.0 < share <= 1.0:
        what = "Expected a part of the GPU's memory: above 0, at most 1."
        problems.append(ConfigIssue(key, what, "0.6 is a usual choice.", share))
    key = f"{_ACTOR}.optim.lr_warmup_steps_ratio"
    ratio = ctx.get(key)
    if not 0.0 <= ratio <= 1.0:
        problems.append(ConfigIssue(key, "Expected a part of the steps: from 0 to 1.", "0.0 is none.", ratio))
    return problems


def check_names(ctx: Context) -> list[ConfigIssue]:
    """Names of devices, number formats and schedules."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("trainer.device", ("cuda", "cpu")),
        (f"{_ROLLOUT}.dtype", _ENGINE_TYPES),
        (f"{_ACTOR}.fsdp_config.dtype", _TRAINER_TYPES),
        (f"{_ACTOR}.fsdp_config.model_dtype", _TRAINER_TYPES),
        (f"{_ACTOR}.optim.lr_scheduler_type", ("constant", "cosine")),
    )
    problems = [problem for key, known in choices for problem in one_of(key, ctx.get(key), known)]
    style = ctx.get(f"{_ACTOR}.optim.warmup_style")
    if style is not None:
        what = "verl has another name for this key."
        fix = f"Remove it and set {_ACTOR}.optim.lr_scheduler_type."
        problems.append(ConfigIssue(f"{_ACTOR}.optim.warmup_style", what, fix, style))
    return problems


def check_engine_split(ctx: Context) -> list[ConfigIssue]:
    """Ways to split the engine's model that verl refuses for vLLM."""
    rollout = ctx.config.actor_rollout_ref.rollout
    problems: list[ConfigIssue] = []
    key = f"{_ROLLOUT}.pipeline_model_parallel_size"
    if rollout.pipeline_model_parallel_size > 1:
        fix = f"Leave it at 1 and set {_ROLLOUT}.tensor_model_parallel_size."
        problems.append(ConfigIssue(key, "verl does not split vLLM by layers.", fix, ctx.get(key)))
    key, experts = f"{_ROLLOUT}.expert_parallel_size", rollout.expert_parallel_size
    ranks = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    if experts < 1 or (experts > 1 and experts != ranks):
        what = f"Experts are spread over all ranks of an engine: tensor x data parallel = {ranks}."
        problems.append(ConfigIssue(key, what, f"Set it to 1 or {ranks}.", experts))
    return problems


def check_reading(ctx: Context) -> list[ConfigIssue]:
    """How many prompt tokens the engine reads at once, where prompts are read whole."""
    key, least = f"{_ROLLOUT}.max_num_batched_tokens", ctx.get(f"{_ROLLOUT}.max_model_len")
    if ctx.get(_CHUNKED) or ctx.get(key) >= least:
        return []
    what = f"Prompts are read whole ({_CHUNKED} = False), and the longest sequence has {least} tokens."
    return [ConfigIssue(key, what, f"Set it to at least {least}, or {_CHUNKED}=true.", ctx.get(key))]


def check_cpu(ctx: Context) -> list[ConfigIssue]:
    """What the processor cannot do."""
    if not ctx.on_cpu:
        return []
    problems: list[ConfigIssue] = []
    if ctx.get(_CHUNKED) and ctx.settings.run.seeded_tokens != "none":
        what = "vLLM's CPU engine dies when it reads a prompt in parts for a request with a seed of its own."
        problems.append(
            ConfigIssue(_CHUNKED, what, "Set it to false, or marsrl.run.seeded_tokens=none.", True)
        )
    if ctx.get(_PLATFORM) != "cpu":
        what = "The CPU needs more settings than this one: engine, number formats, variables of the workers."
        problems.append(ConfigIssue("trainer.device", what, "Leave it out and choose cluster=cpu.", "cpu"))
    ranks, nodes = ctx.config.trainer.n_gpus_per_node, ctx.config.trainer.nnodes
    if ranks > _MOST_CPU_RANKS:
        what = f"The CPU platform runs with 1 or {_MOST_CPU_RANKS} ranks; more would wait for each other."
        problems.append(
            ConfigIssue("trainer.n_gpus_per_node", what, f"Set it to at most {_MOST_CPU_RANKS}.", ranks)
        )
    if nodes > 1:
        what = "The CPU platform runs on one machine."
        problems.append(ConfigIssue("trainer.nnodes", what, "Set it to 1, or use a GPU cluster.", nodes))
    for name in ("offload_policy", "param_offload", "optimizer_offload"):
        key = f"{_ACTOR}.fsdp_config.{name}"
        if ctx.get(key):
            what = "Weights and optimizer already lie in main memory."
            problems.append(ConfigIssue(key, what, "Leave it false.", True))
    return problems


def check_ray_resources(ctx: Context) -> list[ConfigIssue]:
    """Resources that a Ray of this run's own would declare: too few, and every worker waits forever."""
    if joins_cluster(ctx.config):
        return []  # the cluster has its own, and the launcher drops these keys
    gpus = ctx.config.trainer.n_gpus_per_node + own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    cpus = cpus_on_one_node(ctx.config)
    resources: tuple[tuple[str, Any, str], ...] = (
        ("num_gpus", gpus, "trainer.n_gpus_per_node and the engine's own"),
        ("num_cpus", cpus, "those beside the GPUs, and a free one"),
    )
    problems: list[ConfigIssue] = []
    for name, least, meaning in resources:
        key = f"ray_kwargs.ray_init.{name}"
        value = ctx.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            problems.append(ConfigIssue(key, "Expected a number.", "Leave it out: Ray counts them.", value))
        elif value < least:
            what = f"The run asks Ray for more ({meaning} = {least}) and would wait for them forever."
            problems.append(ConfigIssue(key, what, "Leave it out: Ray counts them.", value))
    return problems
