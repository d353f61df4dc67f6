"""The back ends `http` and `web`, which ask a service over HTTP: a retriever of one's own, as Search-R1 does,

    POST {"queries": ["…"], "topk": 5, "return_scores": true}
    → {"result": [[{"document": {"id": …, "title": …, "contents": …}, "score": 12.3}, …]]}

or a web search service that answers JSON and wants a key.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import re
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from marsrl_verl.endpoints.client import JsonClient, RequestError
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.config import Provider, RetrieverConfig, WebConfig
from marsrl_verl.tools.search.corpus import document_of

_PROBE = "test"
"""Query that is sent to a service before the run begins."""
_TOGETHER_S = 0.01
"""Seconds within which queries are sent together, where several may be."""
_BING_SEARCH = "https://www.bing.com/search"
_TAG = re.compile(r"</?(?:b|strong|em|i|span)\b[^<>]*>", re.IGNORECASE)
"""Tags with which services mark the query's words."""


class _ServiceBackend(Backend):
    """A back end behind HTTP."""

    _client: JsonClient

    async def search(self, query: str, k: int) -> SearchResult:
        try:
            return await self._answer(query, k)
        except RequestError as error:
            if error.about_request:
                raise QueryRefusedError("The search engine does not accept this query.") from error
            raise BackendFailedError(str(error), error.wait_s) from error

    @abstractmethod
    async def _answer(self, query: str, k: int) -> SearchResult:
        """The service's answer; RequestError where there is none."""

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query that waits for its hits."""

    query: str
    k: int
    hits: asyncio.Future[tuple[Hit, ...]]


class RetrieverBackend(_ServiceBackend):
    """A request for each query, or for those that are asked together, with the key as bearer token, to the
    URLs in turn; one that is repeated goes to the next."""

    def __init__(self, settings: RetrieverConfig, key: str | None) -> None:
        self._settings = settings
        self._client = JsonClient(key=key)
        self._numbers = itertools.count()
        self._waiting: list[_Asked] = []
        self._sending: set[asyncio.Task[None]] = set()
        # Replicas have the same documents: which one answers is no difference.
        self.identity = f"http {' '.join(sorted(settings.urls))}"

    async def start(self) -> None:
        if not self._settings.urls:
            raise ToolUnavailableError("http.urls is empty; name the retriever's URL")
        self._client.open()
        if not self._settings.check:
            return
        probes = [self._ask(url, [_PROBE], 1) for url in self._settings.urls]
        for answer in await asyncio.gather(*probes, return_exceptions=True):
            if isinstance(answer, RequestError):
                raise ToolUnavailableError(f"http: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer

    async def _answer(self, query: str, k: int) -> SearchResult:
        if self._settings.queries_per_request == 1:
            return SearchResult((await self._ask(self._url(), [query], k))[0])
        asked = _Asked(query, k, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            self._start(self._collect())
        return SearchResult((await asked.hits)[:k])

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _collect(self) -> None:
        """Sends what waits after a moment, in requests of so many queries."""
        await asyncio.sleep(_TOGETHER_S)
        waiting = [one for one in self._waiting if not one.hits.done()]  # who asked may be gone
        self._waiting, most = [], self._settings.queries_per_request
        for begin in range(0, len(waiting), most):
            self._start(self._send(waiting[begin : begin + most]))

    async def _send(self, some: Sequence[_Asked]) -> None:
        found: list[Any]
        try:
            found = await self._ask(self._url(), [one.query for one in some], max(one.k for one in some))
        except RequestError as error:
            if error.about_request and len(some) > 1:  # one of them is at fault, and not the others
                for one in some:
                    self._start(self._send([one]))
                return
            found = [error] * len(some)
        for one, hits in zip(some, found, strict=True):
            if one.hits.done():
                continue
            if isinstance(hits, RequestError):
                one.hits.set_exception(hits)
            else:
                one.hits.set_result(hits)

    def _url(self) -> str:
        urls = self._settings.urls
        return urls[next(self._numbers) % len(urls)]

    async def _ask(self, url: str, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        body = {"queries": list(queries), "topk": k, "return_scores": True}
        found = read_results(await self._client.ask("POST", url, body=body), url, len(queries))
        return [hits[:k] for hits in found]

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await super().close()


def read_results(body: Any, url: str, queries: int) -> list[tuple[Hit, ...]]:
    """The hits in a retriever's answer to so many queries, with scores or without; RequestError if it is
    none."""
    try:
        results = list(body["result"])
        if len(results) != queries:
            raise ValueError(f"{len(results)} results")
        return [tuple(_hit(row) for row in rows) for rows in results]
    except (KeyError, TypeError, ValueError) as error:
        expected = "one query" if queries == 1 else f"{queries} queries"
        raise RequestError(f"{url} answered no result of {expected}: {str(body)[:200]}") from error


def _hit(row: Any) -> Hit:
    scored = isinstance(row, dict) and "document" in row
    document = document_of(row["document"] if scored else row)
    if document is None:
        raise ValueError("no document")
    score = row.get("score") if scored else None
    return Hit(document.title, document.text, document.source, None if score is None else float(score))


@dataclass(frozen=True, slots=True)
class Api:
    """Form of a service's requests and answers."""

    url: str | None
    key_header: str
    names: tuple[str | None, str, str]
    """Names of the parameters for number of hits, country and language; the query's is `q`."""
    hits: tuple[str, ...]
    """Path of the list of hits in the answer."""
    fields: tuple[str, str, str]
    """Names of title, text and address in a hit."""
    method: str = "POST"
    """HTTP method; with POST the parameters are JSON."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Further parameters."""
    most: int = 100
    """Most hits that may be asked for."""
    key_prefix: str = ""

    def parameters(self, settings: WebConfig, query: str, k: int) -> dict[str, Any]:
        """Parameters of a query for k hits. What is not set is left out."""
        values = zip(self.names, (min(k, self.most), settings.country, settings.language), strict=True)
        set_ones = {name: value for name, value in values if name is not None and value is not None}
        made = {"q": query, **set_ones, **self.fixed}
        if settings.provider is not Provider.BRIGHTDATA:
            return made
        return {"zone": settings.zone, "url": f"{_BING_SEARCH}?{urlencode(made)}", "format": "raw"}


