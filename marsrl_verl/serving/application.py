"""The HTTP side: `/v1/chat/completions`, `/v1/models`, `/health`, `/metrics`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marsrl_verl.core.sanitize import one_line
from marsrl_verl.evaluation.runs import Run
from marsrl_verl.serving.protocol import Answer, ChatRequest, RunFailedError, chunk
from marsrl_verl.serving.service import BusyError, Service, UnavailableError

PING_S = 10.0
"""Seconds without an event after which a stream has a comment: proxies end connections that are silent."""
_RESTART_S = "30"
"""Seconds after which clients may retry when engines are gone (`Retry-After`)."""
_CLIENT_GONE = 499


class _RunStream(StreamingResponse):
    """A stream whose run ends with it, also where it never begins."""

    def __init__(self, pieces: AsyncIterator[str], run: asyncio.Task[Run]) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._run.cancel()


class _Gate:
    """Refuses who has no key before the body is read, and a body that is too large when it is.

    Args:
        app: what is behind it.
        api_key: see `build_application`.
        most: bytes of a body.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, most: int) -> None:
        self._app, self._key, self._most = app, api_key, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("authorization", "").removeprefix("Bearer ").strip()
        if self._key is not None and not secrets.compare_digest(sent.encode(), self._key.encode()):
            body = _error_body("The API key is missing or wrong.", "authentication_error")
            await _json(body, 401)(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, f"The request has more than {self._most:,} bytes.")
            return message

        await self._app(scope, counted, send)


def _json(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def _error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _refusal(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of what went wrong."""
    text = one_line(str(error))
    if isinstance(error, BusyError):
        body = _error_body(text, "rate_limit_error", "busy")
        return 429, body, {"Retry-After": str(error.retry_s)}
    if isinstance(error, UnavailableError):
        return 503, _error_body(text, "server_error", "engine_unavailable"), {"Retry-After": _RESTART_S}
    if isinstance(error, RunFailedError):
        return 502, _error_body(text, "server_error", "run_failed"), {}
    return 400, _error_body(text, "invalid_request_error"), {}


_REFUSED = (BusyError, UnavailableError, RunFailedError, ValueError)


def build_application(service: Service, api_key: str | None) -> FastAPI:
    """The application.

    Args:
        service: generates the answers, with its settings.
        api_key: what clients have to send as `Authorization: Bearer …`; None: nothing. `/health` and
            `/metrics` are open to all.
    """
    app = FastAPI(title="marsrl-verl", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Gate, api_key=api_key, most=1024 * service.settings.max_body_kib)
    created = int(time.time())

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _json(_error_body(str(error.detail), "invalid_request_error"), error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        service.metrics.note_request(400)
        first = error.errors()[0]
        param = ".".join(str(one) for one in first["loc"] if one != "body")
        what = "It is not supported here: a run of the system would not heed it"
        message = f"{param}: {what if first['type'] == 'extra_forbidden' else first['msg']}."
        return _json(_error_body(message, "invalid_request_error", None, param or None), 400)

    @app.get("/health")
    async def health() -> Response:
        up = service.down is None
        return _json({"status": "ok" if up else "the engines are gone"}, 200 if up else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> Response:
        one = {"id": service.system.name, "object": "model", "created": created, "owned_by": "marsrl-verl"}
        return _json({"object": "list", "data": [one]})

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        if asked.model != service.system.name:
            text = f"The model {asked.model!r} is not served here; this is {service.system.name!r}."
            service.metrics.note_request(404)
            return _json(_error_body(text, "invalid_request_error", "model_not_found", "model"), 404)
        name, events = service.new_name(), asyncio.Queue[Mapping[str, Any] | None]()
        try:
            if asked.stream:
                run = service.begin(asked, events.put_nowait, name=name)
                run.add_done_callback(lambda _: events.put_nowait(None))
                return _RunStream(_pieces(service, asked, name, run, events), run)
            ended = await _while_connected(request, service.begin(asked, name=name))
            if ended is None:
                service.metrics.note_request(_CLIENT_GONE)
                return Response(status_code=_CLIENT_GONE)
            answer = _json(Answer(asked, ended, service.system.evaluation, name).completion())
        except _REFUSED as error:
            status, body, headers = _refusal(error)
            service.metrics.note_request(status)
            return _json(body, status, headers)
        service.metrics.note_request(200)
        return answer

    return app


async def _while_connected(request: Request, run: asyncio.Task[Run]) -> Run | None:
    """The run once it has ended; None, and it is cancelled: the client has gone."""

    async def wait_for_end() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(wait_for_end())
    try:
        await asyncio.wait({run, gone}, return_when=asyncio.FIRST_COMPLETED)
        return run.result() if run.done() else None
    finally:
        gone.cancel()
        run.cancel()


async def _pieces(
    service: Service,
    asked: ChatRequest,
    name: str,
    run: asyncio.Task[Run],
    events: asyncio.Queue[Mapping[str, Any] | None],
) -> AsyncIterator[str]:
    """Server-sent events: a chunk without text for each event of the run, then the solution."""

    def line(content: Mapping[str, Any]) -> str:
        return f"data: {json.dumps(content)}\n\n"

    status = _CLIENT_GONE
    try:
        yield line(chunk(asked, name, {"role": "assistant", "content": ""}))
        while True:
            try:
                event = await asyncio.wait_for(events.get(), PING_S)
            except asyncio.TimeoutError:
                yield ": the run goes on\n\n"
                continue
            if event is None:
                break
            yield line(chunk(asked, name, {}, run=dict(event)))
        try:
            answer = Answer(asked, run.result(), service.system.evaluation, name)
        except _REFUSED as error:
            status, body, _ = _refusal(error)
            yield line(body)
            return
        yield line(chunk(asked, name, {"content": answer.text}))
        about = {"event": "answer", **answer.about_run(trail=False)}
        yield line(chunk(asked, name, {}, answer.finish, run=about))
        if asked.stream_options is not None and asked.stream_options.include_usage:
            yield line({**chunk(asked, name, {}), "choices": [], "usage": answer.usage()})
        yield "data: [DONE]\n\n"
        status = 200
    finally:
        service.metrics.note_request(status)
