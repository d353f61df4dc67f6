"""Dialogues for supervised training, from solutions whose parts are marked with who would say them.

    python -m studies.rema_data.sft solutions.jsonl --output sft --model MODEL_FOLDER

A line of the input is {"question": …, "solution": …}, and if it is known "answer". A solution has parts

    <meta_thinking>what to do next</meta_thinking><reasoning>doing it</reasoning>…

or a line is the reasoning agent's view of a dialogue, as in the released data: {"history": [[message, reply],
…], "instruction": …, "output": …}, whose first message is "Question:\\n…\\n\\nInstruction:\\n…".

Each becomes two rows of `train.parquet` or `val.parquet` for verl's SFT trainer, one for each agent's
list of messages (column `messages`), as the rollouts build them: with the prompts of training, `[FINISH]` at
the end of the last message of the meta-thinking agent and nowhere else. What can't become a dialogue is left
out, and `report.json` says why; it counts what was put right, too (`MENDED`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marsrl_verl.algos.rema.prompts import META_THINKING, DialoguePrompts
from marsrl_verl.core.request import Message
from marsrl_verl.rewards.loading import load_class
from studies.rema_data.marked_solutions import (
    MENDED,
    Unfit,
    dialogue_of,
    mendings,
    parts_of,
    parts_of_view,
    views,
)
from studies.supervised_rows import VALIDATION, tokenizer_tools, write_report, write_rows

PROMPTS = "marsrl_verl.algos.rema.prompts:MathDialogue"
TURNS, TOKENS = 30, 4096
_COLUMNS = {"role": "string", "dialogue": "int64", "turns": "int64"}
_FORMS = ({"question", "solution"}, {"history", "instruction", "output"})
"""Keys of a line."""
_PIPED = re.compile(r"<[|｜][^<>\n]{1,40}[|｜]>")
"""What looks like a control token, where no tokenizer says which there are."""


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
) -> tuple[list[dict[str, Any]], Counter[str], Counter[str]]:
    """The rows of all dialogues, two for each; how many solutions were kept or left out, by reason; and of
    the kept ones how many were put right in something (`MENDED`).

    Args:
        lines: of the input.
        prompts: how the lists of messages begin.
        limits: longer dialogues are left out.
        clean: takes control tokens out of a text.
    """
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    mended: Counter[str] = Counter(dict.fromkeys(MENDED, 0))
    seen: set[tuple[str, ...]] = set()
    for line in lines:
        try:
            question, parts = _read(line, clean)
            answer = line.get("answer")
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
        mended.update(mendings(turns))
        mended["control_tokens"] += any(clean(text) != text for text in _texts(line))
        rows += [
            {"messages": messages, "role": role, "dialogue": number, "turns": one.turns, "question": question}
            for role, messages in lists.items()
        ]
    return rows, counts, mended


def _read(line: Mapping[str, Any], clean: Callable[[str], str]) -> tuple[str, list[tuple[str, str]]]:
    """The question and the parts of a line."""
    if _FORMS[0] <= line.keys():
        question, solution = line["question"], line["solution"]
        if not isinstance(question, str) or not isinstance(solution, str):
            raise Unfit("a question or a solution that is no text")
        # Tags that control tokens cut in two are whole only without these.
        parts = parts_of(clean(solution))
    else:
        question, parts = parts_of_view(line)
    question = clean(question).strip()
    if not question:
        raise Unfit("no question")
    return question, parts


def _texts(line: Mapping[str, Any]) -> Iterator[str]:
    """All that a line says in question and solution, or in a view."""
    if _FORMS[0] <= line.keys():
        yield from (line["question"], line["solution"])
    else:
        pairs = [*(line["history"] or []), [line["instruction"], line["output"]]]
        yield from (text for pair in pairs for text in pair)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file.

    Raises:
        ValueError: a line has none of the two forms; the message has its number.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text.decode("utf-8-sig"))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
            if not isinstance(line, dict) or not any(keys <= line.keys() for keys in _FORMS):
                forms = " or ".join(", ".join(sorted(keys)) for keys in _FORMS)
                raise ValueError(f"{path}, line {number}: expected an object with {forms}")
            yield line


def write(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    counts: Counter[str],
    mended: Counter[str],
    validation: float,
) -> None:
    """Writes `train.parquet`, `val.parquet` where there is something for it, and `report.json`."""
    written = write_rows(folder, rows, _COLUMNS, validation)
    turns = [row["turns"] for row in rows if row["role"] == META_THINKING]
    report = {
        "dialogues": counts["kept"],
        "rows": written,
        "turns": {"mean": float(np.mean(turns)), "most": max(turns)} if turns else None,
        "mended": dict(mended),
        "left out": {name: count for name, count in sorted(counts.items()) if name != "kept"},
    }
    write_report(folder, report)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 where nothing could be built."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.rema_data.sft",
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
        count, more["clean"] = tokenizer_tools(arguments.model)
        limits = Limits(
            arguments.max_turns, TOKENS if arguments.max_tokens is None else arguments.max_tokens, count
        )
    try:
        prompts = load_class(arguments.prompts, arguments.prompts_kwargs, base)
        rows, counts, mended = build(read_lines(arguments.input), prompts, limits, **more)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    write(arguments.output, rows, counts, mended, arguments.validation)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
