"""What makers of rows for verl's SFT trainer share: which problems are held out, tokenizers, files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.core.request import Message
from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.rollout.chat_tokenizer import ControlTokenRemover, control_tokens

VALIDATION = 0.05


def is_held_out(question: str, share: float) -> bool:
    """Whether rows about a problem are for validation: all of one problem, whatever else is in the file."""
    return derive_seed(0, "held out", question) % 10_000 < round(share * 10_000)


def tokenizer_tools(folder: str) -> tuple[Callable[[Sequence[Message]], int], Callable[[str], str]]:
    """What counts the tokens of a list of messages, and what takes control tokens out of a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def count(messages: Sequence[Message]) -> int:
        found = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=True)
        return len(found["input_ids"])

    return count, ControlTokenRemover(control_tokens(tokenizer)).remove


def write_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], more: Mapping[str, str], validation: float
) -> dict[str, int]:
    """Writes `train.parquet`, and `val.parquet` where there is something for it; returns the rows of each.

    Args:
        rows: with `messages`, `question`, and the columns of `more`.
        more: further columns and their types, as pyarrow names them.
        validation: share of problems that are held out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema([("messages", pa.list_(message)), *more.items()])
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
    return {name: len(some) for name, some in parts.items()}


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Writes `report.json`, and prints it."""
    text = json.dumps(report, indent=2)
    (folder / "report.json").write_text(text + "\n")
    print(text)
