"""Dialogues for supervised training, from solutions whose parts are marked with who would say them.

    python -m marsrl_verl.algos.rema.sft solutions.jsonl --output sft --model MODEL_FOLDER

A line of the input is {"question": …, "solution": …}, and if it is known "answer". A solution has parts

    <meta_thinking>what to do next</meta_thinking><reasoning>doing it</reasoning>…

or a line is the reasoning agent's view of a dialogue, as in the released data: {"history": [[message, reply],
…], "instruction": …, "output": …}, whose first message is "Question:\\n…\\n\\nInstruction:\\n…".

Each becomes two rows of `train.parquet` or `val.parquet` for verl's SFT trainer, one for each agent's
list of messages (column `messages`), as the rollouts build them: with the prompts of training, `[FINISH]` at
the end of the last message of the meta-thinking agent and nowhere else. What can't become a dialogue is left
out, and `report.json` says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marsrl_verl.algos.rema.dialogue.rollout import without_finish
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES, DialoguePrompts
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.rewards.extraction import boxed_answer, references
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rewards.normal_form import same_answer
from marsrl_verl.rollout.control_tokens import ControlTokenRemover, control_tokens

PROMPTS = "marsrl_verl.algos.rema.prompts:MathDialogue"
TURNS, TOKENS, VALIDATION = 30, 4096, 0.05
_TAG = re.compile(rf"<(/?)({'|'.join(ROLES)})>")
_FIRST = re.compile(r"Question:\n(?P<question>.*?)\n\nInstruction:\n(?P<instruction>.*)", re.DOTALL)
"""The reasoning agent's first message."""
_FORMS = ({"question", "solution"}, {"history", "instruction", "output"})
"""Keys of a line."""
_PIPED = re.compile(r"<[|｜][^<>\n]{1,40}[|｜]>")
"""What looks like a control token, where no tokenizer says which there are."""
_EMPTY_MATHS = re.compile(r"\\\(\s*\\\)|\\\[\s*\\\]|(?<!\$)\$\s*\$(?!\$)|\$\$\s*\$\$")
"""What is left of `\\([FINISH]\\)`."""


class Unfit(ValueError):
    """A solution that is no dialogue; the message says why, in words that are the same for all alike."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The messages of both agents in turn, the meta-thinking agent's first."""

    question: str
    messages: tuple[str, ...]

    @property
    def turns(self) -> int:
        """Pairs of messages."""
        return len(self.messages) // 2


def parts_of(solution: str) -> list[tuple[str, str]]:
    """The marked parts of a solution, as (role, text).

    Raises:
        Unfit: a tag is not closed, or stands inside of another part, or there is text outside of the parts.
    """
    parts, role, at = [], None, 0
    for tag in _TAG.finditer(solution):
        between = solution[at : tag.start()]
        at = tag.end()
        if not tag[1]:
            if role is not None:
                raise Unfit("a part begins inside of another")
            if between.strip():
                raise Unfit("text outside of the parts")
            role = tag[2]
            continue
        if role != tag[2]:
            raise Unfit("a part ends that has not begun")
        parts.append((role, between.strip()))
        role = None
    if role is not None:
        raise Unfit("a part does not end")
    if solution[at:].strip():
        raise Unfit("text outside of the parts")
    return parts


