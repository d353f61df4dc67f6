"""JSON over HTTP, for tools that ask a service: kept connections, limited answers, errors that say whether
asking again may help and that never hold the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
from pydantic_core import PydanticCustomError

from marsrl_verl.core.inert_text import one_line
from marsrl_verl.machine.http import (
    LongAnswerError,
    holds_password,
    proxy_for,
    read_content,
    retry_after_seconds,
    url_problem,
)
from marsrl_verl.settings.declaration import OWN_MESSAGE

CONNECT_S = 30.0
"""Most seconds until a connection is there. The toolbox limits the rest."""
MOST_BYTES = 8 << 20
"""Most bytes of an answer, where a client is not told otherwise."""
_ABOUT_THE_REQUEST = frozenset({400, 413, 414, 422})
"""Statuses that speak of this request, not of the service."""
_NOTE = 500
"""Most characters of a message."""


def check_urls(urls: Iterable[str]) -> None:
    """Validates settings that hold URLs of services.

    Raises:
        PydanticCustomError: one is none, or holds a password.
    """
    for url in urls:
        what, fix = url_problem(url), "Write it as http://host:8000/path or https://host/path."
        if what is None and holds_password(url):
            what = "The URL holds a password, which logs would show."
            fix = "Take it out and name the variable that holds it in api_key_env."
        if what is not None:
            raise PydanticCustomError(OWN_MESSAGE, "{what}", {"what": what, "fix": fix})


class ServiceError(Exception):
    """A service did not answer as it should; the message is for logs.

    Args:
        about_request: it refuses this request, and would do so again.
        wait_s: how long it asks to wait.
    """

    def __init__(self, message: str, *, about_request: bool = False, wait_s: float = 0.0) -> None:
        self.about_request, self.wait_s = about_request, wait_s
        super().__init__(message)


class JsonClient:
    """Asks services for JSON. Proxies are those of the environment; redirects are not followed, since they
    would take the key elsewhere.

    Args:
        headers: of every request.
        key: what no message may hold, if the headers have it.
        most_bytes: of an answer; None: `MOST_BYTES`.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        *,
        most_bytes: int | None = None,
    ) -> None:
        self._headers = dict(headers or {})
        self._key = key
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready, in the event loop in which requests will be made."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=limit,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def ask(
        self, method: str, url: str, *, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON value that a service answers.

        Args:
            body: sent as JSON.
            query: parameters of the URL.

        Raises:
            ServiceError: it answered something else, or nothing.
        """
        if self._session is None:
            raise RuntimeError("open() was not called")
        try:
            async with self._session.request(
                method, url, json=body, params=query, proxy=proxy_for(url), allow_redirects=False
            ) as response:
                content = await read_content(response, self._most_bytes)
                if response.status == 200:
                    return json.loads(content)
                text = content.decode("utf-8", "replace")
                raise ServiceError(
                    self.note(f"{url} answered HTTP {response.status}: {text}"),
                    about_request=response.status in _ABOUT_THE_REQUEST,
                    wait_s=retry_after_seconds(response.headers),
                )
        except LongAnswerError as error:
            raise ServiceError(self.note(str(error))) from None
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, RecursionError) as error:
            raise ServiceError(self.note(f"{url}: {type(error).__name__}: {error}")) from None

    def note(self, note: str) -> str:
        """A message without the key, which a service may have quoted, printable, not too long."""
        note = note.replace(self._key, "[api key]") if self._key else note
        return one_line(note[: 2 * _NOTE])[:_NOTE]

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
