"""Make this task's warm-started model: `python -m studies.toy_tasks.careless_errors.warm_start --output DIR`.

The tiny task's model, trained further on generated transcripts (`transcripts.draw_transcript`).
Deterministic for a seed on one machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.demo.files import tiny_model
from marsrl_verl.demo.problems import Split, generate
from studies.tiny.command_line import make_warm_start
from studies.tiny.learning import report
from studies.tiny.supervised import Rates, fit
from studies.tiny.tokenizer import build_tokenizer
from studies.tiny.transcripts import Transcript
from studies.tiny.warm_start import save
from studies.toy_tasks.careless_errors.problems import DIFFICULTY
from studies.toy_tasks.careless_errors.transcripts import DEFAULT_SLIPS, Slips, draw_transcript

if TYPE_CHECKING:
    from transformers import PreTrainedModel


RATES = Rates(learning_rate=2e-3, matrix_learning_rate=0.015)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the tiny task's model is trained further."""

    steps: int = 150
    batch: tuple[tuple[str, int], ...] = ((SOLVER, 24), (VERIFIER, 24), (CORRECTOR, 16))
    """Transcripts of each role in a step."""
    rates: Rates = RATES
    pool: int = 20_000
    """Problems of the warm-start split."""
    slips: Slips = DEFAULT_SLIPS
    seed: int = 1


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """The trained model; progress goes to standard error."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model())
    rng = random.Random(recipe.seed)
    problems = generate(Split.WARM_START, recipe.pool, recipe.seed, DIFFICULTY)

    def draw(_step: int) -> list[Transcript]:
        return [
            draw_transcript(role, rng.choice(problems), rng, recipe.slips)
            for role, count in recipe.batch
            for _ in range(count)
        ]

    run = fit(model, build_tokenizer(), draw, recipe.steps, recipe.rates)
    report(((step, {"all": loss}) for step, loss in run), recipe.steps, report_every)
    return model.eval()


def main() -> None:
    """Trains, saves, measures."""
    from studies.tiny.sanity_figures import show
    from studies.toy_tasks.careless_errors.sanity_check import measure

    defaults = Recipe()
    make_warm_start(
        "Make the warm-started model of the task of careless errors.",
        lambda seed, steps: train(replace(defaults, seed=seed, steps=steps)),
        save,
        lambda model, problems: show(measure(model, problems)),
        seed=defaults.seed,
        steps=defaults.steps,
        problems=400,
    )


if __name__ == "__main__":
    main()
