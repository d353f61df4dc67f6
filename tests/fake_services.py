"""Servers on the loopback interface that answer as a test says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[["ReceivedRequest"], "web.StreamResponse | Awaitable[web.StreamResponse] | None"]
"""What a request is answered; None: the connection breaks off."""


@dataclass(frozen=True)
class ReceivedRequest:
    """One request."""

    number: int
    """From 0."""
    request: web.Request
    body: Any
    """Its JSON; None without a body."""


@dataclass
class FakeService:
    """Answers every method and path, and notes what it was asked."""

    answer: Answer
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    at_once: int = 0
    max_at_once: int = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        one = ReceivedRequest(len(self.requests), request, json.loads(content) if content else None)
        self.requests.append(one)
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))
        self.at_once += 1
        self.max_at_once = max(self.at_once, self.max_at_once)
        try:
            made = self.answer(one)
            if made is None:
                request.transport.abort()
                return web.Response()
            return await made if isinstance(made, Awaitable) else made
        finally:
            self.at_once -= 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The server's URL, without a slash at its end."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        async with TestServer(app) as server:
            yield str(server.make_url("/")).rstrip("/")
