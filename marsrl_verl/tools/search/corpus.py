"""Documents in a JSONL file, one object a line: `{"id": …, "title": …, "text": …}`.

Search-R1's form is read too: `contents` in place of `text`, with the title, in quotes or not, as its first
line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CorpusError(ValueError):
    """A corpus that can't be used; the message names the line."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    source: str
    title: str
    text: str


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a file in their order, a line at a time; CorpusError where the file can't be read or a
    line is none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parse(line, number)
    except OSError as error:
        raise CorpusError(f"{path} can't be read ({error.strerror or error})") from error


def _parse(line: bytes, number: int) -> Document:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"line {number} is not JSON ({error})") from error
    document = document_of(row, str(number))
    if document is None:
        found = ", ".join(sorted(map(str, row))) if isinstance(row, dict) else type(row).__name__
        raise CorpusError(
            f'line {number}: expected {{"id": …, "title": …, "text": …}} or "contents" in place of "text", '
            f"each a text; found: {found or 'nothing'}"
        )
    return document


def document_of(row: Any, name: str = "") -> Document | None:
    """A document from a line of a corpus or an answer of a retriever, with `name` as its source where the row
    has no id; None for what is none."""
    if not isinstance(row, dict):
        return None
    source, title = row.get("id", row.get("_id", name)), row.get("title") or ""
    text = row.get("text", row.get("contents"))
    if not isinstance(title, str) or not isinstance(text, str) or not isinstance(source, (str, int)):
        return None
    if "text" not in row:
        head, _, body = text.partition("\n")
        head = head.strip().strip('"')
        if not title and body:
            title, text = head, body
        elif title and head == title.strip().strip('"'):
            text = body
    return Document(str(source), title.strip(), text.strip())


def digest(path: Path) -> str:
    """SHA-256 of a file; CorpusError where it can't be read."""
    made = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                made.update(block)
    except OSError as error:
        raise CorpusError(f"{path} can't be read ({error.strerror or error})") from error
    return made.hexdigest()
