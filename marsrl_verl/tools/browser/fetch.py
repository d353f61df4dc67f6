"""Fetch one page: checked addresses, few redirects, few bytes."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass

import aiohttp
from yarl import URL

from marsrl_verl.core.sanitize import one_line
from marsrl_verl.tools.browser.addresses import AddressRules, CheckedResolver, RefusedAddressError
from marsrl_verl.tools.browser.config import ReadingConfig

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
HTML = frozenset({"text/html", "application/xhtml+xml"})
TEXT = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})
_HEADERS = {
    "Accept": "text/html, application/xhtml+xml, text/plain;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip",
}
_LONGEST_URL = 2000


class PageError(Exception):
    """There is no such page, or none that can be read; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answer of a server."""

    url: str
    """Address after all redirects."""
    content: bytes
    kind: str
    """Its media type."""
    charset: str | None
    truncated: bool
    """If true, the page goes on after `content`."""


class Fetcher:
    """Reads pages, each with connections that were checked, without cookies, credentials or proxies."""

    def __init__(self, settings: ReadingConfig, timeout_s: float) -> None:
        self._settings, self._timeout_s = settings, timeout_s
        self._rules = AddressRules(settings.ports, settings.allow_networks)
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Gets ready, in the event loop in which pages will be asked for."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=CheckedResolver(self._rules), use_dns_cache=False, limit=0
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers={"User-Agent": self._settings.user_agent, **_HEADERS},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def fetch(self, address: str) -> Fetched:
        """The page at an address, as the model wrote it.

        Raises:
            PageError: there is nothing to read.
            asyncio.TimeoutError: it took too long.
        """
        url = _parsed(address)
        for _ in range(self._settings.redirects + 1):
            found = await self._step(url)
            if isinstance(found, Fetched):
                return found
            url = found
        raise PageError(f"The page redirects more than {self._settings.redirects} times.")

    async def _step(self, url: URL) -> Fetched | URL:
        """The page at a URL, or where it redirects to."""
        if self._session is None:
            raise RuntimeError("open() was not called")
        try:
            self._rules.check_url(url)
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and (place := response.headers.get("Location")):
                    return url.join(_parsed(place))
                if response.status != 200:
                    raise PageError(f"The server answered HTTP {response.status}.")
                kind = response.content_type
                if kind not in HTML | TEXT:
                    raise PageError(f"The page is {one_line(kind)[:80]}; only text can be read.")
                content, truncated = await self._content(response)
                return Fetched(str(url), content, kind, response.charset, truncated)
        except RefusedAddressError as error:
            raise PageError(str(error)) from error
        except asyncio.TimeoutError:
            raise
        except aiohttp.ClientConnectorError as error:
            raise PageError("There is no such server, or it does not answer.") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PageError(f"The page can't be read ({type(error).__name__}).") from error

    async def _content(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The first bytes of a page, and whether there are more. Decompressed here, in limited pieces: a
        kilobyte may hold a gigabyte."""
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise PageError("The page is compressed in a way that was not asked for.")
        limit = self._settings.page_kib << 10
        unpack = None if encoding in ("identity", "") else zlib.decompressobj(zlib.MAX_WBITS | 32)
        content = bytearray()
        async for block in response.content.iter_chunked(1 << 16):
            remaining = limit + 1 - len(content)
            try:
                content += block[:remaining] if unpack is None else unpack.decompress(block, remaining)
            except zlib.error as error:
                raise PageError("The page is compressed in a way that can't be read.") from error
            if len(content) > limit:
                return bytes(content[:limit]), True
        return bytes(content), False

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _parsed(address: str) -> URL:
    if len(address) > _LONGEST_URL:
        raise PageError(f"The address has more than {_LONGEST_URL} characters.")
    try:
        return URL(address.strip())
    except ValueError as error:  # a port that is no number, an unclosed bracket
        raise PageError("This is no address of a page.") from error
