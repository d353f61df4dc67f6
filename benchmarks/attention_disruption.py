"""Does hiding a step that later reasoning attends to hurt more than hiding another one?

    python -m benchmarks.attention_disruption                          # the tiny model on held-out problems
    python -m benchmarks.attention_disruption --problems 200 --samples 4 --seeds 1 2 3

As in AttnRL's Fig. 3 (arXiv 2509.26628): responses are sampled, a step of each is hidden from every later
token (its column of the attention, in all heads and layers), and the rest of the response is sampled anew.
The accuracy of the answers tells how much the step mattered. A response takes part where it is right and
each kind of step can be chosen in it: the one of the largest influence (FCI), the one of the largest mean
-log p, and one of the others at random. `nothing hidden` samples the rest anew from the same places.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables import table, with_interval
from marsrl_verl.algos.step_cutter import step_cutter
from marsrl_verl.attention.show import measure_response
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.steps import Steps
from marsrl_verl.demo.assets import model_path
from marsrl_verl.demo.problems import Split, generate
from marsrl_verl.rewards.extraction import last_boxed, same_answer

KINDS = ("influence", "surprise", "other")


@dataclass(frozen=True)
class Cut:
    """A place in a right response: a step to hide, and where the rest is sampled anew."""

    problem: int
    kind: str
    ids: tuple[int, ...]
    """Prompt and response up to the end of the hidden step."""
    hidden: tuple[int, int]
    """First and one past the last hidden token. The line break that ends the step stays, and does not see the
    others either: what follows is sampled from its place."""


@dataclass
class Row:
    """Accuracy of one kind of step."""

    seed: int
    kind: str
    hidden: bool
    answers: int
    accuracy: float


@torch.no_grad()
def sample_rest(
    model: Any,
    ids: Sequence[Sequence[int]],
    hidden: Sequence[tuple[int, int]],
    most: int,
    end: int,
    seed: int,
) -> list[list[int]]:
    """Sample on from each row at temperature 1; `hidden` tokens are seen by no other token."""
    from transformers import DynamicCache

    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, ids))
    tokens = torch.full((len(ids), width), end)
    mask = torch.zeros(len(ids), width, dtype=torch.long)
    for row, (one, (start, stop)) in enumerate(zip(ids, hidden, strict=True)):
        shift = width - len(one)
        tokens[row, shift:] = torch.tensor(one)
        mask[row, shift:] = 1
        mask[row, shift + start : shift + stop] = 0
    # Positions count hidden tokens too: what follows stays where it was.
    lengths = torch.tensor([len(one) for one in ids])
    positions = (torch.arange(width)[None] - (width - lengths)[:, None]).clamp(min=0)
    cache = DynamicCache()
    found: list[list[int]] = [[] for _ in ids]
    done = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(most):
        logits = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        chosen = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)
        for row in range(len(ids)):
            if not done[row]:
                found[row].append(int(chosen[row]))
        done |= chosen[:, 0] == end
        if bool(done.all()):
            break
        tokens, positions = chosen, positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones(len(ids), 1, dtype=torch.long)], dim=1)
    return found


def cuts_of(
    problem: int, prompt: list[int], response: list[int], steps: Steps, model: Any, delta: int, seed: int
) -> list[Cut]:
    """One cut of each kind; none where the kinds cannot be told apart."""
    # Neither the first step nor the last two: something must follow that can look back.
    places = list(range(1, len(steps) - 1))
    if len(places) < len(KINDS):
        return []
    influence, log_probs = measure_response(model, prompt, response, steps, delta, "chunked")
    surprise = [
        -sum(log_probs[steps.start(step) : steps.ends[step]]) / (steps.ends[step] - steps.start(step))
        for step in range(len(steps))
    ]
    most_influential = max(places, key=lambda step: influence[step])
    most_surprising = max((step for step in places if step != most_influential), key=lambda s: surprise[s])
    others = [step for step in places if step not in (most_influential, most_surprising)]
    other = others[int(derive_generator(seed, "other", problem).integers(len(others)))]
    return [
        Cut(
            problem,
            kind,
            tuple(prompt + response[: steps.ends[step]]),
            (len(prompt) + steps.start(step), len(prompt) + steps.ends[step] - 1),
        )
        for kind, step in zip(KINDS, (most_influential, most_surprising, other), strict=True)
    ]


def study(model: Any, tokenizer: Any, problems: int, samples: int, delta: int, seed: int) -> list[Row]:
    """All rows of one seed."""
    end = tokenizer.eos_token_id
    cutter = step_cutter(tokenizer)
    chains = generate(Split.HELD_OUT, problems, seed)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": chain.question}], add_generation_prompt=True, return_dict=False
        )
        for chain in chains
        for _ in range(samples)
    ]
    answers = [str(chain.answer) for chain in chains for _ in range(samples)]
    nothing = [(0, 0)] * len(prompts)
    responses = sample_rest(model, prompts, nothing, 48, end, seed)

    def right(number: int, ids: Sequence[int]) -> bool:
        box = last_boxed(tokenizer.decode(ids, skip_special_tokens=True))
        return box is not None and same_answer(box, answers[number])

    cuts: list[Cut] = []
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if right(number, response):
            steps = cutter.cut(response)
            cuts += cuts_of(number, list(prompt), response, steps, model, delta, seed)
    random.Random(seed).shuffle(cuts)
    rows = []
    for hide in (False, True):
        spans = [cut.hidden if hide else (0, 0) for cut in cuts]
        rest = sample_rest(model, [cut.ids for cut in cuts], spans, 48, end, seed + 1)
        for kind in KINDS:
            found = [
                right(cut.problem, [*cut.ids, *more])
                for cut, more in zip(cuts, rest, strict=True)
                if cut.kind == kind
            ]
            rows.append(Row(seed, kind, hide, len(found), sum(found) / max(len(found), 1)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=str(model_path()), help="a model that speaks the tiny world's protocol"
    )
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--delta", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, attn_implementation="sdpa").eval()
    head = f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}, {arguments.model}"
    print(head, flush=True)
    rows: list[Row] = []
    for seed in arguments.seeds:
        rows += study(model, tokenizer, arguments.problems, arguments.samples, arguments.delta, seed)
    lines = []
    for kind in KINDS:
        of_kind = [row for row in rows if row.kind == kind]
        shown = [[row.accuracy for row in of_kind if row.hidden is hide] for hide in (False, True)]
        lost = [before - after for before, after in zip(*shown, strict=True)]
        answers = sum(row.answers for row in of_kind) // 2
        lines.append([kind, str(answers), *(with_interval(values, 1, 100) for values in (*shown, lost))])
    print(table(["hidden step", "answers", "nothing hidden, %", "hidden, %", "lost, points"], lines))
    if arguments.json is not None:
        content = {"machine": head, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
