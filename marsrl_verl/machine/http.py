"""What every HTTP client here has to know: the environment's proxies, and how long a service asks to wait."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).

    aiohttp's `trust_env` would read `.netrc` as well and refuse a request that has a key already.
    """
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def asked_to_wait(headers: Mapping[str, str]) -> float:
    """Seconds of a `Retry-After` header; 0 without one, or with a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", 0.0)))
    except ValueError:
        return 0.0
