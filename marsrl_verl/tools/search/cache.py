"""Results that were found before, in an SQLite file that all runs of a machine share, and one search at a
time for each query, in one process and between processes.

Who searches for a query holds a claim on it, which is renewed while the search runs. Others wait for the
result. A claim that was not renewed for `CLAIM_S`, since its process was killed, is anybody's. The worst that
a clock or a stalled process can do is that a query is asked twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from marsrl_verl.core.inert_text import one_line
from marsrl_verl.tools.search.backend import Hit, SearchResult
from marsrl_verl.tools.search.query import normalised

CLAIM_S = 10.0
"""Seconds after which a claim that nobody renews is over."""
BUSY_S = 10.0
"""Seconds that a process waits for another one's write."""
_POLL_S = (0.02, 0.5)
"""Seconds between two looks for another process's result: at first, and at most."""
_VERSION = 1
_TABLES = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS results (
        key TEXT PRIMARY KEY, backend TEXT, query TEXT, k INTEGER, found TEXT, written REAL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT, until REAL) WITHOUT ROWID;
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""
_CLAIM = """
    INSERT INTO claims VALUES (:key, :owner, :until)
    ON CONFLICT (key) DO UPDATE SET owner = :owner, until = :until WHERE until < :now
"""

_log = logging.getLogger(__name__)
T = TypeVar("T")
Search = Callable[[], Awaitable[SearchResult]]


class CacheError(ValueError):
    """A file that can't be used as a cache; the message says why."""


@dataclass(frozen=True, slots=True)
class CacheQuery:
    """What a result is the answer to."""

    backend: str
    """Identity of the back end."""
    query: str
    k: int

    @property
    def key(self) -> str:
        """The same for queries that are one search (`query.normalised`)."""
        parts = json.dumps([self.backend, normalised(self.query), self.k])
        return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(slots=True)
class _Flight:
    """A search that is under way in this process."""

    task: asyncio.Task[tuple[SearchResult, bool]]
    waiting: int = 0


class ResultCache:
    """Results by back end, query and number of hits.

    Args:
        path: the file; made with its folder where it is missing. On a local file system: SQLite's shared
            memory does not work between machines.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._thread = ThreadPoolExecutor(1, "search-cache")
        self._database: sqlite3.Connection | None = None
        self._flights: dict[str, _Flight] = {}
        self._warned = False

    async def open(self) -> None:
        """Open the file.

        Raises:
            CacheError: it can't be written, or is no cache of this version.
        """
        await self._run(self._open)

    async def find(self, query: CacheQuery, search: Search) -> tuple[SearchResult, bool]:
        """What is known or, if nothing is, what `search` finds. Callers that ask for the same at the same
        time share one search; it is cancelled with the last of them. What it raises, it raises for all of
        them, and nothing is kept.

        Returns:
            The result, and whether it was found by an earlier search.
        """
        key = query.key
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(self._fly(query, key, search)))
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                flight.task.cancel()
                self._flights.pop(key, None)  # whoever comes now needs another one

    def _landed(self, key: str, task: asyncio.Task[tuple[SearchResult, bool]]) -> None:
        if key in self._flights and self._flights[key].task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # all who wait may be gone

    async def _fly(self, query: CacheQuery, key: str, search: Search) -> tuple[SearchResult, bool]:
        try:
            known = await self._known(key)
            if known is not None:
                return known, True
            renewing = asyncio.ensure_future(self._renew(key))
            try:
                result = await search()
            finally:
                renewing.cancel()
            await self._attempt(lambda: self._keep(query, key, result), None)
            return result, False
        finally:  # a claim too that was being made when this was cancelled: the thread does one at a time
            await self._attempt(lambda: self._release(key), None)

    async def _known(self, key: str) -> SearchResult | None:
        """What is known, once nobody else searches for it; None: the claim is ours."""
        pause, unknown = _POLL_S[0], cast("tuple[SearchResult | None, bool]", (None, True))
        while True:
            known, free = await self._attempt(lambda: self._look(key), unknown)
            if known is not None or free:
                return known
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])

    async def _renew(self, key: str) -> None:
        while True:
            await asyncio.sleep(CLAIM_S / 4)
            await self._attempt(lambda: self._prolong(key), None)

    async def _attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """What `work` gives in the cache's thread. A cache that fails is no reason that a search does."""
        try:
            return await self._run(work)
        except (sqlite3.Error, CacheError) as error:
            if not self._warned:
                _log.warning("results are not kept in %s: %s", self._path, one_line(error))
                self._warned = True
            return otherwise

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        last = time.monotonic() + BUSY_S
        while True:
            try:
                return self._connect()
            except sqlite3.OperationalError as error:  # two that make the file: not all of it waits by itself
                if "locked" not in str(error) or time.monotonic() > last:
                    raise CacheError(f"{error}") from error
                time.sleep(_POLL_S[0])
            except (OSError, sqlite3.Error) as error:
                raise CacheError(f"{error}") from error

    def _connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise CacheError(f"it is of version {version}, expected {_VERSION}")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            self._database.executescript(_TABLES)
        self._database.execute("SELECT key, backend, query, k, found, written FROM results LIMIT 1")

    def _look(self, key: str) -> tuple[SearchResult | None, bool]:
        """A known result, and whether the search is this object's to make."""
        known = self._read(key)
        if known is not None:
            return known, False
        now = time.time()
        values = {"key": key, "owner": self._owner, "now": now, "until": now + CLAIM_S}
        if not self._sql(_CLAIM, values).rowcount:
            return None, False
        if (known := self._read(key)) is not None:  # kept between the two statements
            self._release(key)
        return known, known is None

    def _read(self, key: str) -> SearchResult | None:
        row = self._sql("SELECT found FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else _from_json(row[0])

    def _keep(self, query: CacheQuery, key: str, result: SearchResult) -> None:
        values = (key, query.backend, query.query, query.k, _to_json(result), time.time())
        self._sql("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)", values)

    def _prolong(self, key: str) -> None:
        values = (time.time() + CLAIM_S, key, self._owner)
        self._sql("UPDATE claims SET until = ? WHERE key = ? AND owner = ?", values)

    def _release(self, key: str) -> None:
        self._sql("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self._owner))

    def _sql(self, statement: str, values: Any) -> sqlite3.Cursor:
        if self._database is None:
            raise CacheError("it is not open")
        return self._database.execute(statement, values)

    async def close(self) -> None:
        """End the searches that are under way, and close the file."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._database is not None:
            database, self._database = self._database, None
            with contextlib.suppress(sqlite3.Error):
                await self._run(database.close)
        self._thread.shutdown(wait=False)


def _to_json(result: SearchResult) -> str:
    hits = [[hit.title, hit.text, hit.source, hit.score] for hit in result.hits]
    return json.dumps({"hits": hits, "text": result.text})


def _from_json(text: str) -> SearchResult | None:
    """A kept result; None for what is none."""
    try:
        plain = json.loads(text)
        return SearchResult(tuple(Hit(*hit) for hit in plain["hits"]), plain["text"])
    except (ValueError, KeyError, TypeError):
        return None
