"""The index of a corpus: an SQLite file with full-text search (FTS5), built once and found by what is in the
corpus."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marsrl_verl.tools.search.corpus import CorpusError, Document, digest, read_documents
from marsrl_verl.tools.search.query import words

VERSION = 1
"""Of what an index holds and of how texts become words: another one is another file."""
_BATCH = 1000
_APART = re.compile(r"\s*\([^()]*\)\s*$")
_TABLES = """
    CREATE TABLE documents (number INTEGER PRIMARY KEY, source TEXT, title TEXT, text TEXT);
    CREATE TABLE titles (name TEXT, number INTEGER, PRIMARY KEY (name, number)) WITHOUT ROWID;
    CREATE VIRTUAL TABLE terms USING fts5(title, text, content='', tokenize='porter unicode61');
"""
"""The index proper holds no text (`content=''`): what is indexed are the words of `query.words`."""


def prepare_index(corpus: Path, folder: Path) -> tuple[Path, str]:
    """The index of a corpus, built where there is none yet. Of several processes one builds, and the others
    wait for it.

    Args:
        folder: where indices are kept; made if it is missing.

    Returns:
        The file, and the digest of the corpus.

    Raises:
        CorpusError: the corpus can't be used.
        OSError: the folder can't be written.
        sqlite3.Error: SQLite can't make the index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = _digest_of(corpus, folder)
    file = folder / f"bm25-{VERSION}-{name[:32]}.sqlite3"
    if not file.exists():
        with _locked(file.with_suffix(".lock")):
            if not file.exists():
                _build(corpus, file)
    return file, name


def _build(corpus: Path, file: Path) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)  # of a process that was killed: the lock is ours
    before = _stamp(corpus)
    database = sqlite3.connect(unfinished, isolation_level=None)
    try:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + _TABLES)
        count = 0
        for batch in _batches(read_documents(corpus)):
            numbered = list(enumerate(batch, count + 1))
            count += len(batch)
            database.executemany(
                "INSERT INTO documents VALUES (?, ?, ?, ?)",
                [(number, one.source, one.title, one.text) for number, one in numbered],
            )
            database.executemany(
                "INSERT INTO titles VALUES (?, ?)",
                [(name, number) for number, one in numbered if (name := name_of(one.title))],
            )
            database.executemany(
                "INSERT INTO terms (rowid, title, text) VALUES (?, ?, ?)",
                [(number, " ".join(words(one.title)), " ".join(words(one.text))) for number, one in numbered],
            )
        if not count:
            raise CorpusError("it has no line with a document")
        database.execute("INSERT INTO terms (terms) VALUES ('optimize')")
        database.execute("COMMIT")
    finally:
        database.close()
    if _stamp(corpus) != before:
        raise CorpusError("it was changed while it was read")
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.replace(file)


def name_of(title: str) -> str:
    """A title as texts write it: its words, without what tells it from others in brackets at its end."""
    return " ".join(words(_APART.sub("", title)))


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for one in documents:
        batch.append(one)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def open_index(file: Path) -> sqlite3.Connection:
    """A connection that reads, for one thread at a time. The file never changes: it is only ever replaced."""
    return sqlite3.connect(
        f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
    )


def _digest_of(corpus: Path, folder: Path) -> str:
    """The digest of a corpus, read from a note where the file is the one that was read before."""
    stamp = _stamp(corpus)
    path = hashlib.sha256(os.fsencode(corpus.resolve())).hexdigest()[:32]
    note = folder / f"{path}.digest.json"
    if (noted := _noted(note)) is not None and noted[0] == stamp:
        return noted[1]
    made = digest(corpus)
    own = note.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps({"stamp": stamp, "digest": made}), encoding="ascii")
    own.replace(note)
    return made


def _noted(note: Path) -> tuple[list[int], str] | None:
    """Stamp and digest in a note; None where there is none that can be read."""
    try:
        noted = json.loads(note.read_bytes())
        return noted["stamp"], str(noted["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stamp(path: Path) -> list[int]:
    """What changes when a file is written or replaced.

    Raises:
        CorpusError: it is not there.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise CorpusError(f"{path} can't be read ({error.strerror or error})") from error
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel gives it back when the process ends, however that happens."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
