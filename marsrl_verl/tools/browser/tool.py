"""The tool `browser`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from marsrl_verl.core.inert_text import valid_unicode
from marsrl_verl.core.sequence import Plain
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolUnavailableError,
    function_schema,
    read_key,
)
from marsrl_verl.tools.browser.config import BrowserConfig
from marsrl_verl.tools.browser.extract import ExtractionError, Extractor, Page
from marsrl_verl.tools.browser.fetch import HTML, Fetched, Fetcher, PageError
from marsrl_verl.tools.browser.summary import Summariser, SummaryError
from marsrl_verl.tools.search.formatting import excerpt

_MOST_CHARS = 2_000_000
"""Characters of a page that are looked at."""


class BrowserTool(Tool):
    """Reads one page: its main text, or what a model says that it says."""

    Config = BrowserConfig

    def __init__(self, name: str, settings: BrowserConfig, *, key: str | None = None, seed: int = 0) -> None:
        self.name, self._settings = name, settings
        self._fetcher = Fetcher(settings)
        self._extractor = Extractor(settings.extract_memory_mib, settings.extract_cpu_s)
        self._key, self._seed = key, seed
        self._summariser: Summariser | None = None

    @classmethod
    def from_settings(
        cls, name: str, settings: BrowserConfig, *, seed: int, secrets: Mapping[str, str]
    ) -> BrowserTool:
        return cls(name, settings, key=secrets.get("key"), seed=seed)

    @classmethod
    def read_secrets(cls, settings: BrowserConfig) -> Mapping[str, str]:
        return read_key(settings.summary.endpoint, "summary.endpoint") if settings.summary.enabled else {}

    def schema(self) -> Mapping[str, Any]:
        properties = {
            "url": {"type": "string", "description": "Address of the page, with https://."},
            "query": {"type": "string", "description": "What to look for on the page."},
        }
        return function_schema(self.name, self._settings.description, properties, ("url",))

    async def start(self) -> None:
        summary = self._settings.summary
        if summary.enabled and not (summary.endpoint.base_urls and summary.endpoint.model):
            raise ToolUnavailableError(
                "summary.enabled is true without an endpoint; set summary.endpoint.base_urls, such as "
                "[http://host:8000/v1], and summary.endpoint.model"
            )
        await self._extractor.start()
        self._fetcher.open()
        if summary.enabled:
            self._summariser = Summariser(summary, self._key, self._seed)
            await self._try_summary(self._summariser)

    async def _try_summary(self, summariser: Summariser) -> None:
        """A wrong address, model or key would fail every page of the run."""
        page, limit = Page("A page", "This page is a test."), self._settings.timeout_s
        try:
            await asyncio.wait_for(summariser.summarise(page, "a test"), limit)
            return
        except SummaryError as error:
            reason = str(error)
        except asyncio.TimeoutError:
            reason = f"it did not answer within {limit:g} s"
        await self.close()
        raise ToolUnavailableError(
            f"summary: the endpoint sums up no page: {reason}. Correct summary.endpoint (its base_urls, "
            "model or key), or set summary.enabled=false"
        )

    def about(self) -> Mapping[str, Plain]:
        summary = self._settings.summary
        return {"summary": summary.endpoint.model if summary.enabled else None}

    async def call(self, call: ToolCall) -> ToolResult:
        address = valid_unicode(str(call.arguments.get("url", "")))
        query = " ".join(valid_unicode(str(call.arguments.get("query") or "")).split())[:1000]
        try:
            fetched = await self._fetcher.fetch(address)
            page = await self._extractor.read(
                fetched.content, fetched.charset, html=fetched.kind in HTML, chars=_MOST_CHARS
            )
        except PageError as error:
            return ToolResult(str(error), ToolOutcome.ERROR)
        except asyncio.TimeoutError:
            note = f"The page was not there within {self._settings.timeout_s:g} s."
            return ToolResult(note, ToolOutcome.TIMEOUT)
        except ExtractionError as error:
            note = "The page can't be turned into text."
            return ToolResult(note, ToolOutcome.ERROR, info={"detail": str(error)})
        if not page.text.strip():
            return ToolResult("The page has no text.", ToolOutcome.ERROR)
        return await self._result(fetched, page, query)

    async def _result(self, fetched: Fetched, page: Page, query: str) -> ToolResult:
        info: dict[str, Plain] = {"url": fetched.url, "bytes": len(fetched.content), "chars": len(page.text)}
        if self._summariser is not None:
            try:
                text = await self._summariser.summarise(page, query)
            except SummaryError as error:
                note = "The page was read, but not summed up."
                # What is refused once is refused again; anything else may be asked for once more.
                outcome = ToolOutcome.ERROR if error.refused else ToolOutcome.FAILED
                return ToolResult(note, outcome, info={**info, "detail": str(error)})
            return ToolResult(text, truncated=fetched.truncated, info=info)
        head = f"{page.title}\n" if page.title else ""
        shown = excerpt(page.text, query, max(16, self._settings.output_chars - len(head)))
        cut = fetched.truncated or shown != page.text
        return ToolResult(head + shown, truncated=cut, info=info)

    async def close(self) -> None:
        await self._fetcher.close()
        await self._extractor.close()
