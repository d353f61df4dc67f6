"""Settings of the browser."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marsrl_verl.settings.declaration import OWN_MESSAGE, Switched, limits
from marsrl_verl.tools.base import ToolConfig
from marsrl_verl.tools.json_client import check_urls


class SummaryConfig(Switched):
    """A model behind an OpenAI-compatible endpoint (chat completions) that reads pages for the one that is
    trained."""

    base_url: str = ""
    """Such as `http://host:8000/v1`."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent."""
    api_key_file: str | None = None
    """File that holds the API key, in place of `api_key_env`."""
    max_tokens: int = limits(1024, ge=1, why="a summary has a token")
    """Most tokens of a summary."""
    temperature: float | None = limits(None, ge=0.0, why="null leaves it to the endpoint")
    """Sampling temperature; null: what the endpoint does by itself."""
    page_chars: int = limits(40_000, ge=256, why="a page has a few sentences")
    """Characters of a page that the model is shown: of a longer page the part with most words of what is
    looked for."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of each request's body."""

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str) -> str:
        check_urls([value] if value else [])
        return value


class BrowserConfig(ToolConfig):
    """Settings of the tool `browser`."""

    target: str = "browser"
    """The tool's class."""
    description: str = "Read a web page."
    """What the model is told that the tool does."""
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
    """How the browser names itself to servers."""
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
                context = {"fix": "Write networks as 10.1.2.0/24, addresses as 10.1.2.3."}
                text = "{wrong}."
                raise PydanticCustomError(OWN_MESSAGE, text, {**context, "wrong": str(error)}) from error
        return value
