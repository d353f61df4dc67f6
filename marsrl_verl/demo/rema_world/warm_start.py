"""Make this world's warm-started model: `python -m marsrl_verl.demo.rema_world.warm_start --output DIR`.

Supervised training of the tiny world's model on generated transcripts (`transcripts.KINDS`). Deterministic
for a seed on one machine. """

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marsrl_verl.demo.assets import model_path
from marsrl_verl.demo.model import build_model
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.rema_world.problems import DEFAULT_DIFFICULTY, Difficulty, generate
from marsrl_verl.demo.rema_world.tokenizer import WORDS
from marsrl_verl.demo.rema_world.transcripts import DEFAULT_HABITS, KINDS, Habits
from marsrl_verl.demo.supervised import Rates, fit
from marsrl_verl.demo.tokenizer import build_tokenizer, vocabulary
from marsrl_verl.demo.transcripts import Transcript
from marsrl_verl.demo.warm_start import save_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the warm start is trained."""

    drill_steps: int = 50
    """The first steps hold one exercise only: looking up a letter comes before everything else."""
    steps: int = 250
    """Steps after these."""
    drills: tuple[tuple[str, int], ...] = (("lookup", 32),)
    """Transcripts of each kind in one of the first steps."""
    batch: tuple[tuple[str, int], ...] = (
        ("lookup", 3),
        ("plan", 10),
        ("solution", 15),
        ("planned", 8),
        ("action", 3),
        ("meta_turn", 3),
        ("reasoning_turn", 3),
    )
    """And in one of the others."""
    rates: Rates = field(default_factory=lambda: Rates(matrix_learning_rate=0.015))
    pool: int = 10_000
    """Problems of the warm-start split."""
    difficulty: Difficulty = DEFAULT_DIFFICULTY
    habits: Habits = DEFAULT_HABITS
    seed: int = 1

    @property
    def total(self) -> int:
        """Steps in all."""
        return self.drill_steps + self.steps

    def shortened(self, total: int) -> Recipe:
        """The recipe in so many steps in all, with the same share of exercises."""
        drills = round(total * self.drill_steps / self.total)
        return replace(self, drill_steps=drills, steps=total - drills)


def begun(seed: int) -> PreTrainedModel:
    """The tiny world's model with this world's words: it can add and look up already, which is most of what
    takes long to learn. Rows of its own words are forgotten; those of this world's are drawn."""
    import torch
    from transformers import AutoModelForCausalLM

    model = build_model(seed, words=WORDS)
    known = AutoModelForCausalLM.from_pretrained(model_path()).state_dict()
    shared = len(vocabulary(()))
    with torch.no_grad():
        for name, own in model.state_dict().items():
            if own.shape == known[name].shape:
                own.copy_(known[name])
            else:
                own[:shared] = known[name][:shared]
    return model


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """Train a fresh model and return it; progress goes to standard error."""
    rng = random.Random(recipe.seed)
    model, tokenizer = begun(recipe.seed), build_tokenizer(WORDS)
    problems = generate(Split.WARM_START, recipe.pool, recipe.seed, recipe.difficulty)

    def draw(step: int) -> list[Transcript]:
        return [
            KINDS[kind](rng.choice(problems), rng, recipe.habits)
            for kind, count in (recipe.drills if step < recipe.drill_steps else recipe.batch)
            for _ in range(count)
        ]

    start = time.monotonic()
    for step, loss in fit(model, tokenizer, draw, recipe.total, recipe.rates):
        if step % report_every == 0:
            seconds = time.monotonic() - start
            print(f"step {step}/{recipe.total}  {seconds:.0f} s  loss {loss:.3f}", file=sys.stderr)
    return model.eval()


def main() -> None:
    """Train, save, measure."""
    from marsrl_verl.demo.rema_world.premise import measure, show

    usual = Recipe()
    parser = argparse.ArgumentParser(description="Make the warm-started model of the world of definitions.")
    parser.add_argument("--output", required=True, help="folder to write; must not hold a model yet")
    parser.add_argument("--seed", type=int, default=usual.seed, help="of weights, problems and transcripts")
    parser.add_argument("--steps", type=int, default=usual.total, help="of training")
    parser.add_argument("--problems", type=int, default=400, help="held-out problems to measure on")
    arguments = parser.parse_args()
    folder = Path(arguments.output)
    if (folder / "config.json").exists():
        parser.error(f"--output: {folder} already holds a model; name another folder or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    model = train(replace(usual, seed=arguments.seed).shortened(arguments.steps))
    save_model(model, folder, WORDS)
    print(f"written to {folder}; measuring on {arguments.problems} held-out problems", file=sys.stderr)
    print(show(measure(model, arguments.problems)))


if __name__ == "__main__":
    main()
