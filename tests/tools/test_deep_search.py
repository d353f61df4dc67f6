"""Search that reads the pages of its hits and has them summed up: the web, its pages and the model are local
servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
from unittest import mock

import pytest
from aiohttp import web
from fake_services import FakeService
from yarl import URL

from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolUnavailableError
from marsrl_verl.tools.browser import addresses
from marsrl_verl.tools.browser.deep_search import DeepSearchConfig, DeepSearchTool
from marsrl_verl.tools.toolbox import Toolbox, read_all_secrets

pytestmark = pytest.mark.skipif(importlib.util.find_spec("trafilatura") is None, reason="the extra `browser`")
MILLS = " ".join(f"The mill of town {n} was built in {1700 + n} by the river." for n in range(400))
MILLS = f"<html><head><title>Mills</title></head><body><article><h1>Mills</h1><p>{MILLS}</p></article></body>"
PAGES = {"/mills": MILLS, "/short": "<p>Only this.</p>"}


async def lookup(host, port):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def completion(content, ending="stop"):
    return web.json_response({"choices": [{"message": {"content": content}, "finish_reason": ending}]})


class Web:
    """A search service, the pages that it finds, and the model that sums them up, each a server."""

    def __init__(self, tmp_path, answer=None, found=("/mills", "/gone", "/short")):
        self.folder, self.found = str(tmp_path / "kept"), found
        self.pages = FakeService(self._page)
        self.service = FakeService(self._hits)
        # What comes first is the start, which tries the endpoint.
        self.model = FakeService(lambda asked: answer(asked) if asked.number else completion("A test."))
        self.summary = answer is not None

    def _page(self, received):
        page = PAGES.get(received.request.path)
        return web.Response(status=404) if page is None else web.Response(text=page, content_type="text/html")

    def _hits(self, received):
        rows = [{"title": f"T{one}", "snippet": "A page.", "link": self.place + one} for one in self.found]
        return web.json_response({"organic": rows})

    def search(self, *queries, key=None, **settings):
        async def run():
            servers = self.pages.running(), self.service.running(), self.model.running()
            async with servers[0] as url, servers[1] as service, servers[2] as base:
                self.place = f"http://site.example:{URL(url).port}"
                endpoint = {"base_urls": [f"{base}/v1"], "model": "reader", "retries": 0}
                config = {
                    "ports": [URL(url).port],
                    "allow_networks": ["127.0.0.0/8"],
                    "retries": 0,
                    "folder": self.folder,
                    "backend": "web",
                    "web": {"url": service, "check": False},
                    "summary": {"enabled": self.summary, "endpoint": endpoint, "page_chars": 3000},
                    **settings,
                }
                made = DeepSearchConfig(**config)
                secrets = {"key": "search-key", **({} if key is None else {"summary": key})}
                tool = DeepSearchTool.from_settings("search", made, seed=1, secrets=secrets)
                box = Toolbox([(tool, made)], seed=1)
                await box.start()
                calls = [ToolCall("search", {"query": query}, f"t/{n}") for n, query in enumerate(queries)]
                try:
                    return await asyncio.gather(*map(box.call, calls))
                finally:
                    await box.close()

        with mock.patch.object(addresses, "look_up", lookup):
            return asyncio.run(run())


def test_pages_are_read_and_summed_up_for_the_query(tmp_path):
    internet = Web(tmp_path, lambda received: completion("<think>hm</think>Town 333: 2033."))
    (result,) = internet.search("When was the mill of town 333 built?", key="model-key")
    assert (result.outcome, result.text) == (ToolOutcome.OK, "Town 333: 2033.")
    _, asked = internet.model.requests
    assert asked.request.headers["Authorization"] == "Bearer model-key"
    shown = asked.body["messages"][1]["content"]
    assert shown.startswith("Looked for: When was the mill of town 333 built?")
    assert "built in 2033" in shown, "the part of a long page that has the query's words"
    assert f"Page 2 (T/gone, {internet.place}/gone):\nA page." in shown, (
        "the hit's own text: no page is there"
    )
    assert "Page 3 (T/short" in shown and "Only this." in shown
    assert len(shown) < 3000 + 500, "all pages together have page_chars"


def test_without_a_summary_the_pages_are_the_hits(tmp_path):
    internet = Web(tmp_path)
    (result,) = internet.search("the mill of town 333", hit_chars=200, sources=True)
    first, second, third = result.text.split("\n")
    assert first.startswith("Page 1 (T/mills): ") and "built in 2033" in first and first.endswith("/mills]")
    assert second == f"Page 2 (T/gone): A page. [{internet.place}/gone]"
    assert third == f"Page 3 (T/short): Only this. [{internet.place}/short]"
    assert not internet.model.requests


def test_what_a_query_came_to_is_kept(tmp_path):
    internet = Web(tmp_path, lambda received: completion(f"Summary {received.number}."))
    first, other = internet.search("mills", "  MILLS ")
    assert first.text == other.text == "Summary 1.", "asked at the same time, and once"
    assert len(internet.model.requests) == 2 and len(internet.service.requests) == 1


def test_a_summary_that_failed_is_not_kept_and_is_the_tools_failure(tmp_path):
    def answer(received):
        return web.Response(status=503, text="busy") if received.number == 1 else completion("There.")

    internet = Web(tmp_path, answer)
    (failed,) = internet.search("mills")
    assert failed.outcome is ToolOutcome.FAILED and "HTTP 503" in failed.info["detail"]
    (found,) = Web(tmp_path, lambda received: completion("There.")).search("mills")
    assert (found.text, found.cached) == ("There.", False)
    internet = Web(tmp_path / "other", lambda received: completion("No.", "content_filter"))
    (refused,) = internet.search("mills")
    assert (refused.outcome, refused.attempts) == (ToolOutcome.ERROR, 1)


def test_nothing_found_is_summed_up_by_nobody(tmp_path):
    internet = Web(tmp_path, lambda received: completion("Invented."), found=())
    (result,) = internet.search("mills")
    assert (result.outcome, result.text) == (ToolOutcome.ERROR, "No results were found.")
    assert len(internet.model.requests) == 1, "the start's"


def test_a_corpus_has_no_pages_and_is_summed_up_as_it_is(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "p1", "title": "Jaws", "text": "Jaws is a film about a shark."}))
    internet = Web(tmp_path, lambda received: completion("A film."))
    (result,) = internet.search("shark film", backend="bm25", bm25={"corpus": str(corpus)})
    assert result.text == "A film."
    shown = internet.model.requests[1].body["messages"][1]["content"]
    assert "Page 1 (Jaws, p1):\nJaws is a film about a shark." in shown


def test_both_keys_are_read_in_the_driver(monkeypatch):
    summary = {"enabled": True, "endpoint": {"api_key_env": "READER_KEY"}}
    config = DeepSearchConfig(backend="web", web={"api_key_env": "SERVICE_KEY"}, summary=summary)
    monkeypatch.setenv("READER_KEY", "one")
    with pytest.raises(ToolUnavailableError, match=r"web\.api_key_env"):
        read_all_secrets({"search": config})
    monkeypatch.setenv("SERVICE_KEY", "two")
    assert read_all_secrets({"search": config}) == {"search": {"key": "two", "summary": "one"}}
