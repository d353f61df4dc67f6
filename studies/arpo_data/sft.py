"""Transcripts with tools as rows for verl's SFT trainer.

    python -m studies.arpo_data.sft transcripts.json --output sft --tools search,python --model MODEL_FOLDER

A row of the input (.json, .jsonl or .parquet) is a transcript in one of the published forms:

    {"system": …, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
    {"instruction": system, "input": question, "output": answer}

ARPO-SFT-54K has the first, Tool-Star-SFT-54K the second. Calls and results stand in the answer, in tags
(`rollout.tool_protocol.tags`). Each becomes a row of `train.parquet` or `val.parquet` with its `messages`.
What a run's reward would call ill-formed is left out, and `report.json` says why.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.algos.arpo.released_reward import released_answer
from marsrl_verl.algos.arpo.rewards import tag_problem
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import DataError, Row, RowError, read_rows
from studies.supervised_rows import VALIDATION, tokenizer_tools, write_report, write_rows

TOKENS = 15000
_FORMS = (("conversations",), ("input", "output"))
_CALL = re.compile(r"</(search|python)>")
_RESULT = re.compile(r"<result>.*?</result>", re.DOTALL)


class Unfit(Exception):
    """A transcript that is not trained; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a transcript must not exceed."""

    tokens: int = TOKENS
    count: Callable[[Sequence[Message]], int] | None = None
    """Tokens of a list of messages; None: nobody counts."""


def build(
    rows: Iterable[Row],
    tools: tuple[str, ...],
    limits: Limits,
    clean: Callable[[str], str] = lambda text: text,
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows of all transcripts; how many were kept or left out, by reason.

    Args:
        tools: named in the system message that a run's prompts word; none: the transcript's own is kept.
        limits: longer transcripts are left out.
        clean: takes control tokens out of a text.

    Raises:
        DataError: a row has neither form.
    """
    prompts = AgentPrompts(tools) if tools else None
    found: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for row in rows:
        try:
            system, question, answer = (clean(repaired(text)).strip() for text in _read(row))
            _check(question, answer)
            if (question, answer) in seen:
                raise Unfit("a copy")
            asked: Sequence[Message] = ({"role": "user", "content": question},)
            if prompts is not None:
                asked = prompts.problem(Problem("", question, ""))
            elif system:
                asked = ({"role": "system", "content": system}, *asked)
            messages = [*asked, {"role": "assistant", "content": answer}]
            if limits.count is not None and limits.count(messages) > limits.tokens:
                raise Unfit("too many tokens")
        except Unfit as reason:
            counts[str(reason)] += 1
            continue
        seen.add((question, answer))
        counts["kept"] += 1
        found.append({"messages": messages, "question": question, "calls": len(_CALL.findall(answer))})
    return found, counts


def _read(row: Row) -> tuple[str, str, str]:
    """System message, question and answer."""
    if isinstance(row.data, RowError):
        raise DataError(f"{row.place}: {row.data.what}", f"{row.data.fix}.")
    data = row.data
    if not any(all(name in data for name in form) for form in _FORMS):
        forms = " or ".join(", ".join(form) for form in _FORMS)
        what = f"{row.place}: found {', '.join(data) or 'no columns'}, expected {forms}."
        raise DataError(what, "Name a file of transcripts in a published form.")
    if "conversations" in data:
        turns = [(turn.get("from"), turn.get("value")) for turn in _turns(data["conversations"])]
        if [name for name, _ in turns] != ["human", "gpt"]:
            raise Unfit("not one question and one answer")
        found = (data.get("system") or "", turns[0][1], turns[1][1])
    else:
        found = (data.get("instruction") or "", data["input"], data["output"])
    system, question, answer = found
    if not (isinstance(system, str) and isinstance(question, str) and isinstance(answer, str)):
        raise Unfit("a question or an answer that is no text")
    return system, question, answer


def _turns(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        raise Unfit("no list of turns")
    return value


def _check(question: str, answer: str) -> None:
    if not question:
        raise Unfit("no question")
    if problem := tag_problem(_RESULT.sub("", answer)):
        raise Unfit(problem)
    if released_answer(answer) is None:
        raise Unfit("a call without a result")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 where nothing could be built."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.arpo_data.sft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("input", type=Path, help=".json, .jsonl or .parquet file of transcripts")
    add("--output", type=Path, required=True, help="folder of the parquet files")
    told = "names as in marsrl.prompts.kwargs.tools, whose system message stands before each question then"
    add("--tools", default="", metavar="NAME,NAME", help=f"{told} (default: the transcripts' own)")
    add("--model", help="folder or hub id: its tokenizer counts tokens and names control tokens")
    add("--max-tokens", type=int, help=f"with --model: longer transcripts are left out ({TOKENS})")
    add("--validation", type=float, default=VALIDATION, help="share of problems held out (%(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.model is None and arguments.max_tokens is not None:
        parser.error("--max-tokens needs --model, whose tokenizer counts")
    limits, more = Limits(), {}
    try:
        if arguments.model is not None:
            count, more["clean"] = tokenizer_tools(arguments.model)
            limits = Limits(arguments.max_tokens or TOKENS, count)
        columns = [name for form in _FORMS for name in form]
        source = read_rows([arguments.input], [*columns, "system", "instruction"])
        tools = tuple(name for name in arguments.tools.split(",") if name)
        rows, counts = build(source, tools, limits, **more)
    except (OSError, DataError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    written = write_rows(arguments.output, rows, {"calls": "int64"}, arguments.validation)
    left_out = {name: count for name, count in sorted(counts.items()) if name != "kept"}
    calls = sum(row["calls"] for row in rows)
    write_report(
        arguments.output,
        {"transcripts": counts["kept"], "calls": calls, "rows": written, "left out": left_out},
    )
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
