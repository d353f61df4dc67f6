"""Make this task's warm-started model: `python -m studies.toy_tasks.rema_task.warm_start --output DIR`.

Supervised training on generated transcripts (`transcripts.KINDS`). Deterministic for a seed on one
machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marsrl_verl.demo.problems import Split
from studies.tiny.command_line import make_warm_start
from studies.tiny.learning import report
from studies.tiny.model import build_model
from studies.tiny.supervised import Rates, fit
from studies.tiny.tokenizer import build_tokenizer, vocabulary
from studies.tiny.transcripts import Transcript
from studies.tiny.warm_start import save
from studies.toy_tasks.rema_task.problems import DEFAULT_DIFFICULTY, Difficulty, generate
from studies.toy_tasks.rema_task.tokenizer import WORDS
from studies.toy_tasks.rema_task.transcripts import DEFAULT_HABITS, KINDS, Habits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Mixture = tuple[tuple[str, int], ...]
"""Transcripts of each kind (`transcripts.KINDS`) in a step."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training, with rates that rise and fall."""

    steps: int
    batch: Mixture
    difficulty: Difficulty
    habits: Habits
    pool: int
    """Problems of the warm-start split."""
    rates: Rates


FIRST = Stage(
    steps=160,
    batch=(("lookup", 32),),
    difficulty=DEFAULT_DIFFICULTY,
    habits=DEFAULT_HABITS,
    pool=4_000,
    rates=Rates(),
)
"""Looking up a letter comes before everything else."""
SECOND = Stage(
    steps=340,
    batch=(
        ("lookup", 4),
        ("plan", 12),
        ("solution", 16),
        ("planned", 12),
        ("action", 4),
        ("meta_turn", 4),
        ("reasoning_turn", 4),
    ),
    difficulty=DEFAULT_DIFFICULTY,
    habits=DEFAULT_HABITS,
    pool=8_000,
    rates=Rates(),
)
"""All that is asked in this task; the reasoning agent learns to follow plans here."""
THIRD = Stage(
    steps=400,
    batch=(
        ("lookup", 10),
        ("plan", 24),
        ("solution", 6),
        ("planned", 8),
        ("action", 6),
        ("meta_turn", 3),
        ("reasoning_turn", 3),
    ),
    difficulty=DEFAULT_DIFFICULTY,
    habits=DEFAULT_HABITS,
    pool=12_000,
    rates=Rates(learning_rate=4e-3, matrix_learning_rate=0.03),
)
"""The way back is learnt here, which takes longest."""
FOURTH = Stage(
    steps=250,
    batch=(
        ("plan", 10),
        ("solution", 28),
        ("planned", 8),
        ("action", 4),
        ("meta_turn", 4),
        ("reasoning_turn", 4),
    ),
    difficulty=DEFAULT_DIFFICULTY,
    habits=replace(DEFAULT_HABITS, solves_without_plan=0.6, begins_wrong=0.3),
    pool=12_000,
    rates=Rates(learning_rate=3e-3, matrix_learning_rate=0.02),
)
"""And solutions without a plan, as far as so small a network can find its way."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the warm start is trained."""

    stages: tuple[Stage, ...] = (FIRST, SECOND, THIRD, FOURTH)
    seed: int = 1

    @property
    def total(self) -> int:
        """Steps in all."""
        return sum(stage.steps for stage in self.stages)

    def shortened(self, total: int) -> Recipe:
        """The recipe in so many steps in all, with the same share of each stage."""
        steps = [max(1, round(total * stage.steps / self.total)) for stage in self.stages]
        shorter = [replace(stage, steps=some) for stage, some in zip(self.stages, steps, strict=True)]
        return replace(self, stages=tuple(shorter))


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """Trains a fresh model and returns it; progress goes to standard error."""
    model = build_model(recipe.seed, ids=vocabulary(WORDS))
    for number, stage in enumerate(recipe.stages):
        train_stage(model, stage, recipe.seed + number, report_every)
    return model.eval()


def train_stage(model: PreTrainedModel, stage: Stage, seed: int, report_every: int = 20) -> None:
    """Trains the model in place."""
    rng = random.Random(seed)
    problems = generate(Split.WARM_START, stage.pool, seed, stage.difficulty)

    def draw(_step: int) -> list[Transcript]:
        return [
            KINDS[kind](rng.choice(problems), rng, stage.habits)
            for kind, count in stage.batch
            for _ in range(count)
        ]

    run = fit(model, build_tokenizer(WORDS), draw, stage.steps, stage.rates)
    report(((step, {"all": loss}) for step, loss in run), stage.steps, report_every)


def main() -> None:
    """Trains, saves, measures."""
    from studies.toy_tasks.rema_task.sanity_check import measure, show

    defaults = Recipe()
    make_warm_start(
        "Make the warm-started model of the task of planned chains.",
        lambda seed, steps: train(replace(defaults, seed=seed).shortened(steps)),
        lambda model, folder: save(model, folder, build_tokenizer(WORDS)),
        lambda model, problems: show(measure(model, problems)),
        seed=defaults.seed,
        steps=defaults.total,
        problems=400,
    )


if __name__ == "__main__":
    main()
