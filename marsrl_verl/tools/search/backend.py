"""Interface of search back ends: a query in, hits out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that was found. Its text is hostile, whoever wrote it."""

    title: str
    text: str
    source: str = ""
    """Origin of the hit: a document's id, or an address."""
    score: float | None = None
    """Higher is better; comparable within one query alone."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer to a query."""

    hits: tuple[Hit, ...]
    """Best first, k at most."""
    text: str | None = None
    """Text for the model in place of the hits: a recorded result is replayed as it was."""


class Backend(ABC):
    """Answers queries. One object serves all calls of a rollout worker, many at a time, in one event loop,
    which it must not block."""

    identity: str = ""
    """Identifies what its results depend on beside query and k, from `start` on: results with one identity
    may be kept as one. Empty: the class and its settings."""
    remote: bool = True
    """If true, queries leave this machine."""

    async def start(self) -> None:
        """Gets ready.

        Raises:
            ToolUnavailableError: it can't answer, with what to do.
        """
        return

    @abstractmethod
    async def search(self, query: str, k: int) -> SearchResult:
        """The best k hits. Cancelling it ends the work.

        Args:
            query: as the model wrote it; valid Unicode, not empty, of limited length.

        Raises:
            QueryRefusedError: the query is at fault.
            BackendFailedError: the back end is.
        """

    async def close(self) -> None:
        """Gives back what it holds."""
        return


class QueryRefusedError(Exception):
    """A query that has no answer, however often it is asked; the message is for the model."""


class BackendFailedError(Exception):
    """The back end did not answer; the message is for logs and holds no secret."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s
        """Seconds that it asks to wait before the next attempt."""
        super().__init__(message)
