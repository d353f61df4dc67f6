"""The search tool as a rollout sees it: in a toolbox, over its back ends."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from aiohttp import web
from fake_services import FakeService

from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.settings.reading import read, without_effect
from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, SearchResult
from marsrl_verl.tools.search.config import SearchConfig
from marsrl_verl.tools.search.tool import SearchTool
from marsrl_verl.tools.toolbox import Toolbox, read_all_secrets

DATA = os.environ.get("MARSRL_QA_DATA")
"""A folder with `arpo_search_cache.json`, `{query: text}`, that is not part of this project."""


def search(config, *queries, secrets=None):
    """The results of calls, one after the other."""

    async def run():
        box = Toolbox.from_settings({"search": config}, seed=1, secrets={"search": secrets or {}})
        await box.start()
        try:
            return [
                await box.call(ToolCall("search", {"query": query}, f"t/{number}"))
                for number, query in enumerate(queries)
            ]
        finally:
            await box.close()

    return asyncio.run(run())


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    towns = {f"Town {n}": f"Town {n} has {n} bridges and a mill." for n in range(9)}
    rows = [{"id": f"p{n}", "title": name, "text": text} for n, (name, text) in enumerate(towns.items())]
    path.write_text("\n".join(json.dumps(one) for one in rows))
    return path


def settings(tmp_path, **more):
    return SearchConfig(**{"folder": str(tmp_path / "cache"), "backoff_s": 0.01, **more})


def with_corpus(tmp_path, corpus, **more):
    return settings(tmp_path, bm25={"corpus": str(corpus)}, **more)


def test_a_corpus_is_searched(tmp_path, corpus):
    (result,) = search(with_corpus(tmp_path, corpus, results=2, sources=True), "How many bridges has Town 7?")
    assert result.outcome is ToolOutcome.OK
    first, second = result.text.split("\n")
    assert first == "Page 1 (Town 7): Town 7 has 7 bridges and a mill. [p7]"
    assert second.startswith("Page 2 (Town ")
    assert (result.info, result.cached, result.truncated) == ({"hits": 2}, False, False)


def test_what_is_found_has_the_tools_limit(tmp_path, corpus):
    (result,) = search(with_corpus(tmp_path, corpus, max_output_chars=100), "bridges")
    assert result.truncated and len(result.text) <= 100
    assert result.text.count("\n") == 1  # whole hits, not head and tail of all


def test_calls_that_find_nothing_are_errors(tmp_path, corpus):
    told = {
        "": "The query is empty.",
        " \n": "The query is empty.",
        "x" * 1001: "The query has 1001 characters; at most 1000 are allowed.",
        "zebra": "No results were found.",
    }
    results = search(with_corpus(tmp_path, corpus), *told)
    assert [one.text for one in results] == list(told.values())
    assert {(one.outcome, one.attempts) for one in results} == {(ToolOutcome.ERROR, 1)}


def test_hostile_queries_are_answered(tmp_path, corpus):
    hostile = ['"', "a\ud800b mill", "mill\x00", '") OR 1=1; DROP TABLE documents; --', "mill " * 190]
    results = search(with_corpus(tmp_path, corpus), *hostile)
    assert {result.outcome for result in results} <= {ToolOutcome.OK, ToolOutcome.ERROR}
    assert results[1].outcome is results[2].outcome is ToolOutcome.OK


def retriever(tmp_path, answer, *queries, runs=1, **more):
    service = FakeService(answer)

    async def run():
        async with service.running() as url:
            config = settings(tmp_path, backend="http", http={"urls": [url], "check": False}, **more)
            found = [await asyncio.to_thread(search, config, *queries) for _ in range(runs)]
            return [one for results in found for one in results]

    return service, asyncio.run(run())


def answer_about(received):
    return web.json_response({"result": [[{"id": "1", "text": f"about {received.body['queries'][0]}"}]]})


def test_a_remote_back_end_is_asked_once_for_a_query_by_all_runs(tmp_path):
    service, results = retriever(tmp_path, answer_about, "Bach", " bach", runs=2)
    assert [one.cached for one in results] == [False, True, True, True]
    assert {one.text for one in results} == {"Page 1: about Bach"}
    assert len(service.requests) == 1


def test_results_are_kept_where_the_settings_say(tmp_path, corpus):
    service, results = retriever(tmp_path, answer_about, "Bach", "Bach", keep="none")
    assert len(service.requests) == 2
    assert [one.cached for one in results] == [False, False]
    assert not list(tmp_path.rglob("results.sqlite3"))
    assert [one.cached for one in search(with_corpus(tmp_path, corpus), "mill", "mill")] == [False, False]
    kept = search(with_corpus(tmp_path, corpus, keep="all"), "mill", "mill")
    assert [one.cached for one in kept] == [False, True]


def test_a_back_end_that_fails_is_asked_again_and_failures_are_not_kept(tmp_path):
    def answer(received):
        return web.Response(status=503) if received.number % 3 < 2 else answer_about(received)

    service, results = retriever(tmp_path, answer, "a", "b", retries=1)
    assert [one.outcome for one in results] == [ToolOutcome.FAILED, ToolOutcome.OK]
    assert [one.attempts for one in results] == [2, 1]
    assert results[0].text == "The search failed."
    assert "HTTP 503" in results[0].info["detail"]
    assert len(service.requests) == 3


def test_a_busy_back_end_is_not_asked_before_it_says(tmp_path):
    def answer(received):
        busy = web.Response(status=429, headers={"Retry-After": "0.3"})
        return answer_about(received) if received.number else busy

    _, (result,) = retriever(tmp_path, answer, "a", retries=1)
    assert result.outcome is ToolOutcome.OK
    assert result.seconds >= 0.3


class Own(Backend):
    """A back end of a user's."""

    def __init__(self, answer: str = "yes") -> None:
        self.answer = answer

    async def search(self, query, k):
        if query == "fail":
            raise BackendFailedError("it is gone")
        if query == "raise":
            raise KeyError(query)
        return SearchResult((Hit("", f"{self.answer} {query}"),) * k)