def parts_of_view(line: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """The question and the parts of the reasoning agent's view of a dialogue.

    Raises:
        Unfit: it is the other agent's view, which lacks the last answer, or none at all.
    """
    history = line["history"] or []
    pairs = [*history, [line["instruction"], line["output"]]]
    if not all(isinstance(pair, list) and list(map(type, pair)) == [str, str] for pair in pairs):
        raise Unfit("a history that is no list of pairs of texts")
    found = _FIRST.fullmatch(pairs[0][0])
    if found is None:
        raise Unfit("no view of the reasoning agent: its first message has no question and instruction")
    texts = [found["instruction"], pairs[0][1], *(text for pair in pairs[1:] for text in pair)]
    return found["question"], [(ROLES[k % 2], text.strip()) for k, text in enumerate(texts)]


def dialogue_of(question: str, parts: Sequence[tuple[str, str]], answer: str | None = None) -> Dialogue:
    """The dialogue of a solution's parts.

    Parts of one agent that follow each other are one message; empty ones are none. `[FINISH]` is taken out
    wherever it stands and put at the end of the last message of the meta-thinking agent.

    Args:
        question: the problem.
        parts: as (role, text).
        answer: the reference, if it is known: the answer in the box has to have its normal form.

    Raises:
        Unfit: it is none, or its answer is wrong or has no box.
    """
    merged: list[tuple[str, str]] = []
    for role, text in parts:
        text = _cleaned(text)
        if text and merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n\n{text}"
        elif text:
            merged.append((role, text))
    roles = [role for role, _ in merged]
    if not roles:
        raise Unfit("no message")
    if roles[0] != META_THINKING:
        raise Unfit("the reasoning agent begins")
    if roles[-1] != REASONING:
        raise Unfit("the meta-thinking agent has the last word")
    messages = [text for _, text in merged]
    messages[-2] = f"{messages[-2]} {FINISH}"
    found = boxed_answer(messages[-1])
    if found is None:
        raise Unfit("no answer in a box")
    if answer is not None and not any(
        same_answer(one, other) for one in found.readings for other in references(answer)
    ):
        raise Unfit("another answer than the reference")
    return Dialogue(question, tuple(messages))


def _cleaned(text: str) -> str:
    if FINISH not in text:
        return text
    return _EMPTY_MATHS.sub("", without_finish(text)).strip()


def views(dialogue: Dialogue, prompts: DialoguePrompts) -> dict[str, list[Message]]:
    """Each agent's list of messages, as `rollout` builds it: its own are the assistant's. The meta-thinking
    agent's ends with its last message, which nobody answers in it."""
    problem = Problem("", dialogue.question, "")
    first, *rest = dialogue.messages
    lists = {
        META_THINKING: [*prompts.meta_thinking(problem), _message("assistant", first)],
        REASONING: list(prompts.reasoning(problem, first)),
    }
    for number, text in enumerate(rest, start=1):
        own = ROLES[number % 2]
        for role, messages in lists.items():
            messages.append(_message("assistant" if role == own else "user", text))
    lists[META_THINKING].pop()
    return lists


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a dialogue must not exceed."""

    turns: int = TURNS
    tokens: int = TOKENS
    count: Callable[[Sequence[Message]], int] | None = None
    """Tokens of a list of messages; None: nobody counts."""


def build(
    lines: Iterator[dict[str, Any]],
    prompts: DialoguePrompts,
    limits: Limits,
    clean: Callable[[str], str] = lambda text: _PIPED.sub(" ", text),
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows of all dialogues, two for each, and how many solutions were kept or left out, by reason.

    Args:
        lines: of the input.
        prompts: how the lists of messages begin.
        limits: longer dialogues are left out.
        clean: takes control tokens out of a text.
    """
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    for line in lines:
        try:
            if "solution" in line:
                question, parts = str(line["question"]), parts_of(clean(str(line["solution"])))
            else:
                question, parts = parts_of_view(line)
            answer = line.get("answer")
            question = clean(question).strip()
            turns = [(role, clean(text)) for role, text in parts]
            one = dialogue_of(question, turns, None if answer is None else str(answer))
            if one.turns > limits.turns:
                raise Unfit("too many turns")
            if (one.question, *one.messages) in seen:
                raise Unfit("a copy")
            lists = views(one, prompts)
            if limits.count is not None and max(map(limits.count, lists.values())) > limits.tokens:
                raise Unfit("too many tokens")
        except Unfit as reason:
            counts[str(reason)] += 1
            continue
        seen.add((one.question, *one.messages))
        number = counts["kept"]
        counts["kept"] += 1
        rows += [
            {"messages": messages, "role": role, "dialogue": number, "turns": one.turns, "question": question}
            for role, messages in lists.items()
        ]
    return rows, counts


def is_held_out(question: str, share: float) -> bool:
    """Whether dialogues about a problem are for validation: all of one problem, whatever else is in the
    file."""
    return derive_seed(0, "held out", question) % 10_000 < round(share * 10_000)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file.

    Raises:
        ValueError: a line has none of the two forms; the message has its number.
    """
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
            if not isinstance(line, dict) or not any(keys <= line.keys() for keys in _FORMS):
                forms = " or ".join(", ".join(sorted(keys)) for keys in _FORMS)
                raise ValueError(f"{path}, line {number}: expected an object with {forms}")
            yield line


def _tokenizer_tools(folder: str) -> tuple[Callable[[Sequence[Message]], int], Callable[[str], str]]:
    """What counts the tokens of a list of messages, and what takes control tokens out of a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def count(messages: Sequence[Message]) -> int:
        found = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=True)
        return len(found["input_ids"])

    return count, ControlTokenRemover(control_tokens(tokenizer)).remove


