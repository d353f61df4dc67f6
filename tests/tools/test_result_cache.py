"""The cache of results: one search for each query, in a process and between processes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sqlite3
import time

import pytest

from marsrl_verl.tools.search import cache as cache_module
from marsrl_verl.tools.search.backend import BackendFailedError, Hit, SearchResult
from marsrl_verl.tools.search.cache import CacheError, CacheQuery, ResultCache

FOUND = SearchResult((Hit("T", "text \u2028", "p1", 1.5), Hit("", "other")))
QUERY = CacheQuery("http x", "Who?", 5)


class Search:
    """Counts how often it is made."""

    def __init__(self, found=FOUND, seconds=0.0, error=None):
        self.found, self.seconds, self.error = found, seconds, error
        self.made = self.ended = 0

    async def __call__(self):
        self.made += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.ended += 1
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


def test_what_was_found_once_is_not_searched_for_again(path):
    search = Search()

    async def twice(cache):
        return [await cache.find(QUERY, search) for _ in range(2)]

    assert run(path, twice) == [(FOUND, False), (FOUND, True)]
    assert run(path, twice) == [(FOUND, True), (FOUND, True)]  # by a later run
    assert search.made == 1


def test_a_recorded_text_and_nothing_at_all_are_kept_too(path):
    for number, found in enumerate([SearchResult((), "Page 1: …"), SearchResult(())]):
        search, query = Search(found), CacheQuery("x", f"q{number}", 5)
        assert run(path, lambda cache, a=query, s=search: cache.find(a, s)) == (found, False)
        assert run(path, lambda cache, a=query, s=search: cache.find(a, s)) == (found, True)


def test_what_a_result_depends_on():
    keys = {
        one.key
        for one in (
            QUERY,
            CacheQuery("http y", "Who?", 5),
            CacheQuery("http x", "Who?", 6),
            CacheQuery("http x", "Whom?", 5),
            CacheQuery("http", "x Who?", 5),
        )
    }
    assert len(keys) == 5
    assert CacheQuery("http x", " WHO?\t", 5).key == QUERY.key


def test_those_who_ask_at_the_same_time_share_a_search(path):
    search = Search(seconds=0.05)

    async def many(cache):
        return await asyncio.gather(*[cache.find(QUERY, search) for _ in range(20)])

    assert run(path, many) == [(FOUND, False)] * 20
    assert search.made == 1


def test_a_search_that_fails_fails_for_all_of_them_and_is_not_kept(path):
    async def work(cache):
        failing = Search(seconds=0.05, error=BackendFailedError("gone"))
        ends = await asyncio.gather(*[cache.find(QUERY, failing) for _ in range(3)], return_exceptions=True)
        return failing.made, ends, await cache.find(QUERY, Search())

    made, ends, later = run(path, work)
    assert made == 1
    assert [str(one) for one in ends] == ["gone"] * 3
    assert later == (FOUND, False)


def test_a_search_goes_on_while_somebody_waits_and_is_cancelled_with_the_last(path):
    async def work(cache):
        search = Search(seconds=0.2)
        first, second = (asyncio.ensure_future(cache.find(QUERY, search)) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        shared = await second
        long = Search(seconds=60)
        third, fourth = (asyncio.ensure_future(cache.find(CacheQuery("x", "y", 1), long)) for _ in range(2))
        while not long.made:
            await asyncio.sleep(0.01)
        third.cancel()
        fourth.cancel()
        await asyncio.gather(first, third, fourth, return_exceptions=True)
        # The claim is given back.
        again = await asyncio.wait_for(cache.find(CacheQuery("x", "y", 1), Search()), 5)
        return shared, search.made, (long.made, long.ended), again

    shared, made, long, again = run(path, work)
    assert shared == (FOUND, False)
    assert made == 1
    assert long == (1, 1)
    assert again == (FOUND, False)


def _find(path, barrier, made, seconds=0.3):
    async def work(cache):
        barrier.wait()
        found, _ = await cache.find(QUERY, Search(seconds=seconds))
        return found

    search_call = Search.__call__

    async def counted(self):
        made.put(os.getpid())
        return await search_call(self)

    Search.__call__ = counted
    assert run(path, work) == FOUND


def test_processes_share_a_search(path):
    context = multiprocessing.get_context("fork")
    barrier, made = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_find, args=(path, barrier, made)) for _ in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
    assert [one.exitcode for one in workers] == [0] * 4
    made.get(timeout=5)
    assert made.empty()


def test_the_claim_of_a_killed_process_ends(path, monkeypatch):
    monkeypatch.setattr(cache_module, "CLAIM_S", 0.4)
    context = multiprocessing.get_context("fork")
    barrier, made = context.Barrier(1), context.Queue()
    victim = context.Process(target=_find, args=(path, barrier, made, 60))
    victim.start()
    made.get(timeout=30)  # it is searching
    time.sleep(0.5)  # longer than a claim lasts: it is renewed
    began = time.monotonic()

    async def work(cache):
        waiting = asyncio.ensure_future(cache.find(QUERY, Search()))
        await asyncio.sleep(0.6)
        still = not waiting.done()
        os.kill(victim.pid, signal.SIGKILL)
        return still, await asyncio.wait_for(waiting, 20)

    still, found = run(path, work)
    victim.join(10)
    assert still
    assert found == (FOUND, False)
    assert time.monotonic() - began >= 0.6


def test_a_cache_that_fails_fails_no_search(path, caplog):
    async def work(cache):
        cache._database.execute("DROP TABLE results")
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
    with pytest.raises(CacheError, match="not a database"):
        run(other, None)
    newer = tmp_path / "newer.sqlite3"
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version = 7")
    with pytest.raises(CacheError, match="of version 7, expected 1"):
        run(newer, None)
    with pytest.raises(CacheError, match="exists"):
        run(other / "results.sqlite3", None)
