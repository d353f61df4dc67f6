"""URLs of services, as settings may name them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from marsrl_verl.settings.declaration import OWN_MESSAGE


def check_urls(urls: Iterable[str]) -> None:
    """Validates settings with URLs of services; PydanticCustomError: one is none, or holds a password."""
    for url in urls:
        what, fix = url_problem(url), "Write it as http://host:8000/path or https://host/path."
        if what is None and holds_password(url):
            what = "The URL holds a password, which logs would show."
            fix = "Take it out and name the variable that holds it in api_key_env."
        if what is not None:
            raise PydanticCustomError(OWN_MESSAGE, "{what}", {"what": what, "fix": fix})


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
