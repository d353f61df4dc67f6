"""The index of a corpus: bm25s's arrays, which all processes map into memory, and an SQLite file with the
documents. It is built once and found by what is in the corpus."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import sys
import threading
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.corpus import CorpusError, digest, read_documents
from marsrl_verl.tools.search.query import words

VERSION = 2
"""Version of an index's contents and of how texts become words; each version has a folder of its own."""
_APART = re.compile(r"\s*\([^()]*\)\s*$")
_DOCUMENTS = "documents.sqlite3"
_TABLE = """
    PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
    CREATE TABLE documents (number INTEGER PRIMARY KEY, source TEXT, title TEXT, text TEXT, name TEXT);
    CREATE INDEX names ON documents (name, number);
"""
_AMONG = "IN (SELECT value FROM json_each(?))"


def prepare_index(corpus: Path, folder: Path) -> tuple[Path, str]:
    """The folder of a corpus's index, and the corpus's digest. Where `folder` has no index yet, one of
    several processes builds it and the others wait for it.

    Raises:
        CorpusError: the corpus can't be used.
        OSError, sqlite3.Error: the folder can't be written, or SQLite can't keep the documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = digest(corpus)
    made = folder / f"bm25-{VERSION}-{name[:32]}"
    if not made.exists():
        with FileLock(f"{made}.lock"):
            if not made.exists():
                _build(corpus, made, name)
    return made, name


def _build(corpus: Path, made: Path, name: str) -> None:
    unfinished = made.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed: the lock is ours
    unfinished.mkdir()
    fields = _Field("title"), _Field("text")
    with closing(sqlite3.connect(unfinished / _DOCUMENTS)) as database, database:
        database.executescript(_TABLE)
        for number, one in enumerate(read_documents(corpus)):
            row = (number, one.source, one.title, one.text, name_of(one.title))
            database.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", row)
            for field, text in zip(fields, (one.title, one.text), strict=True):
                field.add(text)
    if not fields[0].documents:
        raise CorpusError("it has no line with a document")
    if digest(corpus) != name:
        raise CorpusError("it was changed while it was read")
    for field in fields:
        field.save(unfinished)
    for file in unfinished.rglob("*.*"):
        with file.open("rb") as written:
            os.fsync(written.fileno())
    unfinished.rename(made)


class _Field:
    """The stems of all documents' titles or texts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._vocabulary = {"": 0}
        self._stemmer = _stemmer()
        self.documents: list[array[int]] = []

    def add(self, text: str) -> None:
        known = self._vocabulary
        stems = self._stemmer.stemWords(words(text))
        self.documents.append(array("i", [known.setdefault(stem, len(known)) for stem in stems]))

    def save(self, folder: Path) -> None:
        index = _bm25()(k1=1.2, b=0.75, method="lucene")
        if len(self._vocabulary) == 1:  # no document has a title
            self.documents[0].append(0)
        index.index((self.documents, self._vocabulary), show_progress=False)
        index.save(folder / self._name, show_progress=False)


def _bm25() -> Any:
    """The library's class: it is slow to import, and tells every step to whoever has a log."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # the import would have JAX take a GPU's memory
    try:
        from bm25s import BM25
    finally:
        if hidden:
            del sys.modules["jax"]
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return BM25


def _stemmer() -> Any:
    """A stemmer, for one thread."""
    from Stemmer import Stemmer

    return Stemmer("porter")


def name_of(title: str) -> str:
    """A title as texts write it: its words, without what tells it from others in brackets at its end."""
    return " ".join(words(_APART.sub("", title)))


class Index:
    """The index in a folder of `prepare_index`, which never changes, for all threads of a process. OSError,
    ValueError or sqlite3.Error where it can't be read."""

    def __init__(self, folder: Path) -> None:
        bm25 = _bm25()
        self._title, self._text = (bm25.load(folder / name, mmap=True) for name in ("title", "text"))
        place = (folder / _DOCUMENTS).resolve().as_uri()
        self._database = sqlite3.connect(f"{place}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self._one_thread = threading.Lock()
        self._rows("SELECT number FROM documents WHERE number = ?", 0)

    def scores(self, terms: Iterable[str], title_weight: float) -> np.ndarray:
        """The bm25 of every document: of its text and, with that weight, of its title."""
        stems = _stemmer().stemWords(list(terms))
        made = np.zeros(self._text.scores["num_docs"])
        for field, weight in ((self._title, title_weight), (self._text, 1.0)):
            if ids := field.get_tokens_ids(stems):
                made += weight * field.get_scores_from_ids(ids)
        return made

    def documents(self, numbers: Sequence[int]) -> list[Hit]:
        """The documents with these numbers, in this order."""
        rows = self._rows(f"SELECT number, title, text, source FROM documents WHERE number {_AMONG}", numbers)
        found = {number: Hit(*row) for number, *row in rows}
        return [found[number] for number in numbers]

    def names(self, numbers: Sequence[int]) -> dict[int, str]:
        """The titles of documents by their numbers, as `name_of` writes them."""
        return dict(self._rows(f"SELECT number, name FROM documents WHERE number {_AMONG}", numbers))

    def first_of(self, names: Iterable[str]) -> dict[int, str]:
        """The first of the documents with each of these titles, such as the passages of a page."""
        sql = f"SELECT MIN(number), name FROM documents WHERE name {_AMONG} GROUP BY name"
        return dict(self._rows(sql, list(names)))

    def _rows(self, sql: str, value: Any) -> list[tuple[Any, ...]]:
        with self._one_thread:
            return self._database.execute(sql, (json.dumps(value),)).fetchall()

    def close(self) -> None:
        """Closes the file of the documents."""
        self._database.close()
