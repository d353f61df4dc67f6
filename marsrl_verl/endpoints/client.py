"""JSON over HTTP, for all clients of services: limited answers, errors that say whether a retry may help
and that never hold the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from marsrl_verl.core.sanitize import one_line

CONNECT_S = 30.0
"""Most seconds until a connection is there."""
MAX_BYTES = 8 << 20
"""Most bytes of an answer, unless a client sets another limit."""
_ABOUT_THE_REQUEST = frozenset({400, 413, 414, 422})
"""Statuses that speak of this request (too long, not accepted), not of the service."""
_BUSY = frozenset({408, 429})
"""Statuses below 500 after which the same request may succeed."""
_NOTE = 500
"""Most characters of a message."""


class RequestError(Exception):
    """A service did not answer as it should; the message is for logs. It rejects this request and would again
    (`about_request`), may serve it later (`busy`), in `wait_s`, or did not answer in time (`late`)."""

    def __init__(
        self,
        message: str,
        *,
        about_request: bool = False,
        busy: bool = False,
        late: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        self.about_request, self.busy, self.late, self.wait_s = about_request, busy, late, wait_s
        super().__init__(message)


class JsonClient:
    """Gets JSON from services. Proxies are those of the environment; redirects are not followed, since they
    would take the key elsewhere. A context manager, or opened and closed.

    `headers` go with every request. `key` is what no message may hold, without headers a bearer token.
    `max_bytes` and `timeout_s` limit an answer; without a time the caller limits it.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        *,
        max_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._headers = headers or ({"Authorization": f"Bearer {key}"} if key else {})
        self._key = key
        self._max_bytes = MAX_BYTES if max_bytes is None else max_bytes
        connect_s = CONNECT_S if timeout_s is None else min(CONNECT_S, timeout_s)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s)
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Gets ready, in the event loop in which requests will be made."""
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> JsonClient:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(
        self, method: str, url: str, *, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON value that a service answers to a `body` sent as JSON to a URL with the parameters
        `query`; RequestError: it answered something else, or nothing."""
        if self._session is None:
            raise RuntimeError("open() was not called")
        try:
            async with self._session.request(
                method, url, json=body, params=query, proxy=_proxy_for(url), allow_redirects=False
            ) as response:
                content = bytearray()
                async for block in response.content.iter_chunked(1 << 16):
                    content += block
                    if len(content) > self._max_bytes:
                        limit = f"{self._max_bytes >> 20} MiB"
                        raise RequestError(self.note(f"{url} answered more than {limit}"))
                if response.status == 200:
                    return json.loads(content)
                text = content.decode("utf-8", "replace")
                raise RequestError(
                    self.note(f"{url} answered HTTP {response.status}: {text}"),
                    about_request=response.status in _ABOUT_THE_REQUEST,
                    busy=response.status in _BUSY or response.status >= 500,
                    wait_s=_retry_after(response.headers),
                )
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, RecursionError) as error:
            broken = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
            raise RequestError(
                self.note(f"{url}: {type(error).__name__}: {error}"),
                busy=broken,
                late=isinstance(error, asyncio.TimeoutError) and not broken,
            ) from None

    def note(self, note: str) -> str:
        """A message without the key, which a service may have quoted, printable, not too long."""
        note = note.replace(self._key, "[api key]") if self._key else note
        return one_line(note[: 2 * _NOTE])[:_NOTE]

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL (HTTP_PROXY, HTTPS_PROXY, NO_PROXY). aiohttp's
    `trust_env` would read `.netrc` as well and reject a request that has a key already."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a `Retry-After` header; 0 without one, or with a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", 0.0)))
    except ValueError:
        return 0.0
