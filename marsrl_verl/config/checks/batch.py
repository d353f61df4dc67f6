"""Checks of batch sizes, ranks and parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config.batching import plan_batch, world_size
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.core.schedule import EpochMode
from marsrl_verl.settings.issues import ConfigIssue

_ACTOR, _REF, _ROLLOUT = (f"actor_rollout_ref.{one}" for one in ("actor", "ref", "rollout"))
_TENSOR, _LAYERS = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ROLLOUT}.pipeline_model_parallel_size"
_MODEL, _ULYSSES = "actor_rollout_ref.model", "fsdp_config.ulysses_sequence_parallel_size"
_ATTENTION, _FLASH = f"{_MODEL}.override_config.attn_implementation", "flash_attention_2"


def check_parallelism(ctx: Context) -> Iterator[ConfigIssue]:
    """Ulysses and the engine's parallelism must divide the GPUs."""
    gpus, rollout = world_size(ctx.config), ctx.config.actor_rollout_ref.rollout
    yield from _check_ulysses(ctx, f"{_ACTOR}.{_ULYSSES}")
    if ctx.get(f"{_REF}.{_ULYSSES}") != ctx.get(f"{_ACTOR}.{_ULYSSES}"):  # unless it follows the actor's
        yield from _check_ulysses(ctx, f"{_REF}.{_ULYSSES}")
    ranks = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    engine, apart = ranks * rollout.pipeline_model_parallel_size, own_pool_gpus(rollout)
    if engine < 1 or (apart or gpus) % engine:
        whose = "the engines' pool" if apart else "the run"
        what = (
            f"One engine takes {engine} GPUs (tensor x data x pipeline parallel), which does not divide "
            f"{apart or gpus}, the number of GPUs of {whose}."
        )
        yield ctx.issue(_TENSOR, what, "Lower it so that the GPUs divide into engines.")
    if rollout.pipeline_model_parallel_size > 1:
        yield ctx.issue(_LAYERS, "verl does not split vLLM by layers.", f"Leave it at 1 and set {_TENSOR}.")
    experts = rollout.expert_parallel_size
    if experts < 1 or (experts > 1 and experts != ranks):
        what = f"Experts are spread over all ranks of an engine: tensor x data parallel = {ranks}."
        yield ctx.issue(f"{_ROLLOUT}.expert_parallel_size", what, f"Set it to 1 or {ranks}.")


def _check_ulysses(ctx: Context, key: str) -> Iterator[ConfigIssue]:
    gpus, ulysses, attention = world_size(ctx.config), ctx.get(key), ctx.get(_ATTENTION) or _FLASH
    if ulysses < 1 or gpus % ulysses:
        yield ctx.issue(key, f"It must divide {gpus}, the number of GPUs of the run.", "Set it to a divisor.")
    elif ulysses > 1 and not ctx.get(f"{_MODEL}.use_remove_padding"):
        what = "Sequences can only be spread over GPUs when padding is removed."
        yield ctx.issue(key, what, f"Set it to 1, or {_MODEL}.use_remove_padding=true.")
    elif ulysses > 1 and "flash" not in attention:
        what = (
            f"verl exchanges heads between GPUs inside flash attention alone: with {attention} a token would "
            "see only the part of its sequence that lies on its own GPU."
        )
        yield ctx.issue(key, what, f"Set it to 1, or {_ATTENTION}={_FLASH}.")


def check_updates(ctx: Context) -> Iterator[ConfigIssue]:
    """Optimizer updates per step against what a step can hold."""
    plan, pipeline = plan_batch(ctx.config, ctx.settings), ctx.settings.pipeline
    samples, updates = "marsrl.pipeline.samples_per_update", "marsrl.pipeline.updates_per_step"
    if pipeline.samples_per_update is None:
        if pipeline.updates_per_step > plan.trained_groups:
            what = (
                f"A step trains at most {plan.trained_groups} groups ({plan.trained_rows} rows), fewer "
                "than one per update."
            )
            yield ctx.issue(updates, what, "Lower it, or raise data.train_batch_size.")
    elif pipeline.updates_per_step != 1:
        yield ctx.issue(updates, f"{samples} says how many updates a step has.", "Set one of the two.")
    elif pipeline.samples_per_update > plan.trained_rows:
        what = f"A step trains at most {plan.trained_rows:,} responses, so it would always have one update."
        yield ctx.issue(samples, what, "Lower it, or leave it at null.")


def check_rank_share(ctx: Context) -> Iterator[ConfigIssue]:
    """verl's own rule for micro-batches of a fixed size."""
    gpus, batch_size = world_size(ctx.config), ctx.config.data.train_batch_size
    if not ctx.config.actor_rollout_ref.actor.use_dynamic_bsz and batch_size % gpus:
        what = f"With micro-batches of a fixed size verl wants a multiple of the {gpus} ranks."
        fix = (
            f"Set it to {max(gpus, batch_size - batch_size % gpus)}, or use_dynamic_bsz=true (actor and "
            "rollout.log_prob)."
        )
        yield ctx.issue("data.train_batch_size", what, fix)


def training_rows(ctx: Context) -> int:
    """Rows of the training files that are drawn. verl takes `data.train_max_samples` of all rows first, too
    long ones among them; with both, this is the number that is left at least."""
    files = [report for report in ctx.files if report.split == "train"]
    rows = sum(report.rows for report in files)
    too_long = rows - sum(report.prompted for report in files)
    most = ctx.config.data.train_max_samples
    drawn = min(rows, most) if most > 0 else rows
    return max(0, drawn - too_long) if ctx.config.data.filter_overlong_prompts else drawn


def check_data_size(ctx: Context) -> Iterator[ConfigIssue]:
    """A pass over the training data must fill a batch; where a step may take more, it is warned of."""
    rows, read = training_rows(ctx), any(report.split == "train" for report in ctx.files)
    if read and ctx.config.data.train_batch_size > rows:
        what = (
            f"The training data has {rows} problems, fewer than one step takes; no batch would be complete."
        )
        yield ctx.issue("data.train_batch_size", what, f"Set it to at most {rows}, or give more data.")
        return
    most, batch = plan_batch(ctx.config, ctx.settings).problems, int(ctx.config.data.train_batch_size)
    whole = rows - rows % batch  # verl leaves out what fills no batch
    if read and most > whole and ctx.method.Schedule.epoch_mode is EpochMode.CONTINUOUS:
        ctx.warnings.append(
            f"a step may take up to {most} problems, and a pass over the training data has {whole}: it then "
            "goes on with the next pass, and problems come twice in a step"
        )
