"""The order of an episode's messages where agents speak at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

_TASK: ContextVar[asyncio.Task[object] | None] = ContextVar("_TASK", default=None)
"""The task that was seen last here: a task that is begun takes it over from the one that begins it."""


class Order:
    """Places of messages: behind those that were said one after another before them, then by their roles.
    They do not depend on which of several tasks is the fastest.

    Args:
        roles: of the agents.
    """

    def __init__(self, roles: Sequence[str]) -> None:
        self._roles = tuple(roles)
        self._times: dict[asyncio.Task[object] | None, int] = {}
        """Number of messages that came one after another, by task."""
        self._parts: dict[asyncio.Task[object] | None, list[asyncio.Task[object]]] = {}
        """Tasks by the one that began them."""

    def time(self) -> int:
        """Number of messages that came one after another before this point of the running task."""
        task, before = asyncio.current_task(), _TASK.get()
        if task is not None and task not in self._times:
            self._times[task] = self._ended(before)
            self._parts.setdefault(before, []).append(task)
            _TASK.set(task)
        return self._ended(task)

    def _ended(self, task: asyncio.Task[object] | None) -> int:
        parts = [self._ended(one) for one in self._parts.get(task, ()) if one.done()]
        return max([self._times.get(task, 0), *parts])

    def place(self, role: str, last: int | None, known: int | None) -> int:
        """The place of a message.

        Args:
            role: who says it.
            last: the place of its last one.
            known: where an earlier playing has put it.
        """
        time, count = self.time(), len(self._roles)
        if known is None:
            after = 0 if last is None else last // count
            known = (1 + max(time, after)) * count + self._roles.index(role)
        self._times[asyncio.current_task()] = known // count
        return known
