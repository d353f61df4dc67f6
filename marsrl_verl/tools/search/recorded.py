"""The back end `recorded`: results that were written down beforehand (`RecordedConfig.path` says how), for
tests and for runs that have to be repeated without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.config import RecordedConfig
from marsrl_verl.tools.search.query import normalised


class RecordedError(ValueError):
    """A file of results that can't be used; the message names the entry."""


class RecordedBackend(Backend):
    """Looks a query up as it was recorded, and else one that differs in case, spaces, double quotes or the
    way Unicode writes a character. Of several that are alike the first counts."""

    remote = False
    identity = "recorded"

    def __init__(self, settings: RecordedConfig) -> None:
        self._path = settings.path
        self._exact: dict[str, SearchResult] = {}
        self._alike: dict[str, SearchResult] = {}

    async def start(self) -> None:
        """See `Backend`. Reads the whole file."""
        if self._path is None:
            raise ToolUnavailableError("recorded.path is not set; name the file with the results")
        try:
            self._exact = read_recorded(Path(self._path).expanduser())
        except (OSError, RecordedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ToolUnavailableError(f"recorded.path = {self._path}: {reason}") from error
        for query, found in self._exact.items():
            self._alike.setdefault(_alike(query), found)

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`. A query that was not recorded has no answer."""
        found = self._exact.get(query) or self._alike.get(_alike(query))
        if found is None:
            raise QueryRefusedError("No result was recorded for this query.")
        return SearchResult(found.hits[:k], found.text)


def _alike(query: str) -> str:
    return normalised(query.replace('"', ""))


def read_recorded(path: Path) -> dict[str, SearchResult]:
    """The results of a file by query; OSError where it can't be read, RecordedError where an entry is not as
    it should be or there is none."""
    found: dict[str, SearchResult] = {}
    for place, query, result in _entries(path.read_bytes()):
        if not isinstance(query, str) or not query.strip():
            raise RecordedError(f"{place}: the query is {query!r}, expected a text")
        found.setdefault(valid_unicode(query), _result(result, place))
    if not found:
        raise RecordedError("it has no result")
    return found


def _entries(content: bytes) -> Iterable[tuple[str, Any, Any]]:
    """Place, query and result of every entry."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and set(document) != {"query", "result"}:
        for query, result in document.items():
            yield f"query {query[:60]!r}", query, result
        return
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RecordedError(f"line {number} is not JSON ({error}), nor is the whole file") from error
        if not isinstance(row, Mapping) or set(row) != {"query", "result"}:
            raise RecordedError(f'line {number}: expected {{"query": …, "result": …}}')
        yield f"line {number}", row["query"], row["result"]


def _result(result: Any, place: str) -> SearchResult:
    if isinstance(result, str):
        return SearchResult((), result)
    if not isinstance(result, list):
        raise RecordedError(f"{place}: the result is {type(result).__name__}, expected a text or a list")
    return SearchResult(tuple(_hit(one, place) for one in result))


def _hit(row: Any, place: str) -> Hit:
    known = ("title", "text", "source")
    if not isinstance(row, Mapping) or "text" not in row or not set(row) <= set(known):
        raise RecordedError(
            f'{place}: expected hits {{"title": …, "text": …, "source": …}}, found {row!r:.80}'
        )
    if not all(isinstance(value, str) for value in row.values()):
        raise RecordedError(f"{place}: a hit has a value that is no text")
    return Hit(row.get("title", ""), row["text"], row.get("source", ""))
