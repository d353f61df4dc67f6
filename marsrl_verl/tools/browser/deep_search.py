"""The tool `deep_search`: the pages of a query's hits are read and summed up before the model reads any."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from marsrl_verl.core.sequence import Plain
from marsrl_verl.settings.declaration import limits
from marsrl_verl.tools.base import read_key
from marsrl_verl.tools.browser.config import ReadingConfig
from marsrl_verl.tools.browser.extract import ExtractionError, Page
from marsrl_verl.tools.browser.fetch import PageError
from marsrl_verl.tools.browser.reader import PageReader
from marsrl_verl.tools.browser.summary import SummaryError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.config import SearchConfig
from marsrl_verl.tools.search.formatting import excerpt
from marsrl_verl.tools.search.tool import SearchTool, build_backend


class DeepSearchConfig(SearchConfig, ReadingConfig):
    """Settings of the tool `deep_search`: those of `search` and those of reading."""

    target: str = "deep_search"
    """The tool's class."""
    timeout_s: float = limits(120.0, gt=0.0, le=3600.0, why="seconds, an hour at most")
    """Most seconds of a call's attempt: the search, all pages and their summary."""
    results: int = limits(10, ge=1, le=100, why="hits of a query")
    """Most hits of a query, whose pages are read."""
    hit_chars: int = limits(6000, ge=16, why="an excerpt has a few words")
    """Most characters of one page: the part with most words of the query and of the hit. With a summary its
    model is shown all of them together, `summary.page_chars` at most."""
    page_timeout_s: float = limits(20.0, gt=0.0, why="seconds")
    """Most seconds of a page. Of one that can't be read the hit's own text stays."""


class ReadingBackend(Backend):
    """Hits of another back end, with the text of the pages in place of the hits' own, and with their summary,
    if there is one, in place of the hits. Results are kept as those of any back end are.

    The released agent of ARPO (arXiv 2507.19849) reads pages in this way, and shows its model the reasoning
    so far as well; here a query's result depends on the query alone."""

    def __init__(self, found: Backend, settings: DeepSearchConfig, key: str | None, seed: int) -> None:
        self._found, self._settings = found, settings
        self._reader = PageReader(settings, settings.page_timeout_s, key, seed)
        self._slots = asyncio.Semaphore(settings.max_concurrency)

    async def start(self) -> None:
        """See `Backend`."""
        await self._found.start()
        await self._reader.open()
        own = self._settings
        read = f"hit_chars={own.hit_chars} page_kib={own.page_kib}"
        if own.summary.enabled:
            read += f" summary={own.summary.endpoint.model} page_chars={own.summary.page_chars}"
        self.identity = f"{self._found.identity} {read}"

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`."""
        found = await self._found.search(query, k)
        if not found.hits:
            return found
        share = self._settings.hit_chars
        if self._settings.summary.enabled:
            share = min(share, self._settings.summary.page_chars // len(found.hits))
        hits = await asyncio.gather(*[self._read(hit, query, share) for hit in found.hits])
        return SearchResult(tuple(hits), await self._summary(hits, query))

    async def _read(self, hit: Hit, query: str, chars: int) -> Hit:
        """The hit with its page's text, where it has one that can be read."""
        if not hit.source.startswith(("http://", "https://")):
            return hit
        try:
            async with self._slots:
                _, page = await asyncio.wait_for(self._reader.read(hit.source), self._settings.page_timeout_s)
        except (PageError, ExtractionError, asyncio.TimeoutError):
            return hit
        text = excerpt(page.text, f"{query} {hit.text}", chars)
        return replace(hit, title=hit.title or page.title, text=text)

    async def _summary(self, hits: list[Hit], query: str) -> str | None:
        if self._reader.summariser is None:
            return None
        pages = [f"Page {n} ({one.title}, {one.source}):\n{one.text}" for n, one in enumerate(hits, 1)]
        try:
            return await self._reader.summariser.summarise(Page("", "\n\n".join(pages)), query)
        except SummaryError as error:
            if error.refused:
                raise QueryRefusedError("Pages were found, but not summed up.") from error
            raise BackendFailedError(str(error)) from error

    async def close(self) -> None:
        """See `Backend`."""
        await self._reader.close()
        await self._found.close()


class DeepSearchTool(SearchTool):
    """Searches, reads the pages that are found, and says what they have about the query."""

    Config = DeepSearchConfig

    def __init__(self, name: str, settings: DeepSearchConfig, backend: ReadingBackend) -> None:
        super().__init__(name, settings, backend)
        self._summary = settings.summary

    @classmethod
    def from_settings(
        cls, name: str, settings: Any, *, seed: int, secrets: Mapping[str, str]
    ) -> DeepSearchTool:
        found = build_backend(settings, secrets.get("key"))
        return cls(name, settings, ReadingBackend(found, settings, secrets.get("summary"), seed))

    @classmethod
    def read_secrets(cls, settings: Any) -> Mapping[str, str]:
        found = read_key(settings.summary.endpoint, "summary.endpoint") if settings.summary.enabled else {}
        return {**super().read_secrets(settings), **({"summary": found["key"]} if found else {})}

    def about(self) -> Mapping[str, Plain]:
        return {**super().about(), "summary": self._summary.endpoint.model if self._summary.enabled else None}
