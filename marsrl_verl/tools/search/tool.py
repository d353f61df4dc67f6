"""The tool `search`."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.core.sequence import Plain
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolUnavailableError,
    function_schema,
    read_key,
)
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.bm25 import Bm25Backend
from marsrl_verl.tools.search.cache import CacheQuery, ResultCache
from marsrl_verl.tools.search.config import BackendKind, Keep, SearchConfig
from marsrl_verl.tools.search.formatting import NOTHING, format_hits
from marsrl_verl.tools.search.recorded import RecordedBackend
from marsrl_verl.tools.search.services import RetrieverBackend, WebBackend


class SearchTool(Tool):
    """Searches for passages. Results of remote back ends are kept, so that a query is asked once."""

    Config = SearchConfig

    def __init__(self, name: str, settings: SearchConfig, backend: Backend) -> None:
        self.name, self._settings, self._backend = name, settings, backend
        keeps = settings.keep is Keep.ALL or (settings.keep is Keep.REMOTE and backend.remote)
        self._cache = ResultCache(settings.cache_folder / "results.sqlite3") if keeps else None

    @classmethod
    def from_settings(
        cls, name: str, settings: SearchConfig, *, seed: int, secrets: Mapping[str, str]
    ) -> SearchTool:
        return cls(name, settings, build_backend(settings, secrets.get("key")))

    @classmethod
    def read_secrets(cls, settings: SearchConfig) -> Mapping[str, str]:
        if settings.backend not in (BackendKind.HTTP, BackendKind.WEB):
            return {}
        service = settings.http if settings.backend is BackendKind.HTTP else settings.web
        return read_key(service, settings.backend)

    def schema(self) -> Mapping[str, Any]:
        query = {"type": "string", "description": "What to search for."}
        return function_schema(self.name, self._settings.description, {"query": query}, ("query",))

    async def start(self) -> None:
        await self._backend.start()
        if self._cache is not None:
            try:
                await self._cache.open()
            except (OSError, sqlite3.Error) as error:
                raise ToolUnavailableError(
                    f"results can't be kept in {self._settings.cache_folder}: {error}. Name another folder "
                    "(`folder`), or set keep=none"
                ) from error

    def about(self) -> Mapping[str, Plain]:
        return {"backend": self._backend.identity, "kept": self._cache is not None}

    async def call(self, call: ToolCall) -> ToolResult:
        query = valid_unicode(str(call.arguments.get("query", ""))).strip()
        limit = self._settings.query_chars
        if not query:
            return ToolResult("The query is empty.", ToolOutcome.ERROR)
        if len(query) > limit:
            note = f"The query has {len(query)} characters; at most {limit} are allowed."
            return ToolResult(note, ToolOutcome.ERROR)
        began = time.monotonic()
        try:
            found, cached = await self._find(query)
        except QueryRefusedError as error:
            return ToolResult(str(error), ToolOutcome.ERROR)
        except BackendFailedError as error:
            left = self._settings.timeout_s - (time.monotonic() - began)
            await asyncio.sleep(max(0.0, min(error.wait_s, left)))
            return ToolResult("The search failed.", ToolOutcome.FAILED, info={"detail": str(error)})
        return self._shown(query, found, cached)

    async def _find(self, query: str) -> tuple[SearchResult, bool]:
        search = partial(self._backend.search, query, self._settings.results)
        if self._cache is None:
            return await search(), False
        return await self._cache.find(
            CacheQuery(self._backend.identity, query, self._settings.results), search
        )

    def _shown(self, query: str, result: SearchResult, cached: bool) -> ToolResult:
        if result.text is not None:
            return ToolResult(result.text, cached=cached)
        if not result.hits:
            return ToolResult(NOTHING, ToolOutcome.ERROR, cached=cached, info={"hits": 0})
        own = self._settings
        text, cut = format_hits(
            result.hits, query, hit_chars=own.hit_chars, total_chars=own.max_output_chars, sources=own.sources
        )
        return ToolResult(text, truncated=cut, cached=cached, info={"hits": len(result.hits)})

    async def close(self) -> None:
        if self._cache is not None:
            await self._cache.close()
        await self._backend.close()


def build_backend(settings: SearchConfig, key: str | None) -> Backend:
    """The back end that the settings name, not started; ToolUnavailableError where a class of one's own can't
    be had."""
    kind = settings.backend
    if kind is BackendKind.BM25:
        return Bm25Backend(settings.bm25, settings.cache_folder)
    if kind is BackendKind.HTTP:
        return RetrieverBackend(settings.http, key)
    if kind is BackendKind.WEB:
        return WebBackend(settings.web, key)
    if kind is BackendKind.RECORDED:
        return RecordedBackend(settings.recorded)
    try:
        backend = load_class(settings.own.target, settings.own.kwargs, Backend)
    except ClassLoadError as error:
        raise ToolUnavailableError(f"{kind}: {error}") from error
    backend.identity = backend.identity or f"own {settings.own.target} {sorted(settings.own.kwargs.items())}"
    return backend