def test_a_back_end_of_ones_own(tmp_path):
    def config(name="Own", **own):
        own["target"] = f"{__name__}:{name}"
        return settings(tmp_path, backend="own", results=1, retries=0, own=own)

    ok, failed, raised = search(config(), "q", "fail", "raise")
    assert ok.text == "Page 1: yes q"
    assert failed.outcome is raised.outcome is ToolOutcome.FAILED
    (other,) = search(config(kwargs={"answer": "no"}), "q")
    assert other.text == "Page 1: no q"  # nothing that another one of its settings has found
    with pytest.raises(ToolUnavailableError, match=r"own: .* has no 'Owl'"):
        search(config("Owl"))


def test_keys_are_read_in_the_driver_and_reach_the_back_end(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRIEVER_KEY", "key-secret")
    service = FakeService(answer_about)

    async def run():
        async with service.running() as url:
            http = {"urls": [url], "check": False, "api_key_env": "RETRIEVER_KEY"}
            config = settings(tmp_path, backend="http", http=http)
            secrets = read_all_secrets({"search": config})
            monkeypatch.delenv("RETRIEVER_KEY")
            await asyncio.to_thread(search, config, "q", secrets=secrets["search"])
            with pytest.raises(ToolUnavailableError, match=r"http\.api_key_env: it is not set"):
                read_all_secrets({"search": config})

    asyncio.run(run())
    assert service.requests[0].request.headers["Authorization"] == "Bearer key-secret"


def test_a_folder_that_can_not_be_written_ends_the_run_at_its_beginning(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(ToolUnavailableError, match=r"results can't be kept in .*Name another folder"):
        search(settings(tmp_path, backend="http", http={"urls": ["http://127.0.0.1:9"], "check": False}), "q")


def test_the_schema_and_what_is_said_of_the_tool(tmp_path, corpus):
    config = with_corpus(tmp_path, corpus, description="Look it up.")
    tool = SearchTool.from_settings("wiki", config, seed=1, secrets={})
    function = tool.schema()["function"]
    assert (function["name"], function["description"]) == ("wiki", "Look it up.")
    assert function["parameters"]["required"] == ["query"]
    asyncio.run(tool.start())
    about = tool.about()
    asyncio.run(tool.close())
    assert about["backend"].startswith("bm25 ") and about["kept"] is False


def test_the_folder_follows_the_users_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert SearchConfig().cache_folder == Path("/caches/marsrl-verl/search")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert SearchConfig().cache_folder == Path("/home/somebody/.cache/marsrl-verl/search")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"http": {"urls": ["host:8000"]}}, r"search\.http\.urls(.|\n)*Expected a URL with http"),
        ({"http": {"urls": ["http://host:x/"]}}, r"search\.http\.urls(.|\n)*This is no URL"),
        ({"web": {"url": "https://me:word@host/"}}, r"search\.web\.url(.|\n)*holds a password"),
        ({"backend": "bing"}, r"search\.backend(.|\n)*Use one of: bm25, http, web, recorded, own"),
        ({"results": 0}, r"search\.results(.|\n)*a number from 1 to 100"),
        ({"bm25": {"korpus": "x"}}, r"search\.bm25\.korpus(.|\n)*Did you mean .*bm25\.corpus"),
    ],
)
def test_settings_that_are_refused(entry, message):
    with pytest.raises(ConfigError, match=message):
        read(SearchConfig, entry, "marsrl.tools.search")


def test_settings_of_another_back_end_have_no_effect():
    changed = SearchConfig(backend="http", bm25={"corpus": "x"}, web={"zone": "z"}, own={"target": "a:B"})
    keys = {one.key for one in without_effect(changed, "search")}
    assert keys == {"search.bm25.corpus", "search.web.zone", "search.own.target"}
    zone = SearchConfig(backend="web", web={"zone": "z"})
    assert [one.key for one in without_effect(zone, "search")] == ["search.web.zone"]
    assert list(without_effect(SearchConfig(bm25={"corpus": "x"}), "search")) == []


@pytest.mark.skipif(not DATA, reason="MARSRL_QA_DATA names no folder")
def test_recorded_searches_of_others_are_replayed(tmp_path):
    path = Path(str(DATA)) / "arpo_search_cache.json"
    known = json.loads(path.read_text())
    config = settings(tmp_path, backend="recorded", query_chars=4000, recorded={"path": str(path)})
    results = search(config, *known)
    assert [one.text for one in results] == list(known.values())
    again = search(config, *[f'  "{query.upper()}" ' for query in known])
    assert [one.text for one in again] == list(known.values())
