"""The back end `bm25`: a corpus of one's own, searched in this process."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, SearchResult
from marsrl_verl.tools.search.corpus import CorpusError
from marsrl_verl.tools.search.index import Index, prepare_index
from marsrl_verl.tools.search.query import search_words
from marsrl_verl.tools.search.ranking import best

if TYPE_CHECKING:
    from marsrl_verl.tools.search.config import Bm25Config

MOST_WORDS = 64
"""Words of a query that are looked for; each costs time."""


class Bm25Backend(Backend):
    """Documents of a file, as `ranking.best` finds them by an index that is kept in `folder`."""

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
        weights = {"title_weight": self._settings.title_weight, "named_weight": self._settings.named_weight}
        return best(self._index, search_words(query, MOST_WORDS), k, **weights)

    async def close(self) -> None:
        """See `Backend`."""
        await asyncio.to_thread(self._threads.shutdown, True, cancel_futures=True)
        if self._index is not None:
            self._index.close()
