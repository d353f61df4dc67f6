"""The plan of a run as a whole: its length, its time, what is kept of it."""

from __future__ import annotations

import os
from pathlib import Path

from marsrl_verl.config.batching import BatchPlan
from marsrl_verl.config.checks.batch import training_rows
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.loggers import AUTO, default_loggers
from marsrl_verl.config.memory import model_shapes
from marsrl_verl.config.run_cost import (
    SHORT,
    RunLength,
    checkpoint_cost,
    evaluation_tokens,
    measured_evaluation_rate,
    measured_rate,
    run_length,
    step_tokens,
)
from marsrl_verl.core.schedule import EpochMode
from marsrl_verl.data.files import as_list
from marsrl_verl.reporting.storage import size_text


def whole_run(ctx: Context, plan: BatchPlan) -> list[str]:
    """Steps, tokens, hours, and what is kept."""
    config, run = ctx.config, ctx.settings.run
    rows = training_rows(ctx) if _read(ctx, "train") else None
    length, barrier = run_length(config, rows), ctx.method.Schedule.epoch_mode is EpochMode.BARRIER
    bound = None
    if barrier and rows is not None:
        bound = ctx.method.Schedule.max_steps(ctx.settings.algo, rows, int(config.data.train_batch_size))
    tokens, total = step_tokens(plan, ctx.settings), None
    steps = f"{config.trainer.total_epochs:,} epochs of data that was not read"
    if length.total is not None:
        steps, total = f"{length.total:,}", length.total * tokens
        if length.per_epoch:
            epochs = length.total * int(config.data.train_batch_size) / training_rows(ctx)
            steps += f", {epochs:,.1f} epochs of {length.per_epoch:,}"
        if bound is not None and bound <= length.total:
            length = RunLength(bound, length.per_epoch)
            steps, total = f"{bound:,} at most, if every epoch has all problems", bound * tokens
    limits = ((run.max_generated_tokens, "generated tokens"), (run.max_tool_calls, "tool calls"))
    ends = [f"{limit:,} {what}" for limit, what in limits if limit is not None]
    if barrier:
        ends.append("the method's last epoch")
    facts = [("steps", steps if not ends else f"{steps}; ends earlier after {' or '.join(ends)}")]
    if total is None:
        facts.append(("tokens, at most", f"{tokens:,} in a step"))
    else:
        if run.max_generated_tokens is not None:
            total = min(total, run.max_generated_tokens + tokens)
        facts.append(("tokens, at most", f"{tokens:,} in a step, {total:,} in all"))
        facts.append(("time", _time(ctx, total, length.total or 0)))
    facts += [("checkpoints", _checkpoints(ctx, length.total)), ("trackers", _trackers(ctx))]
    return ["Whole run", *(f"  {name:<19} {value}" for name, value in facts)]


def _time(ctx: Context, training: int, steps: int) -> str:
    """The time of training and evaluations, as a range: responses are seldom as long as they may be."""
    rate, source, apart = ctx.settings.hardware.tokens_per_second, "as given", None
    if rate is None and (folder := ctx.settings.hardware.measured_run) is not None:
        rate, source = measured_rate(Path(folder)), f"as in {folder}"
        apart = measured_evaluation_rate(Path(folder))
    if rate is None:
        return "not known: give marsrl.hardware.tokens_per_second, or an earlier run as measured_run"
    held_out = sum(report.rows for report in ctx.files if report.split == "val")
    evaluating = evaluation_tokens(ctx.settings, held_out, steps, ctx.prompts()) / (apart or rate) / 3600
    most = training / rate / 3600 + evaluating
    share = speed = ""
    if evaluating:
        part = evaluating / most
        share = f", {f'{part:.0%}' if part >= 0.01 else 'under 1%'} of it evaluations"
        share += " (upper bound: they have no update)" if apart is None else ""
        speed = f" ({apart:,.0f} in evaluations)" if apart is not None else ""
    return (
        f"{_duration(most / SHORT)} to {_duration(most)}{share}: {rate:,.0f} tokens/s{speed}, {source}; "
        f"responses from 1/{SHORT} of their greatest length to all of it"
    )


def _duration(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"


def _checkpoints(ctx: Context, steps: int | None) -> str:
    cost = checkpoint_cost(ctx.config, model_shapes(ctx.config), steps)
    every = int(ctx.config.trainer.save_freq)
    if every <= 0:
        return "none (trainer.save_freq)"
    when = f"every {every:,} steps" if every > 1 else "after every step"
    if cost is None:
        return f"{when}; their size is not known"
    if cost.count is not None:
        when += f", {cost.count:,} in all"
    limit = ctx.config.trainer.max_actor_ckpt_to_keep
    kept = "all are kept" if limit is None else f"the newest {limit} are kept"
    kept = "the newest is kept" if limit == 1 else kept
    disk = "as many as are written" if cost.most is None else size_text(cost.most)
    return f"{size_text(cost.one)} {when}; {kept} (trainer.max_actor_ckpt_to_keep); disk needed: {disk}"


def _trackers(ctx: Context) -> str:
    """Names the loggers that get metrics beside the run's folder."""
    named = ctx.get("trainer.logger")
    if list(named or []) != [AUTO]:
        return f"{', '.join(named or []) or 'none'} (trainer.logger)"
    here = "is" if default_loggers(os.environ) else "isn't"
    return f"wandb where the trainer finds it installed and logged in, which it {here} here (trainer.logger)"


def _read(ctx: Context, split: str) -> bool:
    """True if every file of the split was read; files on other file systems are not."""
    read = sum(report.split == split for report in ctx.files)
    return 0 < read == len(as_list(ctx.get(f"data.{split}_files")))