def write(
    folder: Path, rows: Sequence[dict[str, Any]], counts: Counter[str], validation: float
) -> dict[str, Any]:
    """Write `train.parquet`, `val.parquet` where there is something for it, and `report.json`; returns the
    report."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema(
        [
            ("messages", pa.list_(message)),
            ("role", pa.string()),
            ("dialogue", pa.int64()),
            ("turns", pa.int64()),
        ]
    )
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
    for row in rows:
        held_out = is_held_out(row["question"], validation)
        parts["val" if held_out else "train"].append({name: row[name] for name in schema.names})
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in parts.items():
        target = folder / f"{name}.parquet"
        if some:
            partial = target.with_name(f".{name}.{os.getpid()}.parquet")
            pq.write_table(pa.Table.from_pylist(some, schema=schema), partial)
            os.replace(partial, target)
        else:
            target.unlink(missing_ok=True)
    turns = [row["turns"] for row in rows if row["role"] == META_THINKING]
    report = {
        "dialogues": counts["kept"],
        "rows": {name: len(some) for name, some in parts.items()},
        "turns": {"mean": float(np.mean(turns)), "most": max(turns)} if turns else None,
        "left out": {name: count for name, count in sorted(counts.items()) if name != "kept"},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 where nothing could be built."""
    parser = argparse.ArgumentParser(
        prog="python -m marsrl_verl.algos.rema.sft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("input", type=Path, help="JSONL of marked solutions, or of dialogues")
    add("--output", type=Path, required=True, help="folder of the parquet files")
    add("--model", help="folder or hub id: its tokenizer counts tokens and names control tokens")
    add("--prompts", default=PROMPTS, help="package.module:Class, as marsrl.prompts.target in training")
    add("--prompts-kwargs", type=json.loads, default={}, help="its keyword arguments as JSON")
    add("--max-turns", type=int, default=TURNS, help="longer dialogues are left out (%(default)s)")
    add("--max-tokens", type=int, help=f"with --model: longer lists are left out ({TOKENS})")
    add("--validation", type=float, default=VALIDATION, help="share of problems held out (%(default)s)")
    arguments = parser.parse_args(argv)
    base: type[Any] = DialoguePrompts
    if arguments.model is None and arguments.max_tokens is not None:
        parser.error("--max-tokens needs --model, whose tokenizer counts")
    limits, more = Limits(arguments.max_turns), {}
    if arguments.model is not None:
        count, more["clean"] = _tokenizer_tools(arguments.model)
        limits = Limits(
            arguments.max_turns, TOKENS if arguments.max_tokens is None else arguments.max_tokens, count
        )
    try:
        prompts = load_class(arguments.prompts, arguments.prompts_kwargs, base)
        rows, counts = build(read_lines(arguments.input), prompts, limits, **more)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    report = write(arguments.output, rows, counts, arguments.validation)
    print(json.dumps(report, indent=2))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
