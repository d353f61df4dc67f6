"""Make this task's warm-started model: `python -m studies.toy_tasks.copy_chain.warm_start --output DIR`.

The tiny task's model, trained further on generated transcripts (`transcripts.draw_transcript`).
Deterministic for a seed on one machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marsrl_verl.demo.files import tiny_model
from marsrl_verl.demo.problems import Split
from studies.tiny.command_line import make_warm_start
from studies.tiny.learning import report
from studies.tiny.supervised import Rates, fit
from studies.tiny.tokenizer import build_tokenizer
from studies.tiny.transcripts import Transcript
from studies.tiny.warm_start import save
from studies.toy_tasks.copy_chain.problems import generate
from studies.toy_tasks.copy_chain.transcripts import draw_transcript

if TYPE_CHECKING:
    from transformers import PreTrainedModel


RATES = Rates(learning_rate=2e-3, matrix_learning_rate=0.015)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the tiny task's model is trained further."""

    steps: int = 1500
    batch: int = 48
    """Transcripts of a step."""
    rates: Rates = RATES
    pool: int = 20_000
    """Problems of the warm-start split."""
    seed: int = 1


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """The trained model; progress goes to standard error."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model())
    rng = random.Random(recipe.seed)
    problems = generate(Split.WARM_START, recipe.pool, recipe.seed)

    def draw(_step: int) -> list[Transcript]:
        return [draw_transcript(rng.choice(problems), rng) for _ in range(recipe.batch)]

    run = fit(model, build_tokenizer(), draw, recipe.steps, recipe.rates)
    report(((step, {"all": loss}) for step, loss in run), recipe.steps, report_every)
    return model.eval()


def main() -> None:
    """Trains, saves, measures."""
    from studies.tiny.sanity_figures import show
    from studies.toy_tasks.copy_chain.sanity_check import measure

    defaults = Recipe()
    make_warm_start(
        "Make the warm-started model of the copy-chain task.",
        lambda seed, steps: train(replace(defaults, seed=seed, steps=steps)),
        save,
        lambda model, problems: show(measure(model, problems)),
        seed=defaults.seed,
        steps=defaults.steps,
        problems=200,
    )


if __name__ == "__main__":
    main()
