"""Back ends that are asked over HTTP, and recorded results. The servers are real."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from fake_services import FakeService

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import BackendFailedError, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.config import Provider, RecordedConfig, RetrieverConfig, WebConfig
from marsrl_verl.tools.search.recorded import RecordedBackend
from marsrl_verl.tools.search.services import APIS, RetrieverBackend, WebBackend

KEY = "key-secret-123"
DOCUMENT = {"id": 7, "contents": '"Jaws"\nA film.'}


def closed_url() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/retrieve"


async def ask(made, *queries, k=5):
    """What a back end finds, or raises."""
    await made.start()
    try:
        return [await made.search(query, k) for query in queries]
    finally:
        await made.close()


def retrieve(answer, *queries, k=5, key=None, check=False, urls=None, count=1):
    """The service, and what a back end finds there."""
    services = [FakeService(answer) for _ in range(count)]

    async def run():
        async with services[0].running() as one, services[-1].running() as last:
            made = urls or ([f"{one}/retrieve", f"{last}/retrieve"][:count])
            return await ask(RetrieverBackend(RetrieverConfig(urls=made, check=check), key), *queries, k=k)

    return services, asyncio.run(run())


def result(*rows):
    return web.json_response({"result": [list(rows)]})


def test_a_retriever_is_asked_as_search_r1_asks():
    hit = {"document": DOCUMENT, "score": 2.5}
    (service,), found = retrieve(lambda received: result(hit), "who?", k=3, key=KEY)
    (received,) = service.requests
    assert received.request.method == "POST"
    assert received.request.path == "/retrieve"
    assert received.body == {"queries": ["who?"], "topk": 3, "return_scores": True}
    assert received.request.headers["Authorization"] == f"Bearer {KEY}"
    assert found == [SearchResult((Hit("Jaws", "A film.", "7", 2.5),))]


def test_answers_without_scores_and_with_too_many_hits():
    rows = [{"id": str(n), "title": f"t{n}", "text": "x"} for n in range(9)]
    _, (found,) = retrieve(lambda received: result(*rows), "q", k=2)
    assert found.hits == (Hit("t0", "x", "0"), Hit("t1", "x", "1"))
    _, (found,) = retrieve(lambda received: result(), "q")
    assert found.hits == ()


def together(answer, *queries, most=3):
    """What queries that are asked at the same time find, or what they raise."""
    service = FakeService(answer)

    async def run():
        async with service.running() as url:
            config = RetrieverConfig(urls=[f"{url}/retrieve"], check=False, queries_per_request=most)
            backend = RetrieverBackend(config, None)
            await backend.start()
            try:
                searches = [backend.search(query, 5) for query in queries]
                return await asyncio.gather(*searches, return_exceptions=True)
            finally:
                await backend.close()

    return service, asyncio.run(run())


def each_its_own(received):
    rows = [[{"id": query, "contents": f"About {query}"}] for query in received.body["queries"]]
    return web.json_response({"result": rows})


def test_queries_that_are_asked_together_are_one_request():
    service, found = together(each_its_own, *"abcdefg")
    assert sorted(one.body["queries"] for one in service.requests) == [
        ["a", "b", "c"],
        ["d", "e", "f"],
        ["g"],
    ]
    assert [one.hits[0].source for one in found] == list("abcdefg"), "each has its own hits"


def test_a_query_that_is_refused_leaves_those_beside_it_their_hits():
    def answer(received):
        wrong = "b" in received.body["queries"]
        return web.Response(status=400) if wrong else each_its_own(received)

    service, (one, refused, other) = together(answer, *"abc")
    assert isinstance(refused, QueryRefusedError)
    assert (one.hits[0].source, other.hits[0].source) == ("a", "c")
    assert sorted(one.body["queries"] for one in service.requests) == [["a"], ["a", "b", "c"], ["b"], ["c"]]


def test_a_request_that_failed_has_failed_for_all_of_its_queries():
    for answer in (lambda received: web.Response(status=503), lambda received: result()):
        _, found = together(answer, *"ab")
        assert [type(one) for one in found] == [BackendFailedError] * 2


def test_who_no_longer_waits_is_not_asked_for():
    service = FakeService(each_its_own)

    async def run():
        async with service.running() as url:
            config = RetrieverConfig(urls=[f"{url}/retrieve"], check=False, queries_per_request=3)
            backend = RetrieverBackend(config, None)
            await backend.start()
            gone, stays = (asyncio.ensure_future(backend.search(query, 5)) for query in "ab")
            await asyncio.sleep(0)
            gone.cancel()
            found = await stays
            await backend.close()
            return found

    assert asyncio.run(run()).hits[0].source == "b"
    assert [one.body["queries"] for one in service.requests] == [["b"]]


def test_queries_go_to_the_urls_in_turn_and_connections_are_kept():
    services, _ = retrieve(lambda received: result(), *"abcdef", count=2)
    asked = [[one.body["queries"][0] for one in service.requests] for service in services]
    assert asked == [["a", "c", "e"], ["b", "d", "f"]]
    assert [len(service.connections) for service in services] == [1, 1]


def test_each_url_is_asked_before_the_run_begins():
    services, _ = retrieve(lambda received: result(), check=True, count=2)
    assert [len(service.requests) for service in services] == [1, 1]
    with pytest.raises(ToolUnavailableError, match=r"^http: http://127\.0\.0\.1.*Connect"):
        retrieve(lambda received: result(), check=True, urls=[closed_url()])
    with pytest.raises(ToolUnavailableError, match="answered HTTP 404: 404: Not Found"):
        retrieve(lambda received: web.Response(status=404, text="404: Not Found"), check=True)
    with pytest.raises(ToolUnavailableError, match=r"http\.urls is empty"):
        asyncio.run(ask(RetrieverBackend(RetrieverConfig(), None)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda received: web.Response(status=503, text="busy\x1b[31m"), r"answered HTTP 503: busy\\x1b"),
        (lambda received: web.Response(status=401, text=f"bad key {KEY}"), r"HTTP 401: bad key \[api key\]"),
        (lambda received: web.Response(text="no JSON"), "JSONDecodeError"),
        (lambda received: web.json_response({"result": []}), "no result of one query"),
        (lambda received: web.json_response({"result": [[{"document": 5}]]}), "no result of one query"),
        (lambda received: None, "ServerDisconnected"),
    ],
)
def test_a_retriever_that_answers_something_else_has_failed(answer, message):
    with pytest.raises(BackendFailedError, match=message) as caught:
        retrieve(answer, "q", key=KEY)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) <= 500


def test_a_query_that_is_not_accepted_is_the_querys_fault():
    with pytest.raises(QueryRefusedError, match="does not accept this query"):
        retrieve(lambda received: web.Response(status=422), "q")


ANSWERS = {
    Provider.SERPER: {"organic": [{"title": "T", "snippet": "S &amp; <b>s</b>", "link": "https://x"}]},
    Provider.BING: {"webPages": {"value": [{"name": "T", "snippet": "S & s", "url": "https://x"}]}},
    Provider.BRAVE: {
        "web": {"results": [{"title": "T", "description": "S &amp; <strong>s</strong>", "url": "https://x"}]}
    },
    Provider.BRIGHTDATA: {"organic": [{"title": "T", "description": "S & s", "link": "https://x"}]},
}


def search_web(provider, answer, *queries, k=5, key=KEY, check=False, **more):
    service = FakeService(answer)

    async def run():
        async with service.running() as url:
            settings = WebConfig(provider=provider, url=f"{url}/search", check=check, **more)
            return await ask(WebBackend(settings, key), *queries, k=k)

    return service, asyncio.run(run())


@pytest.mark.parametrize("provider", list(Provider))
def test_every_service_is_asked_with_its_key_and_read(provider):
    zone = {"zone": "z"} if provider is Provider.BRIGHTDATA else {}
    answer = web.json_response(ANSWERS[provider])
    service, (found,) = search_web(provider, lambda _: answer, 'who "x" & y?', k=3, country="us", **zone)
    assert found == SearchResult((Hit("T", "S & s", "https://x"),))
    (received,) = service.requests
    api = APIS[provider]
    assert received.request.headers[api.key_header] == api.key_prefix + KEY
    assert KEY not in str(received.request.url)
    assert received.request.method == api.method
    if provider is Provider.SERPER:
        assert received.body == {"q": 'who "x" & y?', "num": 3, "gl": "us"}
    elif provider is Provider.BRIGHTDATA:
        place = urlsplit(received.body.pop("url"))
        assert received.body == {"zone": "z", "format": "raw"}
        assert parse_qs(place.query) == {"q": ['who "x" & y?'], "cc": ["us"], "brd_json": ["1"]}
    else:
        asked_for = dict(received.request.query)
        assert (asked_for["q"], asked_for["count"]) == ('who "x" & y?', "3")
        assert "us" in asked_for.values()


@pytest.mark.parametrize("provider", list(Provider))
@pytest.mark.parametrize(
    "body", [{}, {"organic": []}, {"webPages": {}}, {"web": {"results": []}}, {"web": None}]
)
def test_a_page_that_nothing_was_found_on_has_no_hits(provider, body):
    more = {"zone": "z"} if provider is Provider.BRIGHTDATA else {}
    _, (found,) = search_web(provider, lambda received: web.json_response(body), "q", **more)
    assert found.hits == ()


def test_hits_without_text_are_left_out_and_values_of_other_kinds_are_no_text():
    rows = [{"title": "A"}, {"title": 5, "snippet": "x", "link": None}, "row", {"snippet": ["y"]}]
    _, (found,) = search_web(Provider.SERPER, lambda received: web.json_response({"organic": rows}), "q")
    assert found.hits == (Hit("", "x", ""),)


def test_a_service_that_answers_something_else_has_failed():
    with pytest.raises(BackendFailedError, match="no JSON object"):
        search_web(Provider.SERPER, lambda received: web.json_response([1]), "q")
    with pytest.raises(BackendFailedError, match="no list as organic"):
        search_web(Provider.SERPER, lambda received: web.json_response({"organic": {"a": 1}}), "q")


def test_a_service_is_not_asked_without_what_it_needs():
    with pytest.raises(ToolUnavailableError, match=r"serper wants a key; .* web\.api_key_env"):
        search_web(Provider.SERPER, None, key=None)
    with pytest.raises(ToolUnavailableError, match=r"web\.zone is not set"):
        search_web(Provider.BRIGHTDATA, None)
    with pytest.raises(ToolUnavailableError, match=r"web\.url is not set, and bing has no public API"):
        asyncio.run(ask(WebBackend(WebConfig(provider="bing"), KEY)))
    with pytest.raises(ToolUnavailableError, match=r"web: .* HTTP 403: no \[api key\]"):
        search_web(Provider.SERPER, lambda received: web.Response(status=403, text=f"no {KEY}"), check=True)


def test_what_results_of_a_service_depend_on():
    settings = ({}, {"provider": "brave"}, {"country": "us"}, {"language": "us"}, {"url": "http://x"})
    made = [WebBackend(WebConfig(**one), KEY).identity for one in settings]
    assert len(set(made)) == len(made)
    assert KEY not in " ".join(made)


def recorded(tmp_path, content):
    path = tmp_path / "recorded.json"
    path.write_text(content, encoding="utf-8")
    return RecordedBackend(RecordedConfig(path=str(path)))


def replay(backend, *queries, k=5):
    return asyncio.run(ask(backend, *queries, k=k))


def test_recorded_results_are_replayed_as_they_are(tmp_path):
    text = "Page 1: one\nPage 2: two …"
    known = {"Who was Bach?": text, "hits": [{"title": "T", "text": "x"}] * 9}
    backend = recorded(tmp_path, json.dumps(known))
    queries = ("Who was Bach?", ' who was  "BACH"? ', "hits")
    exact, alike, hits = replay(backend, *queries, k=2)
    assert exact == alike == SearchResult((), text)
    assert hits == SearchResult((Hit("T", "x"), Hit("T", "x")))


def test_the_query_as_it_was_recorded_comes_before_one_that_is_alike(tmp_path):
    backend = recorded(tmp_path, json.dumps({"Who?": "first", "WHO?": "second"}))
    assert [found.text for found in replay(backend, "Who?", "WHO?", "who?")] == ["first", "second", "first"]


def test_recorded_lines(tmp_path):
    lines = [{"query": "a", "result": "A"}, {"query": "b", "result": [{"text": "B"}]}]
    lines.append({"query": "a", "result": "C"})
    found = replay(recorded(tmp_path, "\n".join(json.dumps(one) for one in lines)), "a", "b")
    assert found == [SearchResult((), "A"), SearchResult((Hit("", "B"),))]
    (single,) = replay(recorded(tmp_path, json.dumps(lines[0])), "a")
    assert single.text == "A"


def test_a_query_that_was_not_recorded_says_so(tmp_path):
    with pytest.raises(QueryRefusedError, match="No result was recorded"):
        replay(recorded(tmp_path, '{"a": "A"}'), "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "no result"),
        ("[1]", "line 1: expected"),
        ("nothing", "line 1 is not JSON"),
        ('{"a": 5}', "query 'a': the result is int"),
        ('{"": "x"}', "the query is ''"),
        ('{"a": [{"title": "x"}]}', "expected hits"),
        ('{"a": [{"text": "x", "score": 1}]}', "expected hits"),
        ('{"a": [{"text": 5}]}', "a value that is no text"),
    ],
)
def test_a_file_of_results_that_is_none(content, message, tmp_path):
    with pytest.raises(ToolUnavailableError, match=message):
        replay(recorded(tmp_path, content))


def test_a_file_of_results_that_is_not_there(tmp_path):
    with pytest.raises(ToolUnavailableError, match=r"recorded\.path = .*: No such file"):
        replay(RecordedBackend(RecordedConfig(path=str(tmp_path / "x.json"))))
    with pytest.raises(ToolUnavailableError, match=r"recorded\.path is not set"):
        replay(RecordedBackend(RecordedConfig()))
