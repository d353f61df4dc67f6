"""Make the warm-started tiny model: `python -m studies.tiny.warm_start --output DIR`.

Supervised training on generated transcripts in all three roles, stopped while every role is mediocre,
so that reinforcement learning has something to improve. Deterministic for a seed on one machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.demo.problems import DEFAULT_DIFFICULTY, Chain, Difficulty, Split, draw_chain
from studies.tiny.command_line import make_warm_start
from studies.tiny.curriculum import Drill, draw_drill
from studies.tiny.learning import Learner, report, weighted_loss
from studies.tiny.model import build_model
from studies.tiny.tokenizer import build_tokenizer, save_tokenizer
from studies.tiny.transcripts import DEFAULT_HABITS, Habits, Transcript, draw_transcript

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_Batch: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the warm start is trained."""

    drill_steps: int = 120
    """The first steps hold drills only: looking up and comparing are learnt before arithmetic."""
    drills: tuple[tuple[Drill, int], ...] = ((Drill.CHECKING, 16), (Drill.COMPARING, 12))
    """Drills in each of the first steps."""
    steps: int = 560
    """Steps after the drills."""
    batch: tuple[tuple[str | Drill, int], ...] = (
        (SOLVER, 36),
        (VERIFIER, 28),
        (CORRECTOR, 24),
        (Drill.CHECKING, 5),
        (Drill.COMPARING, 3),
    )
    """Transcripts in each of the following steps."""
    learning_rate: float = 3e-3
    """Of embeddings and norms (AdamW)."""
    matrix_learning_rate: float = 0.025
    """Of the other weights (Muon, which needs a third of AdamW's steps here)."""
    warmup_steps: int = 20
    """Both rates rise over these steps, are held, and fall linearly to 0 over the last half of all steps."""
    beta2: float = 0.98
    weight_decay: float = 0.01
    """Of the weights that Muon trains."""
    decisive_weight: float = 3.0
    """Loss weight of computed and looked-up numbers and of judgements; other tokens weigh 1."""
    pool: int = 40_000
    """Problems drawn; those of the warm-start split are used."""
    difficulty: Difficulty = DEFAULT_DIFFICULTY
    habits: Habits = DEFAULT_HABITS
    seed: int = 1

    @property
    def total(self) -> int:
        """Steps in all."""
        return self.drill_steps + self.steps

    def shortened(self, total: int) -> Recipe:
        """The recipe in so many steps in all, with the same share of drills; the rates' schedule follows."""
        drills = round(total * self.drill_steps / self.total)
        return replace(self, drill_steps=drills, steps=total - drills)


_JUDGEMENTS = (" ok", " bad", " Correct", " Wrong")
_BEFORE_DECISIVE_NUMBER = ("=", " vs ")


class _TranscriptBatches:
    """Encodes transcripts with a loss weight for each token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, decisive_weight: float) -> None:
        self.tokenizer = tokenizer
        self.decisive_weight = decisive_weight
        self.judgement_ids = torch.tensor(tokenizer.convert_tokens_to_ids(list(_JUDGEMENTS)))
        self.before_ids = torch.tensor(tokenizer.convert_tokens_to_ids(list(_BEFORE_DECISIVE_NUMBER)))

    def encode(self, transcripts: Sequence[Transcript], judgements_only: bool = False) -> _Batch:
        """Right-padded ids and loss weights, both (len(transcripts), T).

        Prompts weigh 0, except the judgements that they quote.
        """
        pairs = [self._token_ids(transcript) for transcript in transcripts]
        width = max(len(prompt) + len(response) for prompt, response in pairs)
        ids_BT = torch.full((len(pairs), width), self.tokenizer.pad_token_id)
        weights_BT = torch.zeros(len(pairs), width)
        for row, (prompt, response) in enumerate(pairs):
            end = len(prompt) + len(response)
            ids_BT[row, :end] = torch.tensor(prompt + response)
            weights_BT[row, len(prompt) : end] = 0.0 if judgements_only else 1.0
        numbers_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
        numbers_BT[:, 1:] = torch.isin(ids_BT[:, :-1], self.before_ids)
        decisive_BT = torch.isin(ids_BT, self.judgement_ids) | (numbers_BT & (weights_BT > 0))
        return ids_BT, weights_BT.masked_fill(decisive_BT, self.decisive_weight)

    def _token_ids(self, transcript: Transcript) -> tuple[list[int], list[int]]:
        prompt = self.tokenizer.apply_chat_template(
            list(transcript.messages), add_generation_prompt=True, tokenize=False
        )
        prompt_ids, response_ids = self.tokenizer(
            [prompt, transcript.response], add_special_tokens=False
        ).input_ids
        return prompt_ids, [*response_ids, self.tokenizer.eos_token_id]


class _Trainer:
    """The optimizer loop over generated transcripts."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rng = random.Random(recipe.seed)
        self.batches = _TranscriptBatches(build_tokenizer(), recipe.decisive_weight)
        self.model: PreTrainedModel = build_model(recipe.seed)
        drawn = (draw_chain(self.rng, recipe.difficulty) for _ in range(recipe.pool))
        self.problems: list[Chain] = [chain for chain in drawn if chain.split is Split.WARM_START]

    def run(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Trains; yields (step, loss by kind of transcript)."""
        recipe = self.recipe
        learner = Learner(self.model, recipe.total, recipe)
        for step in range(recipe.total):
            kinds = recipe.drills if step < recipe.drill_steps else recipe.batch
            losses = learner.step(self._losses(kinds))
            names = [kind.value if isinstance(kind, Drill) else kind for kind, _ in kinds]
            yield step + 1, dict(zip(names, losses, strict=True))

    def _losses(self, kinds: Sequence[tuple[str | Drill, int]]) -> Iterator[torch.Tensor]:
        for kind, count in kinds:
            transcripts = [self._draw(kind) for _ in range(count)]
            yield self._loss(*self.batches.encode(transcripts, kind is Drill.COMPARING))

    def _draw(self, kind: str | Drill) -> Transcript:
        if isinstance(kind, Drill):
            return draw_drill(kind, self.rng)
        return draw_transcript(kind, self.rng.choice(self.problems), self.rng, self.recipe.habits)

    def _loss(self, ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
        return weighted_loss(self.model, ids_BT, weights_BT)


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """Trains a fresh model and returns it; progress goes to standard error."""
    trainer = _Trainer(recipe)
    report(trainer.run(), recipe.total, report_every)
    return trainer.model.eval()


def save(
    model: PreTrainedModel, folder: str | Path, tokenizer: PreTrainedTokenizerFast | None = None
) -> None:
    """Writes model and tokenizer (the tiny task's where none is given) as a folder that transformers and
    vLLM load."""
    from transformers import GenerationConfig

    config = model.config
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=True
    )
    model.save_pretrained(folder)
    save_tokenizer(folder, tokenizer)


def main() -> None:
    """Trains, saves, measures."""
    from studies.tiny.measure import measure, show

    defaults = Recipe()
    torch.set_num_threads(2)
    make_warm_start(
        "Make the warm-started tiny model.",
        lambda seed, steps: train(replace(defaults, seed=seed).shortened(steps)),
        save,
        lambda model, problems: show(measure(model, problems)),
        seed=defaults.seed,
        steps=defaults.total,
        problems=500,
    )


if __name__ == "__main__":
    main()