APIS: Mapping[Provider, Api] = {
    Provider.SERPER: Api(
        "https://google.serper.dev/search",
        "X-API-KEY",
        ("num", "gl", "hl"),
        ("organic",),
        ("title", "snippet", "link"),
    ),
    Provider.BING: Api(
        None,
        "Ocp-Apim-Subscription-Key",
        ("count", "cc", "setLang"),
        ("webPages", "value"),
        ("name", "snippet", "url"),
        method="GET",
        fixed={"textFormat": "Raw"},
    ),
    Provider.BRAVE: Api(
        "https://api.search.brave.com/res/v1/web/search",
        "X-Subscription-Token",
        ("count", "country", "search_lang"),
        ("web", "results"),
        ("title", "description", "url"),
        method="GET",
        fixed={"text_decorations": "false"},
        most=20,
    ),
    Provider.BRIGHTDATA: Api(
        "https://api.brightdata.com/request",
        "Authorization",
        (None, "cc", "setLang"),
        ("organic",),
        ("title", "description", "link"),
        fixed={"brd_json": "1"},
        key_prefix="Bearer ",
    ),
}


class WebBackend(_ServiceBackend):
    """Asks a service, with its key; its first hits, each with what it shows of the page."""

    def __init__(self, settings: WebConfig, key: str | None) -> None:
        self._settings = settings
        self._api = APIS[settings.provider]
        self._url = settings.url or self._api.url
        self._key = key
        self._client = JsonClient({self._api.key_header: self._api.key_prefix + (key or "")}, key)
        place = [f"{name}={getattr(settings, name)}" for name in settings.changed("country", "language")]
        self.identity = " ".join(["web", settings.provider, self._url or "", *place])

    async def start(self) -> None:
        if not self._key:
            raise ToolUnavailableError(
                f"web: {self._settings.provider} wants a key; name the environment variable that holds it in "
                "web.api_key_env"
            )
        if self._url is None:
            raise ToolUnavailableError(
                f"web.url is not set, and {self._settings.provider} has no public API any more; "
                "name the address of one that answers as it did"
            )
        if self._settings.provider is Provider.BRIGHTDATA and not self._settings.zone:
            raise ToolUnavailableError("web.zone is not set; name the zone at Bright Data")
        self._client.open()
        if self._settings.check:
            try:
                await self._answer(_PROBE, 1)
            except RequestError as error:
                raise ToolUnavailableError(f"web: {error}") from error

    async def _answer(self, query: str, k: int) -> SearchResult:
        api, url = self._api, str(self._url)
        given = {"query" if api.method == "GET" else "body": api.parameters(self._settings, query, k)}
        body = await self._client.ask(api.method, url, **given)
        return SearchResult(read_hits(api, body, url)[:k])


def read_hits(api: Api, body: Any, url: str) -> tuple[Hit, ...]:
    """The hits in a service's answer. A page that nothing was found on has no list of them; a hit without
    text says nothing and is left out. RequestError where it is no JSON object, or its list is none."""
    if not isinstance(body, dict):
        raise RequestError(f"{url} answered no JSON object: {str(body)[:200]}")
    rows: Any = body
    for name in api.hits:
        rows = rows.get(name, {}) if isinstance(rows, dict) else {}
    if rows and not isinstance(rows, list):
        raise RequestError(f"{url} answered no list as {'.'.join(api.hits)}: {str(rows)[:200]}")
    found = [[_plain(row.get(name)) for name in api.fields] for row in rows if isinstance(row, dict)]
    return tuple(Hit(title, text, source) for title, text, source in found if text)


def _plain(value: Any) -> str:
    """A text without marks of the query's words."""
    return html.unescape(_TAG.sub("", value)) if isinstance(value, str) else ""
