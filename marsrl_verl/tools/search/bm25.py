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
from marsrl_verl.tools.search.index import open_index, prepare_index
from marsrl_verl.tools.search.query import search_words
from marsrl_verl.tools.search.ranking import best

if TYPE_CHECKING:
    from marsrl_verl.tools.search.config import Bm25Config

MOST_WORDS = 64
"""Words of a query that are looked for; each costs time."""


class Bm25Backend(Backend):
    """Documents of a file, as `ranking.best` finds them.

    Args:
        settings: `bm25` of the search tool's settings.
        folder: where indices are kept.
        node: where the settings are, for messages.
    """

    remote = False

    def __init__(self, settings: Bm25Config, folder: Path, node: str) -> None:
        self._settings = settings
        self._folder = folder
        self._node = node
        self._threads = ThreadPoolExecutor(settings.threads, "bm25")
        self._free: asyncio.Queue[sqlite3.Connection] = asyncio.Queue()
        self._open: list[sqlite3.Connection] = []
        self.identity = "bm25"

    async def start(self) -> None:
        """See `Backend`. The first one that needs the index builds it."""
        if self._settings.corpus is None:
            raise ToolUnavailableError(f"{self._node}.corpus is not set; name the file with the documents")
        corpus = Path(self._settings.corpus).expanduser()
        try:
            file, name = await asyncio.to_thread(prepare_index, corpus, self._folder)
            self._open = [open_index(file) for _ in range(self._settings.threads)]
            for database in self._open:
                self._search(database, "probe", 1)
        except CorpusError as error:
            raise ToolUnavailableError(f"{self._node}.corpus = {corpus}: {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise ToolUnavailableError(
                f"the index of {corpus} can't be made or read in {self._folder}: {error}. SQLite needs its "
                "extension FTS5, and the folder has to be writable"
            ) from error
        for database in self._open:
            self._free.put_nowait(database)
        weights = f"{self._settings.title_weight:g} {self._settings.named_weight:g}"
        self.identity = f"bm25 {name} {weights}"

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`. A search whose call was cancelled is interrupted."""
        database = await self._free.get()
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._search, database, query, k)
        work.add_done_callback(lambda done: self._release(database, done))
        try:
            return SearchResult(await asyncio.shield(work))
        except asyncio.CancelledError:
            database.interrupt()
            raise
        except sqlite3.Error as error:
            raise BackendFailedError(f"the index of {self._settings.corpus}: {error}") from error

    def _release(self, database: sqlite3.Connection, done: asyncio.Future[tuple[Hit, ...]]) -> None:
        if not done.cancelled():
            done.exception()  # of an interrupted search nobody asks for it any more
        self._free.put_nowait(database)

    def _search(self, database: sqlite3.Connection, query: str, k: int) -> tuple[Hit, ...]:
        return best(
            database,
            search_words(query, MOST_WORDS),
            k,
            title_weight=self._settings.title_weight,
            named_weight=self._settings.named_weight,
        )

    async def close(self) -> None:
        """See `Backend`."""
        await asyncio.to_thread(self._threads.shutdown, True, cancel_futures=True)
        for database in self._open:
            database.close()
        self._open = []
