"""A person plays a role: chat completions that are answered in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TextIO

from fastapi import Body, FastAPI, HTTPException, Request

from marsrl_verl.core.sanitize import printable

END = "."
"""A line with nothing else ends an answer."""
_USAGE = """Answer as a model of other runs: prompts are shown here, and answers are read from the terminal.
A line with a single dot ends an answer. The run's command has

  policies=endpoint 'marsrl.policies.endpoint.endpoint.base_urls=[{url}]' \\
      marsrl.policies.endpoint.endpoint.model={model}

for all roles, or policies=solver_endpoint for MarsRL's Solver alone."""


class Person:
    """Answers one chat after the other.

    Args:
        screen: where prompts are shown.
        keys: where answers are read.
    """

    def __init__(self, screen: TextIO, keys: TextIO) -> None:
        self._screen, self._keys = screen, keys
        self._turn = asyncio.Lock()

    async def answer(
        self, messages: Sequence[dict[str, Any]], left: Callable[[], Awaitable[bool]] | None = None
    ) -> str:
        """The person's answer.

        Args:
            messages: of the chat.
            left: tells whether the client no longer waits for the answer; then the chat is not shown.

        Raises:
            EOFError: none will come any more.
            ConnectionError: the client no longer waits for it.
        """
        async with self._turn:
            if left is not None and await left():
                raise ConnectionError("the client has left")
            for message in messages:
                self._show(f"[{message['role']}]\n{message['content']}\n")
            self._show(f"[your answer, ended by a line with {END}]")
            return await asyncio.wrap_future(self._typed())

    def _show(self, text: str) -> None:
        # A prompt holds text of models, which may not steer the terminal.
        print(printable(text), file=self._screen, flush=True)

    def _typed(self) -> Future[str]:
        """Reads the user's input in a thread that doesn't keep the process from ending."""
        answer: Future[str] = Future()

        def read() -> None:
            try:
                answer.set_result(self._read())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=read, daemon=True).start()
        return answer

    def _read(self) -> str:
        lines: list[str] = []
        while line := self._keys.readline():
            if line.rstrip("\r\n") == END:
                return "\n".join(lines)
            lines.append(line.rstrip("\r\n"))
        raise EOFError("the terminal was closed")


def application(person: Person, model: str) -> Any:
    """`/v1/chat/completions` and `/v1/models` of a person."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "owned_by": "person"}]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request, body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        messages = body.get("messages")
        readable = isinstance(messages, list) and all(
            isinstance(one, dict) and isinstance(one.get("content"), str) and "role" in one
            for one in messages
        )
        if not readable or not messages or body.get("stream"):
            raise HTTPException(400, "expected messages of text, and no stream")
        try:
            text = await person.answer(messages, request.is_disconnected)
        except (EOFError, ConnectionError) as error:
            raise HTTPException(503, str(error)) from error
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
        }

    return app


def main(words: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        "python -m recipe.marsrl.play",
        description=_USAGE.format(url="http://127.0.0.1:PORT/v1", model="person"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8790, help="of 127.0.0.1 (8790)")
    parser.add_argument("--model", default="person", help="the model's name (person)")
    options = parser.parse_args(words)
    import uvicorn

    print(_USAGE.format(url=f"http://127.0.0.1:{options.port}/v1", model=options.model), flush=True)
    app = application(Person(sys.stdout, sys.stdin), options.model)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1)
    return 0
