"""The batch arithmetic of a training step, resolved from the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.schema import MarsRLConfig, PipelineConfig
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.core.stage import Stage


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Upper bounds of one step; with `pipelined` those of the steady state."""

    stages: tuple[Stage, ...]
    problems: int
    """New problems per step; where their number is adapted, the most there may be."""
    pipelined: bool
    updates: int
    """Optimizer updates per step; with `samples_per_update` those of the largest batch."""
    world_size: int
    sequence_parallel: int
    prompt_budget: int | None
    micro_batch_rows: int | None = None
    """Rows of a micro-batch where its size is fixed; None: it is cut by tokens."""
    samples_per_update: int | None = None
    """Samples that an update should have where the number of updates follows from it."""
    max_trained: int | None = None
    """Most responses to a problem that one step trains (`Schedule.max_trained`)."""

    @property
    def groups(self) -> int:
        """Most rollout requests decoded in a step."""
        total = self.problems * sum(stage.groups_per_problem for stage in self.stages)
        return min(total, self.prompt_budget) if self.pipelined and self.prompt_budget else total

    @property
    def samples(self) -> int:
        """Most responses sampled in a step."""
        return self.most((stage, stage.group_size) for stage in self.stages)

    @property
    def trained_groups(self) -> int:
        """Most groups that enter the loss in a step."""
        per_problem = sum(stage.groups_per_problem for stage in self.stages if stage.trained)
        return min(self.groups, self.problems * per_problem)

    @property
    def trained_rows(self) -> int:
        """Most rows of the batch: responses that enter the loss in a step, or sequences of them."""
        stages = [stage for stage in self.stages if stage.trained]
        rows = self.most((stage, stage.group_size * stage.max_rows) for stage in stages)
        if self.max_trained is None:
            return rows
        widest = max((stage.max_rows for stage in stages), default=1)
        return min(rows, self.problems * self.max_trained * widest)

    def most(self, sizes: Iterable[tuple[Stage, int]]) -> int:
        """The largest sum over a step's groups, where each group of a stage has this size."""
        left, total = self.groups, 0
        for stage, size in sorted(sizes, key=lambda each: -each[1]):
            count = min(left, self.problems * stage.groups_per_problem)
            total, left = total + count * size, left - count
        return total

    @property
    def ranks(self) -> int:
        """Data-parallel ranks: GPUs that see different rows."""
        return self.world_size // self.sequence_parallel

    @property
    def row_multiple(self) -> int:
        """Rows of a training batch are padded to a multiple of this, so that every rank and every
        update gets equally many, in whole micro-batches where their size is fixed."""
        return self.ranks * self.updates * (self.micro_batch_rows or 1)

    @property
    def padded_rows(self) -> int:
        """Rows of the largest batch, padding included."""
        return -(-self.trained_rows // self.row_multiple) * self.row_multiple

    @property
    def rows_per_update(self) -> int:
        """Rows of one optimizer update in the largest batch."""
        return self.padded_rows // self.updates

    @property
    def rows_per_rank(self) -> int:
        """Rows of one rank in one optimizer update of the largest batch: its mini-batch."""
        return self.padded_rows // (self.ranks * self.updates)

    @property
    def rounds(self) -> int:
        """Generation rounds per step (with a prompt budget a sequential step may need more)."""
        return 1 if self.pipelined else len(self.stages)


def world_size(config: DictConfig) -> int:
    """GPUs (or CPU ranks) of the run."""
    return int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)


def plan_batch(config: DictConfig, settings: MarsRLConfig) -> BatchPlan:
    """The arithmetic of a checked configuration."""
    actor = config.actor_rollout_ref.actor
    fixed = None if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu)
    method = method_class(settings.algo.name)
    plan = BatchPlan(
        stages=tuple(_without_frozen(stage, settings) for stage in method.stages(settings.algo)),
        problems=method.Schedule.max_problems(settings.algo, int(config.data.train_batch_size)),
        pipelined=settings.pipeline.mode is Mode.PIPELINED,
        updates=settings.pipeline.updates_per_step,
        world_size=world_size(config),
        sequence_parallel=int(actor.fsdp_config.ulysses_sequence_parallel_size),
        prompt_budget=settings.pipeline.step_prompt_budget,
        micro_batch_rows=fixed,
        samples_per_update=settings.pipeline.samples_per_update,
        max_trained=method.Schedule.max_trained(settings.algo),
    )
    return replace(plan, updates=optimizer_updates(settings.pipeline, plan.trained_rows))


def _without_frozen(stage: Stage, settings: MarsRLConfig) -> Stage:
    """The stage without the sequences of a frozen policy, which are not trained."""
    if not stage.writers:
        return stage
    own = stage.written_by(settings.frozen_roles)
    return replace(stage, rows_per_response=min(stage.max_rows, len(own)))


def optimizer_updates(pipeline: PipelineConfig, samples: int) -> int:
    """Updates of a step that trains so many samples (at least 1): at least one, at most one for each."""
    updates = pipeline.updates_per_step
    if pipeline.samples_per_update is not None:
        # Halves go up: Python's own rounding would send 2.5 and 3.5 to different sides.
        updates = max(1, math.floor(samples / pipeline.samples_per_update + 0.5))
    return min(updates, samples)
