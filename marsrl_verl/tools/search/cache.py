"""Results that were found before, in an SQLite file that all runs of a machine share, and one search at a
time for each query: who searches holds a lock file, which the kernel frees when its process ends."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from marsrl_verl.core.sanitize import one_line
from marsrl_verl.tools.search.backend import Hit, SearchResult
from marsrl_verl.tools.search.query import normalised

BUSY_S = 10.0
"""Seconds that a process waits for another one's write."""
_POLL_S = (0.01, 0.2)
"""Seconds between two looks whether another search has ended: at first, and at most."""
_TABLE = """
    CREATE TABLE IF NOT EXISTS results (
        key TEXT PRIMARY KEY, backend TEXT, query TEXT, k INTEGER, found TEXT, written REAL
    ) WITHOUT ROWID
"""
_KEEP = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)"

_log = logging.getLogger(__name__)
T = TypeVar("T")
Search = Callable[[], Awaitable[SearchResult]]


@dataclass(frozen=True, slots=True)
class CacheQuery:
    """The query that a result answers."""

    backend: str
    """Identity of the back end."""
    query: str
    k: int

    @property
    def key(self) -> str:
        """Key of the result, the same for queries that are one search (`query.normalised`)."""
        parts = json.dumps([self.backend, normalised(self.query), self.k])
        return hashlib.sha256(parts.encode()).hexdigest()


class ResultCache:
    """Results by back end, query and number of hits, in a file that is made with its folder where there is
    none. On a local file system: SQLite's shared memory does not work between machines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._locks = path.with_name(f"{path.name}.locks")
        self._thread = ThreadPoolExecutor(1, "search-cache")
        self._database: sqlite3.Connection | None = None
        self._warned = False

    async def open(self) -> None:
        """Opens the file; OSError or sqlite3.Error where it can't be written, or is something else."""
        await self._run(self._open)

    def _open(self) -> None:
        self._locks.mkdir(parents=True, exist_ok=True)
        with FileLock(self._locks / "open"):  # SQLite does not wait for all of what makes a file
            self._database = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE):
                self._database.execute(statement)

    async def find(self, query: CacheQuery, search: Search) -> tuple[SearchResult, bool]:
        """The known result or, if there is none, what `search` finds; and whether an earlier search had found
        it. Those who ask for the same at the same time wait; where one raises, the next of them searches, and
        nothing is kept."""
        key = query.key
        known = await self._known(key)
        if known is None:
            async with self._alone(key):
                known = await self._known(key)
                if known is None:
                    result = await search()
                    found = json.dumps({"hits": [astuple(hit) for hit in result.hits], "text": result.text})
                    await self._sql(_KEEP, key, query.backend, query.query, query.k, found, time.time())
                    return result, False
        return known, True

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """No other search for the same until the end of the block."""
        lock = FileLock(self._locks / key)
        pause = _POLL_S[0]
        while not lock.is_locked:
            try:
                lock.acquire(blocking=False)
            except Timeout:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _POLL_S[1])
            except OSError as error:
                self._warn(error)
                break
        try:
            yield
        finally:
            if lock.is_locked:  # whoever waits for the file looks for a result before it searches
                (self._locks / key).unlink(missing_ok=True)
                lock.release()

    async def _known(self, key: str) -> SearchResult | None:
        """A kept result; None where there is none that can be read."""
        rows = await self._sql("SELECT found FROM results WHERE key = ?", key)
        try:
            plain = json.loads(rows[0][0])
            return SearchResult(tuple(Hit(*hit) for hit in plain["hits"]), plain["text"])
        except (IndexError, ValueError, KeyError, TypeError):
            return None

    async def _sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement. A cache that fails is no reason that a search does."""
        database = self._database
        if database is None:
            return []
        try:
            return await self._run(lambda: database.execute(statement, values).fetchall())
        except sqlite3.Error as error:
            self._warn(error)
            return []

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            _log.warning("results are not kept in %s: %s", self._path, one_line(error))
            self._warned = True

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Closes the file."""
        database, self._database = self._database, None
        if database is not None:
            await self._run(database.close)
        self._thread.shutdown(wait=False)
