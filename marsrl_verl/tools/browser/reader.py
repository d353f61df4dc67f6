"""Pages by their addresses, as readable text and as another model sums them up."""

from __future__ import annotations

import asyncio

from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.browser.config import ReadingConfig
from marsrl_verl.tools.browser.extract import Extractor, Page
from marsrl_verl.tools.browser.fetch import HTML, Fetched, Fetcher, PageError
from marsrl_verl.tools.browser.summary import Summariser, SummaryError

_MAX_CHARS = 2_000_000
"""Characters of a page that are looked at."""


class PageReader:
    """Fetcher, extractor and summariser of a tool that reads pages.

    Args:
        settings: settings of the tool.
        timeout_s: most seconds of a page.
        key: key of the summarising model's endpoint.
        seed: seed of the pauses between requests to it.
    """

    def __init__(self, settings: ReadingConfig, timeout_s: float, key: str | None, seed: int) -> None:
        self._settings, self._key, self._seed = settings, key, seed
        self._fetcher = Fetcher(settings, timeout_s)
        self._extractor = Extractor(settings.extract_memory_mib, settings.extract_cpu_s)
        self.summariser: Summariser | None = None
        """The summariser where pages are to be summed up, from `open` on."""

    async def open(self) -> None:
        """Gets ready; ToolUnavailableError: it can't read, or its model answers nothing."""
        summary = self._settings.summary
        if summary.enabled and not (summary.endpoint.base_urls and summary.endpoint.model):
            raise ToolUnavailableError(
                "summary.enabled is true without an endpoint; set summary.endpoint.base_urls, such as "
                "[http://host:8000/v1], and summary.endpoint.model"
            )
        await self._extractor.start()
        self._fetcher.open()
        if summary.enabled:
            self.summariser = Summariser(summary, self._key, self._seed)
            await self._try_summary(self.summariser)

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

    async def read(self, address: str) -> tuple[Fetched, Page]:
        """The page at an address.

        Raises:
            PageError: there is nothing to read; the message is for the model.
            ExtractionError: it can't be turned into text.
            asyncio.TimeoutError: it took too long.
        """
        fetched = await self._fetcher.fetch(address)
        page = await self._extractor.read(
            fetched.content, fetched.charset, html=fetched.kind in HTML, chars=_MAX_CHARS
        )
        if not page.text.strip():
            raise PageError("The page has no text.")
        return fetched, page

    async def close(self) -> None:
        """Releases connections and processes."""
        await self._fetcher.close()
        await self._extractor.close()
