"""Settings of a model behind an endpoint, and URLs of services, as settings may name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_core import PydanticCustomError

from marsrl_verl.settings.declaration import OWN_MESSAGE, Settings, limits, top_p


class ServiceConfig(Settings):
    """A model behind HTTP, and how it is called."""

    base_urls: list[str] = Field(default_factory=list)
    """Such as `http://host:8000/v1`. With several of them every request goes to the next one."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent. The process that starts
    the run needs it; it is not handed to Ray's runtime environment, which is logged."""
    api_key_file: str | None = None
    """File that holds the API key, in place of `api_key_env`: for a Ray job, whose variables Ray logs. The
    job's entry point reads it, so it lies on the node where that runs."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of each request's body, e.g. `{top_k: 20}`."""
    timeout_s: float = limits(1800.0, gt=0.0, why="seconds", fix="1800 is the default.")
    """Seconds from sending a request to the end of its answer. One that takes longer fails and is not
    repeated."""
    max_concurrent_requests: int = limits(64, ge=1, why="one is asked")
    """Most requests of the whole run at a time. The agent-loop workers
    (`actor_rollout_ref.rollout.agent.num_workers`) have equal parts of it."""
    max_requests_per_minute: float | None = limits(None, gt=0.0, why="null is no limit")
    """Most requests that are sent in a minute, repetitions included, evenly spread; null: no limit. Of the
    same requests as `max_concurrent_requests`."""
    retries: int = limits(5, ge=0, why="0 repeats nothing")
    """Most repetitions of a request after HTTP 408, 429, 5xx or a failed connection. One that fails still
    is a sample with finish reason `error`."""
    backoff_s: float = limits(1.0, ge=0.0, why="it is a time")
    """Seconds before the first repetition, doubled with each further one, 60 at most; longer where the
    endpoint requests it (`Retry-After`)."""


class EndpointConfig(ServiceConfig):
    """An OpenAI-compatible endpoint (chat completions) that answers for a frozen policy."""

    temperature: float | None = limits(None, ge=0.0, why="null leaves it to the endpoint")
    """Sampling temperature, in training and in every evaluation; null: the endpoint's default."""
    top_p: float | None = top_p(None, fix="null leaves it to the endpoint.")
    """Smallest probability mass that is kept; null: the endpoint's default."""
    max_tokens: int | None = limits(None, ge=1, why="null leaves it to the endpoint")
    """Most tokens of an answer, counted by the endpoint; null: the endpoint's default."""


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
    """True if a URL, which logs may show, contains a user or a password."""
    parts = urlsplit(url)
    return parts.username is not None or parts.password is not None
