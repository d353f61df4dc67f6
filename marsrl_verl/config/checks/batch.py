"""Checks of batch sizes, ranks and parallelism."""

from __future__ import annotations

from typing import Any

from marsrl_verl.config.batching import plan_batch, world_size
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.settings.issues import ConfigIssue

_PARALLEL_KEYS = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


def _whole(key: str, value: Any, least: int = 1) -> list[ConfigIssue]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [
        ConfigIssue(
            key, f"Expected a whole number of at least {least}.", f"Set {key}={max(least, 1)} or more.", value
        )
    ]


def _steps(value: Any) -> list[ConfigIssue]:
    key = "trainer.total_training_steps"
    if value != 0:
        return _whole(key, value)
    return [
        ConfigIssue(key, "A run trains at least one step.", "To evaluate alone set trainer.val_only=true.", 0)
    ]


def check_sizes(ctx: Context) -> list[ConfigIssue]:
    """Numbers of problems, nodes, GPUs and steps."""
    config = ctx.config
    problems = [
        *_whole("data.train_batch_size", config.data.train_batch_size),
        *_whole("trainer.nnodes", config.trainer.nnodes),
        *_whole("trainer.n_gpus_per_node", config.trainer.n_gpus_per_node),
        *_whole("trainer.total_epochs", config.trainer.total_epochs),
    ]
    if config.trainer.total_training_steps is not None:
        problems += _steps(config.trainer.total_training_steps)
    return problems


def check_parallelism(ctx: Context) -> list[ConfigIssue]:
    """Ulysses and the engine's parallelism must divide the GPUs."""
    gpus = world_size(ctx.config)
    problems: list[ConfigIssue] = []
    ulysses_key = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    ulysses = ctx.get(ulysses_key)
    if not isinstance(ulysses, int) or ulysses < 1 or gpus % ulysses:
        problems.append(
            ConfigIssue(
                ulysses_key, f"It must divide the {gpus} GPUs of the run.", "Set it to a divisor.", ulysses
            )
        )
    elif ulysses > 1 and not ctx.config.actor_rollout_ref.model.use_remove_padding:
        problems.append(
            ConfigIssue(
                ulysses_key,
                "Sequences can only be spread over GPUs when padding is removed.",
                "Set it to 1, or actor_rollout_ref.model.use_remove_padding=true.",
                ulysses,
            )
        )
    rollout = ctx.config.actor_rollout_ref.rollout
    engine = 1
    for name in _PARALLEL_KEYS:
        engine *= int(rollout[name])
    apart = own_pool_gpus(rollout)
    if engine < 1 or (apart or gpus) % engine:
        problems.append(
            ConfigIssue(
                "actor_rollout_ref.rollout.tensor_model_parallel_size",
                f"One engine takes {engine} GPUs (tensor x data x pipeline parallel), which does not divide "
                + (f"the {apart} GPUs of the engines' pool." if apart else f"the {gpus} GPUs of the run."),
                "Lower it so that the GPUs divide into engines.",
                rollout.tensor_model_parallel_size,
            )
        )
    return problems


def check_updates(ctx: Context) -> list[ConfigIssue]:
    """Optimizer updates per step against what a step can hold."""
    plan, pipeline = plan_batch(ctx.config, ctx.settings), ctx.settings.pipeline
    if pipeline.samples_per_update is not None:
        if pipeline.updates_per_step != 1:
            what = "marsrl.pipeline.samples_per_update says how many updates a step has."
            fix = "Set one of the two."
            return [ConfigIssue("marsrl.pipeline.updates_per_step", what, fix, pipeline.updates_per_step)]
        if pipeline.samples_per_update > plan.trained_rows:
            key, most = "marsrl.pipeline.samples_per_update", plan.trained_rows
            what = f"A step trains at most {most:,} responses, so it would always have one update."
            return [ConfigIssue(key, what, "Lower it, or leave it at null.", pipeline.samples_per_update)]
        return []
    if pipeline.updates_per_step <= plan.trained_groups:
        return []
    return [
        ConfigIssue(
            "marsrl.pipeline.updates_per_step",
            f"A step trains at most {plan.trained_groups} groups ({plan.trained_rows} "
            "responses), fewer than one per update.",
            "Lower it, or raise data.train_batch_size.",
            pipeline.updates_per_step,
        )
    ]


