"""The back end `http`: a retriever of one's own behind HTTP, asked as Search-R1 does.

POST {"queries": ["…"], "topk": 5, "return_scores": true}
→ {"result": [[{"document": {"id": …, "title": …, "contents": …}, "score": 12.3}, …]]}
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from marsrl_verl.endpoints.client import JsonClient, RequestError
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.tools.search.backend import Backend, BackendFailedError, Hit, QueryRefusedError, SearchResult
from marsrl_verl.tools.search.corpus import document_of

if TYPE_CHECKING:
    from marsrl_verl.tools.search.config import RetrieverConfig

PROBE = "test"
"""What a service is asked before the run begins."""


class RetrieverBackend(Backend):
    """One request per query, with the key as bearer token, to the URLs in turn; one that is repeated goes to
    the next."""

    def __init__(self, settings: RetrieverConfig, key: str | None) -> None:
        self._settings = settings
        self._client = JsonClient(key=key)
        self._numbers = itertools.count()
        # Replicas have the same documents: which one answers is no difference.
        self.identity = f"http {' '.join(sorted(settings.urls))}"

    async def start(self) -> None:
        """See `Backend`."""
        if not self._settings.urls:
            raise ToolUnavailableError("http.urls is empty; name the retriever's URL")
        self._client.open()
        if not self._settings.check:
            return
        probes = [self._ask(url, PROBE, 1) for url in self._settings.urls]
        for answer in await asyncio.gather(*probes, return_exceptions=True):
            if isinstance(answer, RequestError):
                raise ToolUnavailableError(f"http: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer

    async def search(self, query: str, k: int) -> SearchResult:
        """See `Backend`."""
        urls = self._settings.urls
        try:
            return await self._ask(urls[next(self._numbers) % len(urls)], query, k)
        except RequestError as error:
            raise as_search_error(error) from error

    async def _ask(self, url: str, query: str, k: int) -> SearchResult:
        body = {"queries": [query], "topk": k, "return_scores": True}
        return SearchResult(read_result(await self._client.ask("POST", url, body=body), url)[:k])

    async def close(self) -> None:
        """See `Backend`."""
        await self._client.close()


def read_result(body: Any, url: str) -> tuple[Hit, ...]:
    """The hits in a retriever's answer to one query, with scores or without; RequestError if it is none."""
    try:
        (rows,) = body["result"]
        return tuple(_hit(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{url} answered no result of one query: {str(body)[:200]}") from error


def _hit(row: Any) -> Hit:
    scored = isinstance(row, dict) and "document" in row
    document = document_of(row["document"] if scored else row)
    if document is None:
        raise ValueError("no document")
    score = row.get("score") if scored else None
    return Hit(document.title, document.text, document.source, None if score is None else float(score))


def as_search_error(error: RequestError) -> QueryRefusedError | BackendFailedError:
    """What became of a query that a service did not answer."""
    if error.about_request:
        return QueryRefusedError("The search engine does not accept this query.")
    return BackendFailedError(str(error), error.wait_s)
