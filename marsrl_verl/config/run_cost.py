"""Upper bounds of a run: its length, what it and its evaluations generate, what its checkpoints take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.batching import BatchPlan, world_size
from marsrl_verl.config.model_shapes import ModelShape
from marsrl_verl.config.models import adapters
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.config.training_memory import ADAM_STATES, Numbers, adapter_parameters, shards
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.evaluation.suite import AFTER, ALONE, BEFORE
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.run_folder import read_evaluations
from marsrl_verl.settings.evaluation import EvaluationConfig

SHORT = 4
"""Responses a quarter as long as they may be make the lower end of the range of hours."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """Steps of a run."""

    total: int | None
    """Steps of the whole run; None: unknown without the data."""
    per_epoch: int | None
    """Steps of one epoch; None: no data was read."""


def run_length(config: DictConfig, rows: int | None) -> RunLength:
    """Steps as verl counts them: whole batches of so many rows (None: not read), times the
    epochs, unless the steps are set."""
    trainer = config.trainer
    per_epoch = None if rows is None else rows // int(config.data.train_batch_size)
    if trainer.total_training_steps is not None:
        return RunLength(int(trainer.total_training_steps), per_epoch)
    return RunLength(None if per_epoch is None else per_epoch * int(trainer.total_epochs), per_epoch)


def step_tokens(plan: BatchPlan, settings: MarsRLConfig) -> int:
    """Most tokens that the trained model generates for one step."""
    lengths = {role: one.max_new_tokens for role, one in settings.roles.items()}
    return plan.most(
        (stage, stage.group_size * sum(lengths[role] for role in own))
        for stage in plan.stages
        if (own := stage.written_by(settings.frozen_roles))
    )


def evaluation_at(settings: EvaluationConfig, tag: str) -> EvaluationConfig:
    """The settings of one evaluation: with `in_between` during training, else as they are."""
    return settings if tag in (BEFORE, AFTER, ALONE) else settings.between()


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """Upper bounds of one evaluation, the greedy pass included."""

    problems: int
    runs: int
    responses: int
    tokens: int
    """Tokens that the trained model generates."""


def evaluation_cost(settings: MarsRLConfig, tag: str, held_out: int, prompts: Prompts) -> EvaluationCost:
    """Tokens and the rest of one evaluation if no run ends early and every response is as long as its role
    may write, of so many held-out problems. A frozen policy's answers are not generated here."""
    one = evaluation_at(settings.evaluation, tag)
    rows = {name: each.problems or 0 for name, each in one.benchmarks.items()} or {"": held_out}
    taken = {
        name: count if one.problems is None else min(count, one.problems) for name, count in rows.items()
    }
    problems = sum(taken.values())
    runs = sum(count * (one.samples_of(name) + one.greedy) for name, count in taken.items())
    method = method_class(settings.algo.name)
    every = method_evaluation(method, settings.algo, one, prompts).max_calls
    calls = {role: count for role, count in every.items() if role not in settings.frozen_roles}
    tokens = sum(count * settings.roles[role].max_new_tokens for role, count in calls.items())
    return EvaluationCost(problems, runs, runs * sum(calls.values()), runs * tokens)


def evaluation_tokens(settings: MarsRLConfig, held_out: int, steps: int, prompts: Prompts) -> int:
    """Most tokens of all evaluations of a run of so many steps."""
    one = settings.evaluation
    between = steps // one.every if one.every > 0 else 0
    times = {BEFORE: int(one.before), AFTER: int(one.after), "step": between}
    return sum(
        count * evaluation_cost(settings, tag, held_out, prompts).tokens
        for tag, count in times.items()
        if count
    )


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Bytes of a run's checkpoints, without the part of the data's and the trajectories' state."""

    one: int
    count: int | None
    """Written in all; None where the run's length is not known."""
    most: int | None
    """Bytes of the disk at the fullest moment: an older one is deleted when a new one is written. None: all
    are kept, of a run whose length is not known."""


def checkpoint_cost(
    config: DictConfig, shapes: Sequence[ModelShape], steps: int | None
) -> CheckpointCost | None:
    """Bytes for a run of so many steps; None where nothing is saved, or the size of a model is not known."""
    trainer, contents = config.trainer, config.actor_rollout_ref.actor.checkpoint.save_contents
    every = int(trainer.save_freq)
    if every <= 0 or not shapes:
        return None
    numbers = Numbers(config)
    own = adapter_parameters(config, shapes[0])
    model = own or sum(shape.parameters for shape in shapes)
    # Each group of ranks that has all of the state writes it.
    copies = world_size(config) // shards(config)
    sizes = {"model": model * copies, "optimizer": model * copies * ADAM_STATES}
    if not adapters(config.actor_rollout_ref.rollout):
        sizes["hf_model"] = model
    one = numbers.master * sum(size for name, size in sizes.items() if name in contents)
    saved = None if steps is None else -(-steps // every)
    limit = trainer.max_actor_ckpt_to_keep
    counts = [count for count in (saved, None if limit is None else int(limit) + 1) if count is not None]
    return CheckpointCost(one, saved, one * min(counts) if counts else None)


def measured_rate(folder: Path) -> float | None:
    """Generated tokens per second of an earlier run, over its whole steps; None where it has none."""
    lines = read_metrics(folder)
    seconds = sum(line.timings.get("step") or 0.0 for line in lines)
    tokens = sum(line.metrics.get("rollout/generated_tokens") or 0.0 for line in lines)
    return tokens / seconds if seconds and tokens else None


def measured_evaluation_rate(folder: Path) -> float | None:
    """The same of its evaluations, which have no update and no sync; None where it has none."""
    records = read_evaluations(folder)
    seconds, tokens = sum(one.seconds for one in records), sum(one.generated_tokens for one in records)
    return tokens / seconds if seconds and tokens else None
