"""The back end `web`: web search services that answer JSON and want a key."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from marsrl_verl.endpoints.client import JsonClient, RequestError
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, Hit, SearchResult
from marsrl_verl.tools.search.config import Provider
from marsrl_verl.tools.search.http import PROBE, as_search_error

if TYPE_CHECKING:
    from marsrl_verl.tools.search.config import WebConfig

_BING_SEARCH = "https://www.bing.com/search"
_TAG = re.compile(r"</?(?:b|strong|em|i|span)\b[^<>]*>", re.IGNORECASE)
"""How services mark the query's words."""


@dataclass(frozen=True, slots=True)
class Api:
    """A service's way to be asked and to answer."""

    url: str | None
    key_header: str
    names: tuple[str | None, str, str]
    """Of the parameters for number of hits, country and language; the query's is `q`."""
    hits: tuple[str, ...]
    """Where in the answer the list of hits is."""
    fields: tuple[str, str, str]
    """Names of title, text and address in a hit."""
    method: str = "POST"
    """With POST the parameters are JSON."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Further parameters."""
    most: int = 100
    """Most hits that may be asked for."""
    key_prefix: str = ""

    def parameters(self, settings: WebConfig, query: str, k: int) -> dict[str, Any]:
        """Of a query for k hits. What is not set is left out."""
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


class WebBackend(Backend):
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
        """See `Backend`."""
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
                await self._ask(PROBE, 1)
            except RequestError as error:
                raise ToolUnavailableError(f"web: {error}") from error

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`."""
        try:
            return await self._ask(query, k)
        except RequestError as error:
            raise as_search_error(error) from error

    async def _ask(self, query: str, k: int) -> SearchResult:
        api, url = self._api, str(self._url)
        given = {"query" if api.method == "GET" else "body": api.parameters(self._settings, query, k)}
        body = await self._client.ask(api.method, url, **given)
        return SearchResult(read_hits(api, body, url)[:k])

    async def close(self) -> None:
        """See `Backend`."""
        await self._client.close()


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
