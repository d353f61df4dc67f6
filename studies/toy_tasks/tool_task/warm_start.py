"""Make the warm-started model of the tool task:

    python -m studies.toy_tasks.tool_task.warm_start --output DIR

Supervised training on generated transcripts in both protocols, after drills in looking up and copying.
Deterministic for a seed on one machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from marsrl_verl.demo.problems import Split
from studies.tiny.command_line import warm_start_arguments
from studies.tiny.learning import Learner, report, weighted_loss
from studies.tiny.model import build_model
from studies.tiny.warm_start import save
from studies.toy_tasks.tool_task.problems import (
    ATTRIBUTES,
    PYTHON,
    SEARCH,
    Drawer,
    document_text,
    draw_name,
    draw_number,
    reference_text,
)
from studies.toy_tasks.tool_task.tokenizer import build_tokenizer, vocabulary
from studies.toy_tasks.tool_task.transcripts import (
    CAREFUL,
    DEFAULT_HABITS,
    Habits,
    Piece,
    Protocol,
    ToolTranscript,
    draw_transcript,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOOLS = tuple({"type": "function", "function": {"name": name}} for name in (PYTHON, SEARCH))
"""What the chat template is told of the tools: their names."""


@dataclass(frozen=True, slots=True)
class ToolRecipe:
    """How the warm start is trained."""

    drill_steps: int = 150
    """The first steps hold drills alone: copying is learnt before there is anything to decide."""
    drills: int = 48
    """Drills in each of the first steps, and a quarter of them in each of the others."""
    careful_steps: int = 600
    """Then come transcripts of the careful way alone, in which every token can be told."""
    steps: int = 200
    """The last steps, in which habits are picked up."""
    transcripts: int = 20
    """Of each protocol in each step after the drills."""
    learning_rate: float = 3e-3
    matrix_learning_rate: float = 0.025
    warmup_steps: int = 20
    beta2: float = 0.98
    weight_decay: float = 0.01
    hidden: int = 64
    layers: int = 4
    habits: Habits = DEFAULT_HABITS
    seed: int = 1

    @property
    def total(self) -> int:
        """Steps in all."""
        return self.drill_steps + self.careful_steps + self.steps

    def shortened(self, total: int) -> ToolRecipe:
        """The recipe in so many steps in all, with the same shares."""
        drills = round(total * self.drill_steps / self.total)
        careful = round(total * self.careful_steps / self.total)
        return replace(self, drill_steps=drills, careful_steps=careful, steps=total - drills - careful)


def draw_drill(rng: random.Random) -> ToolTranscript:
    """What is asked about, what a search finds, where a page refers to, a product; then each of them once
    more: looking up and copying, with nothing to decide."""
    pieces: list[Piece] = []
    for _ in range(2):
        name, property_name = draw_name(rng), rng.choice(ATTRIBUTES)
        pieces += [Piece(f"the {property_name} of {name}\n{property_name} "), Piece(name, 1.0), Piece("\n")]
        values = {attribute: draw_number(rng) for attribute in ATTRIBUTES}
        pieces.append(Piece(f"Page 1 ({name}): {document_text(values)}\n"))
        for attribute in rng.sample(ATTRIBUTES, len(ATTRIBUTES)):
            pieces += [Piece(f"{attribute} "), Piece(str(values[attribute]), 1.0), Piece("\n")]
        other = draw_name(rng)
        pieces += [
            Piece(f"Page 1 ({name}): {reference_text(other)}\n{property_name} "),
            Piece(other, 1.0),
            Piece("\n"),
        ]
        number = str(draw_number(rng) * draw_number(rng))
        pieces += [Piece(f"{name}{number}={name[:2]}"), Piece(f"{name[2:]}{number}", 1.0), Piece("\n")]
    return ToolTranscript((), tuple(pieces), Protocol.TAGS)


class TranscriptEncoder:
    """Transcripts as ids with loss weights."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    def encode(self, transcripts: Sequence[ToolTranscript]) -> tuple[torch.Tensor, torch.Tensor]:
        """Right-padded ids and loss weights, both (len(transcripts), T)."""
        rows = [self._row(one) for one in transcripts]
        width = max(len(ids) for ids, _ in rows)
        ids_BT = torch.full((len(rows), width), self.tokenizer.pad_token_id)
        weights_BT = torch.zeros(len(rows), width)
        for row, (ids, weights) in enumerate(rows):
            ids_BT[row, : len(ids)] = torch.tensor(ids)
            weights_BT[row, : len(ids)] = torch.tensor(weights)
        return ids_BT, weights_BT

    def _row(self, one: ToolTranscript) -> tuple[list[int], list[float]]:
        prompt = self.prompt(one)
        texts = self.tokenizer([prompt, *(piece.text for piece in one.pieces)], add_special_tokens=False)
        counts = [0.0, *(piece.weight for piece in one.pieces)]
        ids: list[int] = []
        weights: list[float] = []
        for part, count in zip(texts.input_ids, counts, strict=True):
            ids += part
            weights += [count] * len(part)
        return ids, weights

    def prompt(self, one: ToolTranscript) -> str:
        """The chat up to where the policy begins; empty for a drill."""
        if not one.messages:
            return ""
        tools = list(TOOLS) if one.protocol is Protocol.CHAT else None
        return str(
            self.tokenizer.apply_chat_template(
                list(one.messages), tools=tools, add_generation_prompt=True, tokenize=False
            )
        )


