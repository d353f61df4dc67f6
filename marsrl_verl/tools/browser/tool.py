"""The tool `browser`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.core.sequence import Plain
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolOutcome,
    ToolResult,
    function_schema,
    read_key,
)
from marsrl_verl.tools.browser.config import BrowserConfig
from marsrl_verl.tools.browser.extract import ExtractionError, Page
from marsrl_verl.tools.browser.fetch import Fetched, PageError
from marsrl_verl.tools.browser.reader import PageReader
from marsrl_verl.tools.browser.summary import SummaryError
from marsrl_verl.tools.search.formatting import excerpt


class BrowserTool(Tool):
    """Reads one page: its main text, or what a model says that it says."""

    Config = BrowserConfig

    def __init__(self, name: str, settings: BrowserConfig, *, key: str | None = None, seed: int = 0) -> None:
        self.name, self._settings = name, settings
        self._reader = PageReader(settings, settings.timeout_s, key, seed)

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
        await self._reader.open()

    def about(self) -> Mapping[str, Plain]:
        summary = self._settings.summary
        return {"summary": summary.endpoint.model if summary.enabled else None}

    async def call(self, call: ToolCall) -> ToolResult:
        address = valid_unicode(str(call.arguments.get("url", "")))
        query = " ".join(valid_unicode(str(call.arguments.get("query") or "")).split())[:1000]
        try:
            fetched, page = await self._reader.read(address)
        except PageError as error:
            return ToolResult(str(error), ToolOutcome.ERROR)
        except asyncio.TimeoutError:
            note = f"The page was not there within {self._settings.timeout_s:g} s."
            return ToolResult(note, ToolOutcome.TIMEOUT)
        except ExtractionError as error:
            note = "The page can't be turned into text."
            return ToolResult(note, ToolOutcome.ERROR, info={"detail": str(error)})
        return await self._result(fetched, page, query)

    async def _result(self, fetched: Fetched, page: Page, query: str) -> ToolResult:
        info: dict[str, Plain] = {"url": fetched.url, "bytes": len(fetched.content), "chars": len(page.text)}
        if self._reader.summariser is not None:
            try:
                text = await self._reader.summariser.summarise(page, query)
            except SummaryError as error:
                note = "The page was read, but not summed up."
                # What is rejected once is rejected again; anything else may be asked for once more.
                outcome = ToolOutcome.ERROR if error.refused else ToolOutcome.FAILED
                return ToolResult(note, outcome, info={**info, "detail": str(error)})
            return ToolResult(text, truncated=fetched.truncated, info=info)
        head = f"{page.title}\n" if page.title else ""
        shown = excerpt(page.text, query, max(16, self._settings.max_output_chars - len(head)))
        cut = fetched.truncated or shown != page.text
        return ToolResult(head + shown, truncated=cut, info=info)

    async def close(self) -> None:
        await self._reader.close()
