"""The back end `bm25`: a corpus of one's own, searched in this process by bm25 and by what the best hits
name.

A question that needs two steps ("Where was the director of … born?") shares its words with the first document
alone; the second is the one whose title the first one names.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, SearchResult
from marsrl_verl.tools.search.config import Bm25Config
from marsrl_verl.tools.search.corpus import CorpusError
from marsrl_verl.tools.search.index import Index, name_of, prepare_index
from marsrl_verl.tools.search.query import search_words, words

MAX_WORDS = 64
"""Words of a query that are looked for; each costs time."""
_CANDIDATES = 100
"""Documents with the best bm25 among which all that are named move up."""
_READ = 3
"""Number of the best documents that are read for names of others."""
_READ_WORDS = 400
"""Words of such a document that are read."""
_NAME_WORDS = 8
"""Most words of a name."""
_WORD = re.compile(r"[^\W_]+")


class Bm25Backend(Backend):
    """Documents of a file, as `best` finds them by an index that is kept in `folder`."""

    remote = False
    identity = "bm25"

    def __init__(self, settings: Bm25Config, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._threads = ThreadPoolExecutor(settings.threads, "bm25")
        self._index: Index | None = None

    async def start(self) -> None:
        """See `Backend`. The first one that needs the index builds it."""
        if self._settings.corpus is None:
            raise ToolUnavailableError("bm25.corpus is not set; name the file with the documents")
        corpus = Path(self._settings.corpus).expanduser()
        try:
            made, name = await asyncio.to_thread(prepare_index, corpus, self._folder)
            self._index = await asyncio.to_thread(Index, made)
        except CorpusError as error:
            raise ToolUnavailableError(f"bm25.corpus = {corpus}: {error}") from error
        except (OSError, ValueError, sqlite3.Error) as error:
            raise ToolUnavailableError(
                f"the index of {corpus} can't be made or read in {self._folder}: {error}. The folder has to "
                "be writable; delete what is damaged in it"
            ) from error
        # 2: how documents are scored; results that were kept are of one way.
        weights = f"{self._settings.title_weight:g} {self._settings.named_weight:g}"
        self.identity = f"bm25 2 {name} {weights}"

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`. One whose call was cancelled goes on in its thread for the milliseconds it takes."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._search, query, k)
        try:
            return SearchResult(await work)
        except sqlite3.Error as error:
            raise BackendFailedError(f"the index of {self._settings.corpus}: {error}") from error

    def _search(self, query: str, k: int) -> tuple[Hit, ...]:
        if self._index is None:
            raise RuntimeError("start() was not called")
        words, one = search_words(query, MAX_WORDS), self._settings
        return best(self._index, words, k, title_weight=one.title_weight, named_weight=one.named_weight)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, True, cancel_futures=True)
        if self._index is not None:
            self._index.close()


def best(
    index: Index, terms: Sequence[str], k: int, *, title_weight: float, named_weight: float
) -> tuple[Hit, ...]:
    """The k best documents.

    A document's score is the bm25 of its text and `title_weight` times that of its title, for any of the
    words (Robertson and Zaragoza 2009, as Lucene has it; k1 = 1.2, b = 0.75). One whose title is named in one
    of the three best gets a share of that one's score in addition, `named_weight`; 0 is bm25 alone. `terms`
    are those of `query.search_words`.
    """
    scores = index.scores(terms, title_weight)
    if named_weight:
        _raise_named(index, scores, named_weight)
    order = _highest(scores, k)
    return tuple(
        replace(hit, score=float(scores[number]))
        for number, hit in zip(order, index.documents(order), strict=True)
    )


def _raise_named(index: Index, scores: np.ndarray, share: float) -> None:
    """Raises the scores of documents that the best ones name: of those with a title the first, and every
    other one that is among the candidates."""
    candidates = _highest(scores, _CANDIDATES)
    readers = candidates[:_READ]
    extra: dict[str, float] = {}
    for number, reader in zip(readers, index.documents(readers), strict=True):
        for name in names_in(reader.text) - {name_of(reader.title)}:
            extra[name] = max(extra.get(name, 0.0), share * scores[number])
    for number, name in {**index.names(candidates), **index.first_of(extra)}.items():
        scores[number] += extra.get(name, 0.0)


def _highest(scores: np.ndarray, k: int) -> list[int]:
    """The numbers of the k highest scores above 0; of equal ones the first."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
    return found[np.argsort(-scores[found], kind="stable")][:k].tolist()


@lru_cache(256)  # the responses of a group find the same documents
def names_in(text: str) -> frozenset[str]:
    """Possible titles in a text, as `name_of` writes them: up to eight words in a row, the first of which is
    not written in lower case."""
    tokens = []
    for one in _WORD.finditer(text):
        tokens.append((one.group()[0].islower(), words(one.group())))
        if len(tokens) == _READ_WORDS:
            break
    names = set()
    for first, (lower, _) in enumerate(tokens):
        if lower:
            continue
        name: list[str] = []
        for _, some in tokens[first : first + _NAME_WORDS]:
            name += some
            names.add(" ".join(name))
    return frozenset(names - {""})
