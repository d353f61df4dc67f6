"""Settings of the browser, and of whatever reads pages."""

from __future__ import annotations

from ipaddress import ip_network

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marsrl_verl.endpoints.config import EndpointConfig, check_urls
from marsrl_verl.settings.declaration import OWN_MESSAGE, Switched, limits
from marsrl_verl.tools.base import ToolConfig


class SummaryEndpoint(EndpointConfig):
    """Endpoint of the model that sums up pages."""

    max_tokens: int | None = limits(1024, ge=1, why="null leaves it to the endpoint")
    """Most tokens of a summary; null: the endpoint's default."""
    timeout_s: float = limits(60.0, gt=0.0, why="seconds", fix="60 is the default.")
    """Seconds from sending a request to the end of its answer; the tool's `timeout_s` ends it as well."""
    retries: int = limits(1, ge=0, why="0 repeats nothing")
    """Most repetitions of a request after HTTP 408, 429, 5xx or a failed connection, within the call's
    time."""
    max_concurrent_requests: int = limits(64, ge=1, why="one is asked")
    """Most requests of each process that runs tools at a time."""


class SummaryConfig(Switched):
    """A model behind an OpenAI-compatible endpoint (chat completions) that reads pages for the one that is
    trained."""

    endpoint: SummaryEndpoint = Field(default_factory=SummaryEndpoint)
    """Endpoint of the model."""
    page_chars: int = limits(40_000, ge=256, why="a page has a few sentences")
    """Characters of a page that the model is shown: of a longer page the part with most words of what is
    looked for."""

    @field_validator("endpoint")
    @classmethod
    def _urls(cls, value: SummaryEndpoint) -> SummaryEndpoint:
        check_urls(value.base_urls)
        return value


class ReadingConfig(ToolConfig):
    """Settings of tools that read web pages."""

    page_kib: int = limits(4096, ge=1, le=65536, why="KiB; a page has a few sentences, and is in memory")
    """KiB of a page that are read, after decompression; the rest of a longer one is left out."""
    redirects: int = limits(5, ge=0, le=20, why="0 follows none")
    """Most redirects that are followed; each is checked as the first address is."""
    ports: list[int] = Field(default_factory=lambda: [80, 443])
    """Ports that may be connected to."""
    allow_networks: list[str] = Field(default_factory=list)
    """Networks that may be read although they are not public, e.g. `10.1.2.0/24` with an encyclopedia of
    one's own. Everything that listens there can be read by the model that is trained."""
    user_agent: str = "marsrl-verl-browser"
    """Name that the browser gives to servers (`User-Agent`)."""
    extract_memory_mib: int = limits(1024, ge=256, why="the parser itself takes as much")
    """Most memory of a process that turns pages into text."""
    extract_cpu_s: int = limits(10, ge=1, why="seconds")
    """Most processor seconds for turning a page into text."""
    summary: SummaryConfig = Field(default_factory=SummaryConfig)
    """Have pages summarised."""

    @field_validator("allow_networks")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for one in value:
            try:
                ip_network(one)
            except ValueError as error:
                fix = "Write networks as 10.1.2.0/24, addresses as 10.1.2.3."
                context = {"fix": fix, "wrong": str(error)}
                raise PydanticCustomError(OWN_MESSAGE, "{wrong}.", context) from error
        return value


class BrowserConfig(ReadingConfig):
    """Settings of the tool `browser`."""

    target: str = "browser"
    """The tool's class."""
    description: str = "Read a web page."
    """Description of the tool for the model."""
