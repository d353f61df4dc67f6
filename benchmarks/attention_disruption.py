r"""Does hiding a step that later reasoning attends to hurt more than hiding another one?

    python -m benchmarks.attention_disruption        # the tiny model on held-out problems of the tiny task
    python -m benchmarks.attention_disruption --model deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B \
        --data aime24.parquet --temperature 0.6 --json rows.json \
        --instruction "Let's think step by step and output the final answer within \boxed{}."

As in AttnRL's Fig. 3 (arXiv 2509.26628): responses are sampled, a step of each is hidden from every later
token (its column of the attention, in all heads and layers), and the rest of the response is sampled anew.
The accuracy of the answers tells how much the step mattered. The kinds of steps: one at random from the top
share by influence (FCI), one from the top share by mean -log p that is not in the first, one of the others.
Steps are thinking steps before `</think>`, never the first one, and `--delta` steps or more follow. Figures
are also split by whether the step lies in the first or the second half of the response's tokens.

A response takes part where it is right, so that there is an answer to lose (one that is cut off is wrong),
and has a step of each kind. `nothing hidden` samples the rest anew from the same places with the same random
numbers. Without `--data` the problems are the tiny task's, other ones for each seed. A file has verl's
format or plain columns (`docs/guides/data.md`), and its problems are the same for all seeds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.disruption.problems import REWARDS, AnswerCheck, read_problems, tiny_problems
from benchmarks.disruption.sampling import Decoding
from benchmarks.disruption.statistics import as_table, summarise
from benchmarks.disruption.study import Found, Plan, Study
from benchmarks.record import options, write_json
from benchmarks.timing import tensor_machine
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.data.columns import ANSWER_COLUMN, Columns
from marsrl_verl.data.rows import DataError
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
"""In others a token leaves a trace beside its column of the attention."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults that differ between the tiny task and a file of problems."""

    problems: int | None
    samples: int
    max_new_tokens: int
    delta: int
    reward: str
    seeds: tuple[int, ...]


