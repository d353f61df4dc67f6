"""The proxies that the environment names."""

from __future__ import annotations

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
