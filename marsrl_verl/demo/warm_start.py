"""Make the warm-started tiny model: `python -m marsrl_verl.demo.warm_start --output DIR`.

Supervised training on generated transcripts in all three roles, stopped while every role is mediocre,
so that reinforcement learning has something to improve. Deterministic for a seed on one machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from marsrl_verl.core.types import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.demo.model import build_model
from marsrl_verl.demo.problems import DEFAULT_DIFFICULTY, Chain, Difficulty, Split, draw_chain
from marsrl_verl.demo.tokenizer import build_tokenizer, save_tokenizer
from marsrl_verl.demo.transcripts import CHECKING_DRILL, COMPARING_DRILL, Transcript, draw_transcript

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the warm start is trained."""

    steps: int = 260
    learning_rate: float = 3e-3
    """Reached after `warmup_steps`, held, and brought to 0 linearly over the last half."""
    warmup_steps: int = 20
    beta2: float = 0.98
    weight_decay: float = 0.01
    batch: tuple[tuple[str, int], ...] = ((SOLVER, 48), (VERIFIER, 64), (CORRECTOR, 24))
    """Transcripts of each role per step."""
    drill_steps: int = 150
    """The first steps hold drills only. Quoting has to be learnt before arithmetic is: a network that
    can add predicts a claim by adding, which is mostly right, and never learns to look it up."""
    drill_batch: tuple[tuple[str, int], ...] = ((CHECKING_DRILL, 16), (COMPARING_DRILL, 12))
    """Drills per step of the first steps."""
    judgement_weight: float = 3.0
    """Loss weight of the few tokens that carry a judgement."""
    pool: int = 40_000
    """Problems drawn; those of the warm-start split are used."""
    difficulty: Difficulty = DEFAULT_DIFFICULTY
    seed: int = 1


_JUDGEMENTS = (" ok", " bad", " Correct", " Wrong")


class _Trainer:
    """The optimizer loop over generated transcripts."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rng = random.Random(recipe.seed)
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer()
        self.model: PreTrainedModel = build_model(recipe.seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=recipe.learning_rate,
            betas=(0.9, recipe.beta2),
            weight_decay=recipe.weight_decay,
        )
        drawn = (draw_chain(self.rng, recipe.difficulty) for _ in range(recipe.pool))
        self.problems: list[Chain] = [chain for chain in drawn if chain.split is Split.WARM_START]
        self.judgement_ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(_JUDGEMENTS)))

    def run(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Train; yields (step, loss by role)."""
        for step in range(self.recipe.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate * self._schedule(step)
            losses = {}
            drilling = step < self.recipe.drill_steps
            batch = self.recipe.drill_batch if drilling else self.recipe.batch
            for role, count in batch:
                loss = self._loss(*self._batch(role, count))
                loss.backward()
                losses[role] = loss.item()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            yield step + 1, losses

    def _schedule(self, step: int) -> float:
        rise = (step + 1) / self.recipe.warmup_steps
        fall = 2 * (self.recipe.steps - step) / self.recipe.steps
        return min(1.0, rise, fall)

    def _encode(self, transcript: Transcript) -> tuple[list[int], list[int]]:
        prompt = self.tokenizer.apply_chat_template(
            list(transcript.messages), add_generation_prompt=True, tokenize=False
        )
        prompt_ids, response_ids = self.tokenizer(
            [prompt, transcript.response], add_special_tokens=False
        ).input_ids
        return prompt_ids, [*response_ids, self.tokenizer.eos_token_id]

    def _batch(self, kind: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Right-padded ids and loss weights, both (count, T)."""
        pairs = [
            self._encode(draw_transcript(kind, self.rng.choice(self.problems), self.rng))
            for _ in range(count)
        ]
        width = max(len(prompt) + len(response) for prompt, response in pairs)
        ids_BT = torch.full((count, width), self.tokenizer.pad_token_id)
        weights_BT = torch.zeros(count, width)
        for row, (prompt, response) in enumerate(pairs):
            end = len(prompt) + len(response)
            ids_BT[row, :end] = torch.tensor(prompt + response)
            # The numbers of a comparing drill are random: only its judgements can be learnt.
            weights_BT[row, len(prompt) : end] = 0.0 if kind == COMPARING_DRILL else 1.0
        weights_BT[torch.isin(ids_BT, self.judgement_ids)] = self.recipe.judgement_weight
        return ids_BT, weights_BT

    def _loss(self, ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
        logits_BTV = self.model(input_ids=ids_BT).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
        )
        weights = weights_BT[:, 1:].flatten()
        return (loss * weights).sum() / weights.sum()


def train(recipe: Recipe, report_every: int = 20) -> PreTrainedModel:
    """Train a fresh model and return it; progress goes to standard error."""
    trainer = _Trainer(recipe)
    start = time.monotonic()
    for step, losses in trainer.run():
        if step % report_every == 0 or step == recipe.steps:
            shown = "  ".join(f"{role} {loss:.3f}" for role, loss in losses.items())
            print(
                f"step {step}/{recipe.steps}  {time.monotonic() - start:.0f} s  loss: {shown}",
                file=sys.stderr,
            )
    return trainer.model.eval()


def save(model: PreTrainedModel, folder: str | Path) -> None:
    """Write model and tokenizer as a folder that transformers and vLLM load."""
    from transformers import GenerationConfig

    config = model.config
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=True
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)


def main() -> None:
    """Train, save, measure."""
    from marsrl_verl.demo.measure import measure, show

    parser = argparse.ArgumentParser(description="Make the warm-started tiny model.")
    parser.add_argument("--output", required=True, help="folder to write; must not hold a model yet")
    parser.add_argument(
        "--seed", type=int, default=Recipe().seed, help="of weights, problems and transcripts"
    )
    parser.add_argument("--problems", type=int, default=500, help="held-out problems to measure on")
    arguments = parser.parse_args()
    folder = Path(arguments.output)
    if (folder / "config.json").exists():
        parser.error(f"--output: {folder} already holds a model; name another folder or remove it")
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    model = train(Recipe(seed=arguments.seed))
    save(model, folder)
    print(f"written to {folder}; measuring on {arguments.problems} held-out problems", file=sys.stderr)
    print(show(measure(model, arguments.problems)))


if __name__ == "__main__":
    main()