def check_rank_share(ctx: Context) -> list[ConfigIssue]:
    """verl's own rule for micro-batches of a fixed size."""
    gpus, wanted = world_size(ctx.config), ctx.config.data.train_batch_size
    if ctx.config.actor_rollout_ref.actor.use_dynamic_bsz or wanted % gpus == 0:
        return []
    near = max(gpus, wanted - wanted % gpus)
    return [
        ConfigIssue(
            "data.train_batch_size",
            f"With micro-batches of a fixed size verl wants a multiple of the {gpus} ranks.",
            f"Set it to {near}, or use_dynamic_bsz=true (actor and rollout.log_prob).",
            wanted,
        )
    ]


_FIXED_SIZES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
)
_OLD_SIZES = (
    "actor_rollout_ref.actor.ppo_micro_batch_size",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size",
)


def check_micro_batches(ctx: Context) -> list[ConfigIssue]:
    """Micro-batches are cut by tokens (`use_dynamic_bsz`) or have one fixed number of rows."""
    actor, rollout = ctx.config.actor_rollout_ref.actor, ctx.config.actor_rollout_ref.rollout
    if rollout.log_prob_use_dynamic_bsz is not actor.use_dynamic_bsz:
        return [
            ConfigIssue(
                "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
                f"It differs from actor_rollout_ref.actor.use_dynamic_bsz = {actor.use_dynamic_bsz}.",
                "Give both the same value.",
                rollout.log_prob_use_dynamic_bsz,
            )
        ]
    if not actor.use_dynamic_bsz:
        return _check_fixed_sizes(ctx)
    return [
        ConfigIssue(
            key,
            "It has no effect: micro-batches are cut by tokens (use_dynamic_bsz).",
            "Remove it and set actor_rollout_ref.actor.ppo_max_token_len_per_gpu.",
            ctx.get(key),
        )
        for key in (*_FIXED_SIZES, *_OLD_SIZES)
        if ctx.get(key) is not None
    ]


def _check_fixed_sizes(ctx: Context) -> list[ConfigIssue]:
    update, log_prob = (ctx.get(key) for key in _FIXED_SIZES)
    problems = [
        ConfigIssue(
            key, "verl's workers read the size per GPU.", f"Remove it and set {key}_per_gpu.", ctx.get(key)
        )
        for key in _OLD_SIZES
        if ctx.get(key) is not None
    ]
    if update is None or update < 1:
        fix = "Set it to the rows of a micro-batch, or actor_rollout_ref.actor.use_dynamic_bsz=true."
        return [
            *problems,
            ConfigIssue(_FIXED_SIZES[0], "Micro-batches have a fixed size, and it is missing.", fix, update),
        ]
    if log_prob != update:
        what = f"Rows are padded to whole micro-batches of {update}, the size of the update's."
        problems.append(ConfigIssue(_FIXED_SIZES[1], what, f"Set it to {update}.", log_prob))
    return problems


def training_rows(ctx: Context) -> int:
    """Rows of the training files that are drawn. verl takes `data.train_max_samples` of all rows first, too
    long ones among them; with both, this is the number that is left at least."""
    files = [report for report in ctx.files if report.split == "train"]
    rows = sum(report.rows for report in files)
    too_long = rows - sum(report.asked for report in files)
    most = ctx.config.data.train_max_samples
    drawn = min(rows, most) if most > 0 else rows
    return max(0, drawn - too_long) if ctx.config.data.filter_overlong_prompts else drawn


def check_data_size(ctx: Context) -> list[ConfigIssue]:
    """A step's problems must fit into the training data."""
    rows = training_rows(ctx)
    wanted = ctx.config.data.train_batch_size
    if not any(report.split == "train" for report in ctx.files) or wanted <= rows:
        return []
    return [
        ConfigIssue(
            "data.train_batch_size",
            f"The training data has {rows} problems, fewer than one step takes; no batch would be complete.",
            f"Set it to at most {rows}, or give more data.",
            wanted,
        )
    ]
