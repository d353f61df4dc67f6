"""The cache of results: one search for each query, in a process and between processes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sqlite3

import pytest

from marsrl_verl.tools.search.backend import BackendFailedError, Hit, SearchResult
from marsrl_verl.tools.search.cache import CacheQuery, ResultCache

FOUND = SearchResult((Hit("T", "text \u2028", "p1", 1.5), Hit("", "other")))
QUERY = CacheQuery("http x", "Who?", 5)


class Search:
    """Counts how often it is made."""

    def __init__(self, found=FOUND, seconds=0.0, error=None):
        self.found, self.seconds, self.error = found, seconds, error
        self.made = 0

    async def __call__(self):
        self.made += 1
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.found


def run(path, work):
    async def opened():
        cache = ResultCache(path)
        await cache.open()
        try:
            return await work(cache)
        finally:
            await cache.close()

    return asyncio.run(opened())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "results.sqlite3"


@pytest.mark.parametrize("found", [FOUND, SearchResult((), "Page 1: …"), SearchResult(())])
def test_what_was_found_once_is_not_searched_for_again(found, path):
    search = Search(found)

    async def twice(cache):
        return [await cache.find(QUERY, search) for _ in range(2)]

    assert run(path, twice) == [(found, False), (found, True)]
    assert run(path, twice) == [(found, True), (found, True)]  # by a later run
    assert search.made == 1


def test_what_a_result_depends_on():
    other = [("http y", "Who?", 5), ("http x", "Who?", 6), ("http x", "Whom?", 5), ("http", "x Who?", 5)]
    assert len({QUERY.key, *(CacheQuery(*one).key for one in other)}) == 5
    assert CacheQuery("http x", " WHO?\t", 5).key == QUERY.key


def test_those_who_ask_at_the_same_time_share_a_search(path):
    search = Search(seconds=0.05)

    async def many(cache):
        return await asyncio.gather(*[cache.find(QUERY, search) for _ in range(20)])

    assert sorted(run(path, many), key=lambda one: one[1]) == [(FOUND, False)] + [(FOUND, True)] * 19
    assert search.made == 1
    assert [one.name for one in path.parent.glob("*.locks/*")] == ["open"]


def test_where_a_search_fails_or_is_cancelled_the_next_one_searches(path):
    async def work(cache):
        failing, long = Search(seconds=0.05, error=BackendFailedError("gone")), Search(seconds=60)
        good, ends = Search(), []
        for first in (failing, long):
            query = CacheQuery("x", str(len(ends)), 5)
            one = asyncio.ensure_future(cache.find(query, first))
            while not first.made:
                await asyncio.sleep(0.01)
            two = asyncio.ensure_future(cache.find(query, good))
            await asyncio.sleep(0.02)
            if first is long:
                one.cancel()
            ends.append(await asyncio.wait_for(asyncio.gather(one, two, return_exceptions=True), 10))
        return ends

    (failed, after), (cancelled, later) = run(path, work)
    assert str(failed) == "gone" and isinstance(cancelled, asyncio.CancelledError)
    assert after == later == (FOUND, False)


def _find(path, barrier, made, seconds=0.3):
    async def counted():
        made.put(os.getpid())
        return await Search(seconds=seconds)()

    async def work(cache):
        barrier.wait()
        return await cache.find(QUERY, counted)

    assert run(path, work)[0] == FOUND


def test_processes_share_a_search_and_a_killed_one_holds_nobody_up(path):
    context = multiprocessing.get_context("fork")
    made = context.Queue()
    victim = context.Process(target=_find, args=(path, context.Barrier(1), made, 60))
    victim.start()
    made.get(timeout=30)  # it is searching
    barrier = context.Barrier(4)
    workers = [context.Process(target=_find, args=(path, barrier, made)) for _ in range(3)]
    for one in workers:
        one.start()
    barrier.wait()
    assert made.empty()
    os.kill(victim.pid, signal.SIGKILL)
    for one in [victim, *workers]:
        one.join(60)
    assert [one.exitcode for one in workers] == [0] * 3
    made.get(timeout=5)
    assert made.empty()


def test_a_cache_that_fails_fails_no_search(path, caplog):
    async def work(cache):
        with sqlite3.connect(path) as database:
            database.execute("DROP TABLE results")
        with caplog.at_level(logging.WARNING):
            return [await cache.find(QUERY, search) for search in (Search(), Search())]

    assert run(path, work) == [(FOUND, False)] * 2
    (record,) = caplog.records
    assert "no such table" in record.getMessage()


def test_a_kept_result_that_can_not_be_read_is_searched_for_again(path):
    run(path, lambda cache: cache.find(QUERY, Search()))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE results SET found = 'no JSON'")
    assert run(path, lambda cache: cache.find(QUERY, Search())) == (FOUND, False)
    assert run(path, lambda cache: cache.find(QUERY, Search())) == (FOUND, True)


def test_a_file_that_is_no_cache_is_said(tmp_path):
    other = tmp_path / "other.sqlite3"
    other.write_bytes(b"something else, of some length" * 50)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        run(other, None)
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        run(other / "results.sqlite3", None)