TINY = Defaults(problems=400, samples=4, max_new_tokens=48, delta=1, reward="exact", seeds=(1, 2, 3))
FILE = Defaults(problems=None, samples=8, max_new_tokens=8192, delta=4, reward="hybrid", seeds=(1,))
"""Samples and delta are the paper's, the length is that of its training."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = options(__doc__, "settings, figures and every answer, after each seed,")
    result.prog = "python -m benchmarks.attention_disruption"
    add = result.add_argument

    def differing(name: str, help_text: str, **kwargs: Any) -> None:
        values = [getattr(one, name) for one in (TINY, FILE)]
        shown = ["all" if value is None else value for value in values]
        option = "--" + name.replace("_", "-")
        add(option, help=f"{help_text} (default {shown[0]}, with --data {shown[1]})", **kwargs)

    add(
        "--model",
        default=str(model_path()),
        help="folder or name of a transformers model with a chat template",
    )
    add("--data", type=Path, help="problems: a parquet, JSON-lines or JSON file")
    add("--question-column", help="a column of text; without it chat messages in the column prompt")
    add("--answer-column", default=ANSWER_COLUMN, help="default %(default)s")
    add("--instruction", default="", help="appended to each question, after an empty line")
    differing("problems", "how many; of a file the first ones", type=int)
    differing("samples", "responses to each problem", type=int)
    differing("max_new_tokens", "most tokens of a response", type=int)
    add("--temperature", type=float, default=1.0)
    add("--top-p", type=float, default=1.0)
    add(
        "--top-frac",
        type=float,
        default=0.2,
        help="share of a response's steps that is on top (%(default)s)",
    )
    differing("delta", "least distance in steps from which attention counts", type=int)
    differing("reward", "how answers are checked", choices=sorted(REWARDS))
    differing("seeds", "the study is made once with each", type=int, nargs="+")
    add("--batch-size", type=int, default=64, help="rows sampled at once (%(default)s)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="auto: the model's own",
    )
    return result


def settings_of(words: list[str] | None) -> argparse.Namespace:
    """The options with their defaults filled in."""
    options = parser()
    one = options.parse_args(words)
    for name, value in asdict(TINY if one.data is None else FILE).items():
        if getattr(one, name) is None:
            setattr(one, name, value)
    if one.problems is not None and one.problems < 1:
        options.error(f"--problems is {one.problems}, expected 1 or more")
    if one.data is None and (one.question_column is not None or one.answer_column != ANSWER_COLUMN):
        options.error("--question-column and --answer-column name columns of a file: give --data too")
    if len(set(one.seeds)) < len(one.seeds):
        options.error(f"--seeds {' '.join(map(str, one.seeds))}: expected each once")
    if one.json is not None and not one.json.absolute().parent.is_dir():
        options.error(f"--json {one.json}: there is no such folder; make it first")
    return one


def load(one: argparse.Namespace) -> tuple[Any, ChatTokenizer]:
    """The model and its tokenizer, which knows all of the model's end tokens.

    Raises:
        ValueError: the tokenizer has no chat template, no end token is known, or the model has layers in
            which no token can be hidden.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(one.model)
    if not tokenizer.chat_template:
        raise ValueError(
            f"{one.model}: its tokenizer has no chat template; choose a model that answers chats"
        )
    # sdpa takes a mask with holes, and unlike eager attention is in the registry, which FCI needs.
    model = AutoModelForCausalLM.from_pretrained(one.model, attn_implementation="sdpa", dtype=one.dtype)
    other = set(getattr(model.config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if other:
        raise ValueError(
            f"{one.model}: it has layers of type {', '.join(sorted(other))}, which hide no token"
        )
    ends = model.generation_config.eos_token_id
    named = [] if ends is None else [ends] if isinstance(ends, int) else ends
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if not (named or own):
        raise ValueError(f"{one.model}: neither generation config nor tokenizer names an end token")
    return model.to(one.device).eval(), ChatTokenizer(tokenizer, end_ids=frozenset([*named, *own]))


def run(one: argparse.Namespace) -> int:
    """The study with all seeds; 1 where no response took part."""
    plan = Plan(
        one.samples,
        one.max_new_tokens,
        one.delta,
        one.top_frac,
        Decoding(one.temperature, one.top_p, one.batch_size),
    )
    columns = Columns(question=one.question_column, answer=one.answer_column)
    of_file = None if one.data is None else read_problems(one.data, columns, one.problems)
    model, chat = load(one)
    place = f"{tensor_machine(model.device)}\n{one.model}, {model.dtype}"
    print(place, flush=True)
    check, found = AnswerCheck(one.reward, chat), Found()
    study = Study(model, chat, MathPrompts(one.instruction), check, plan, _say)
    try:
        for seed in one.seeds:
            found += study.run(of_file or tiny_problems(one.problems, seed), seed)
            _write(one.json, place, one, found)
    finally:
        check.close()
    print(", ".join(f"{count} {what}" for what, count in found.counts.items()))
    if not found.disrupted:
        print(
            "attention_disruption: no response took part, so there are no figures. A response must be right "
            f"and have 3 steps or more that can be hidden, each with {plan.delta} steps or more after it.",
            file=sys.stderr,
        )
        return 1
    print(as_table(summarise(found.disrupted)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(path: Path | None, place: str, one: argparse.Namespace, found: Found) -> None:
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(one).items()}
    content = {
        "machine": place,
        "settings": settings,
        "responses": found.counts,
        "lines": [line.to_json() for line in summarise(found.disrupted)],
        "answers": [asdict(answer) for answer in found.disrupted],
    }
    write_json(path, content)


def main(words: list[str] | None = None) -> int:
    """The command."""
    one = settings_of(words)
    try:
        return run(one)
    except (ValueError, DataError, ClassLoadError) as error:
        print(f"attention_disruption: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