class WarmStart:
    """The training loop over generated transcripts."""

    def __init__(self, recipe: ToolRecipe) -> None:
        self.recipe = recipe
        self.rng = random.Random(recipe.seed)
        self.encoder = TranscriptEncoder(build_tokenizer())
        self.model: PreTrainedModel = build_model(recipe.seed, recipe.hidden, recipe.layers, vocabulary())
        self.problems = Drawer(Split.WARM_START, seed=None)

    def run(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Trains; yields (step, loss by kind of transcript)."""
        recipe = self.recipe
        learner = Learner(self.model, recipe.total, recipe)
        for step in range(recipe.total):
            batches = self.batches(step)
            losses = learner.step(self.loss(batch) for batch in batches.values())
            yield step + 1, dict(zip(batches, losses, strict=True))

    def batches(self, step: int) -> dict[str, list[ToolTranscript]]:
        """What is learnt in a step, by kind."""
        recipe = self.recipe
        drilled = step < recipe.drill_steps
        habits = CAREFUL if step < recipe.drill_steps + recipe.careful_steps else recipe.habits
        count = recipe.drills if drilled else recipe.drills // 4
        found = {"drills": [draw_drill(self.rng) for _ in range(count)]}
        if not drilled:
            for protocol in Protocol:
                drawn = [self.problems.draw(self.rng) for _ in range(recipe.transcripts)]
                found[protocol.value] = [draw_transcript(one, protocol, self.rng, habits) for one in drawn]
        return found

    def loss(self, batch: Sequence[ToolTranscript]) -> torch.Tensor:
        """The mean loss of what the policy writes."""
        return weighted_loss(self.model, *self.encoder.encode(batch))


def train(recipe: ToolRecipe, report_every: int = 20) -> PreTrainedModel:
    """Trains a fresh model and returns it; progress goes to standard error."""
    training = WarmStart(recipe)
    report(training.run(), recipe.total, report_every)
    return training.model.eval()


def main() -> None:
    """Trains and saves."""
    defaults = ToolRecipe()
    what = "Make the warm-started model of the tool task."
    arguments = warm_start_arguments(what, seed=defaults.seed, steps=defaults.total)
    torch.set_num_threads(2)
    model = train(ToolRecipe(seed=arguments.seed).shortened(arguments.steps))
    save(model, arguments.output, build_tokenizer())
    then = "python -m studies.toy_tasks.tool_task.sanity_check measures it"
    print(f"written to {arguments.output}; {then}", file=sys.stderr)


if __name__ == "__main__":
    main()
