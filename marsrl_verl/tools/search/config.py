"""Settings of the search tool."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, field_validator

from marsrl_verl.endpoints.config import check_urls
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import ClassSpec, Needs, Settings, limits, only_with
from marsrl_verl.tools.base import ToolConfig


class BackendKind(Choice):
    """Search back ends."""

    BM25 = "bm25"
    """A corpus in a file, searched in the rollout worker."""
    HTTP = "http"
    """A retriever behind HTTP that speaks Search-R1's protocol."""
    WEB = "web"
    """A web search service, with a key."""
    RECORDED = "recorded"
    """Results from a file."""
    OWN = "own"
    """A class of yours."""


class Keep(Choice):
    """Back ends whose results are kept for the same query."""

    REMOTE = "remote"
    """Those that a query leaves the machine for."""
    ALL = "all"
    NONE = "none"


class Provider(Choice):
    """Web search services."""

    SERPER = "serper"
    BING = "bing"
    """Bing's own JSON (`webPages.value`), which other services offer too."""
    BRAVE = "brave"
    BRIGHTDATA = "brightdata"
    """Bing through Bright Data's SERP API."""


class Bm25Config(Settings):
    """A corpus of one's own."""

    corpus: str | None = None
    """A JSONL file, `{"id": …, "title": …, "text": …}` on each line; every node can read it."""
    title_weight: float = limits(1.0, ge=0.0, le=100.0, why="a text counts 1")
    """Weight of a match in a title; one in a text has 1: each has a bm25 of its own, and they are added."""
    named_weight: float = limits(0.5, ge=0.0, le=10.0, why="0: bm25 alone")
    """Share of a hit's score that a document gets whose title the hit names, so that the second step of a
    question is found as well; 0: none."""
    threads: int = limits(2, ge=1, le=64, why="one searches")
    """Searches of a rollout worker that run at the same time."""


class RetrieverConfig(Settings):
    """A retriever behind HTTP."""

    urls: list[str] = Field(default_factory=list)
    """Such as `http://host:8000/retrieve`. With several of them every query goes to the next one."""
    queries_per_request: int = limits(1, ge=1, why="one is asked")
    """Most queries of one request: of those that are asked within 10 ms, for a retriever that is faster with
    several at a time."""
    api_key_env: str | None = None
    """Name of the environment variable with a key, sent as bearer token; null: none is sent."""
    api_key_file: str | None = None
    """File with the key, in place of `api_key_env`."""
    check: bool = True
    """Ask each URL one query before the run begins, and end it where one does not answer."""

    @field_validator("urls")
    @classmethod
    def _urls(cls, value: list[str]) -> list[str]:
        check_urls(value)
        return value


class WebConfig(Settings):
    """A web search service."""

    provider: Provider = Provider.SERPER
    """Provider of the API."""
    url: str | None = None
    """Address of the API; null: the provider's. `bing` has none of its own any more."""
    api_key_env: str | None = None
    """Name of the environment variable with the service's key. The process that starts the run needs it; it
    is not handed to Ray's runtime environment, which is logged."""
    api_key_file: str | None = None
    """File with the key, in place of `api_key_env`."""
    country: str | None = None
    """Country from which the search is made, e.g. `us`; null: the service's choice."""
    language: str | None = None
    """Language of the results, e.g. `en`; null: the service's choice."""
    zone: str | None = limits(None, needs=Needs("provider", Provider.BRIGHTDATA))
    """Name of the zone at Bright Data."""
    check: bool = True
    """Ask one query before the run begins, in every rollout worker, and end the run where it fails. The
    service counts it."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        check_urls([] if value is None else [value])
        return value


class RecordedConfig(Settings):
    """Results from a file."""

    path: str | None = None
    """JSON `{query: result}`, or JSONL with `{"query": …, "result": …}`; a result is a text, shown as it is,
    or a list of hits `{"title": …, "text": …, "source": …}`. Every node can read it."""


class OwnBackendConfig(ClassSpec):
    """A back end of one's own."""

    target: str = ""
    """`package.module:ClassName`."""


def _needs(kind: BackendKind) -> Needs:
    return Needs("backend", kind, f"set backend to {kind}")


class SearchConfig(ToolConfig):
    """Settings of the tool `search`."""

    target: str = "search"
    """The tool's class."""
    description: str = "Search for passages that help to answer a question."
    """Description of the tool for the model."""
    backend: BackendKind = BackendKind.BM25
    """Back end that answers queries."""
    results: int = limits(5, ge=1, le=100, why="hits of a query")
    """Most hits of a query."""
    hit_chars: int = limits(1000, ge=16, why="an excerpt has a few words")
    """Most characters of one hit's text; of a longer one the part with most words of the query is shown."""
    query_chars: int = limits(1000, ge=1, why="a query has a character")
    """A longer query is answered by an error."""
    sources: bool = False
    """Show where each hit is from (an address, a document's id)."""
    folder: str | None = None
    """Folder of indices and kept results; null: `marsrl-verl/search` in the user's cache folder
    (`XDG_CACHE_HOME`)."""
    keep: Keep = Keep.REMOTE
    """Back ends whose results are kept in `folder`, for all runs of this machine that use it."""
    bm25: Bm25Config = only_with(_needs(BackendKind.BM25), Bm25Config)
    """Settings of back end `bm25`."""
    http: RetrieverConfig = only_with(_needs(BackendKind.HTTP), RetrieverConfig)
    """Settings of back end `http`."""
    web: WebConfig = only_with(_needs(BackendKind.WEB), WebConfig)
    """Settings of back end `web`."""
    recorded: RecordedConfig = only_with(_needs(BackendKind.RECORDED), RecordedConfig)
    """Settings of back end `recorded`."""
    own: OwnBackendConfig = only_with(_needs(BackendKind.OWN), OwnBackendConfig)
    """A class derived from `marsrl_verl.tools.search.backend.Backend`."""

    @property
    def cache_folder(self) -> Path:
        """Folder of indices and kept results."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "marsrl-verl" / "search"
