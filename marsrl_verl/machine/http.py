"""What every HTTP client here has to know: what a service's URL is, the environment's proxies, how long a
service asks to wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from aiohttp import ClientResponse


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).

    aiohttp's `trust_env` would read `.netrc` as well and refuse a request that has a key already.
    """
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


class LongAnswerError(ValueError):
    """A service answers more than is read."""


async def read_content(response: ClientResponse, most_bytes: int) -> bytes:
    """The content of an answer.

    Raises:
        LongAnswerError: it has more bytes; the rest is not read.
    """
    content = bytearray()
    async for block in response.content.iter_chunked(1 << 16):
        content += block
        if len(content) > most_bytes:
            raise LongAnswerError(f"{response.url} answered more than {most_bytes >> 20} MiB")
    return bytes(content)


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Seconds of a `Retry-After` header; 0 without one, or with a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", 0.0)))
    except ValueError:
        return 0.0


def url_problem(url: str) -> str | None:
    """Why a text is no URL of a service; None where it is one."""
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is no number, an unclosed bracket
        return f"This is no URL: {error}."
    return None if complete else "Expected a URL with http or https and a host."


def holds_password(url: str) -> bool:
    """Whether a URL, which logs may show, names a user or a password."""
    parts = urlsplit(url)
    return parts.username is not None or parts.password is not None
