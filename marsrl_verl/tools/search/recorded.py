"""The back end `recorded`: results that were written down beforehand, for tests and for runs that have to be
repeated without a network.

A JSON object `{query: result}`, or JSONL with `{"query": …, "result": …}` on each line. A result is a text,
which is shown as it is, or a list of hits `{"title": …, "text": …, "source": …}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from marsrl_verl.core.inert_text import one_line, valid_unicode
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.query import normalised

if TYPE_CHECKING:
    from marsrl_verl.tools.search.config import RecordedConfig


_EXPECTED = '{"query": …, "result": …}, the result a text or a list of {"title": …, "text": …, "source": …}'


class RecordedError(ValueError):
    """A file of results that can't be used; the message names the entry."""


class RecordedBackend(Backend):
    """Looks a query up as it was recorded, and else one that differs in case, spaces, double quotes or the
    way Unicode writes a character. Of several that are alike the first counts.

    Args:
        settings: `recorded` of the search tool's settings.
        node: where the settings are, for messages.
    """

    remote = False
    identity = "recorded"

    def __init__(self, settings: RecordedConfig, node: str) -> None:
        self._path = settings.path
        self._node = node
        self._exact: dict[str, SearchResult] = {}
        self._alike: dict[str, SearchResult] = {}

    async def start(self) -> None:
        """See `Backend`. Reads the whole file."""
        if self._path is None:
            raise ToolUnavailableError(f"{self._node}.path is not set; name the file with the results")
        try:
            self._exact = read_recorded(Path(self._path).expanduser())
        except (OSError, RecordedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ToolUnavailableError(f"{self._node}.path = {self._path}: {reason}") from error
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


def _valid(value: Any) -> Any:
    return valid_unicode(value) if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_valid)]


class _Hit(BaseModel, extra="forbid", strict=True):
    text: _Text
    title: _Text = ""
    source: _Text = ""


class _Entry(BaseModel, extra="forbid", strict=True):
    query: _Text = Field(pattern=r"\S")
    result: _Text | list[_Hit]


def read_recorded(path: Path) -> dict[str, SearchResult]:
    """The results of a file by query.

    Raises:
        OSError: it can't be read.
        RecordedError: it is not as it should be.
    """
    found: dict[str, SearchResult] = {}
    for place, row in _rows(path.read_bytes()):
        try:
            one = _Entry.model_validate(row)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise RecordedError(f"{place}: {one_line(wrong)[:300]}. Expected {_EXPECTED}") from error
        if isinstance(one.result, str):
            result = SearchResult((), one.result)
        else:
            result = SearchResult(tuple(Hit(hit.title, hit.text, hit.source) for hit in one.result))
        found.setdefault(one.query, result)
    if not found:
        raise RecordedError("it has no result")
    return found


def _rows(content: bytes) -> Iterable[tuple[str, Any]]:
    """Every entry with its place."""
    try:
        whole: Any = json.loads(content)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and set(whole) != {"query", "result"}:
        for query, result in whole.items():
            yield f"query {query[:60]!r}", {"query": query, "result": result}
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RecordedError(f"line {number} is not JSON ({error}), nor is the whole file") from error
