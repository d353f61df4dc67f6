"""Asks a model behind an endpoint: any JSON, and OpenAI-compatible chat completions."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from tenacity import retry_if_exception

from marsrl_verl.core.request import Message
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.endpoints.answer import FINISH_REASONS, ChatAnswer, failed
from marsrl_verl.endpoints.client import JsonClient, RequestError
from marsrl_verl.endpoints.config import EndpointConfig, ServiceConfig
from marsrl_verl.machine.retry import repeated

T = TypeVar("T")

LONGEST_PAUSE_S = 60.0
"""Most seconds between two attempts, whatever the endpoint requests."""
MAX_BYTES = 64 << 20
"""Most bytes of an answer: many times what a model can write."""
_FILTERED = "content_filter"
_ENDED_BY = ("stop_reason", "matched_stop")
"""Keys in which servers name the stop string that ended an answer."""


class Pace:
    """Lets one through at a time, so many a minute, in the order in which they come."""

    def __init__(self, per_minute: float | None) -> None:
        self._interval_s = 60.0 / per_minute if per_minute else 0.0
        self._next = -math.inf
        self._turn = asyncio.Lock()

    async def wait(self) -> None:
        """Returns when it is one's turn; who is cancelled before has taken none."""
        async with self._turn:
            now = time.monotonic()
            at = max(now, self._next)
            if at > now:
                await asyncio.sleep(at - now)
            self._next = at + self._interval_s


def longest_s(service: ServiceConfig, calls: int) -> float:
    """Most seconds until the last of so many calls at once is answered: all attempts with their pauses, as
    often as calls wait for each other, and the turns of a limit on requests a minute."""
    attempts = (service.retries + 1) * service.timeout_s + service.retries * LONGEST_PAUSE_S
    rate = service.max_requests_per_minute
    turns = 0.0 if rate is None else calls * (service.retries + 1) * 60.0 / rate
    return -(-calls // service.max_concurrent_requests) * attempts + turns


class ModelEndpoint:
    """Asks a model one request per answer, at most `concurrency` at a time, pauses included, whose random
    part comes from `seed`. Requests go to the base URLs in turn, and a repeated one to the next after that
    which failed. `node` names the settings in messages; `api_key` is sent as bearer token."""

    def __init__(
        self, settings: ServiceConfig, node: str, *, api_key: str | None, concurrency: int, seed: int
    ) -> None:
        self._node = node
        if not settings.base_urls:
            raise ValueError(f"{self._node}.base_urls is empty, expected at least one URL")
        self._service = settings
        self._api_key = api_key
        self._slots, self._pace = asyncio.Semaphore(concurrency), Pace(settings.max_requests_per_minute)
        self._seed = seed
        self._numbers = itertools.count()

    async def post(self, name: str, path: str, body: Any, read: Callable[[Any, str], T]) -> T:
        """Returns what `read` makes of the JSON in the service's response and of the URL. The slot is kept
        during the pauses between attempts, whose random part derives from `name`, so that a service that is
        too busy gets fewer requests.

        Raises:
            RequestError: no attempt was answered, or `read` raised it.
        """
        one = self._service
        first = next(self._numbers)
        attempts = repeated(
            one.retries,
            one.backoff_s,
            longest_s=LONGEST_PAUSE_S,
            share=lambda number: derive_generator(self._seed, "pause", name, number).random(),
            again=retry_if_exception(lambda error: isinstance(error, RequestError) and error.busy),
        )
        client = JsonClient(key=self._api_key, max_bytes=MAX_BYTES, timeout_s=one.timeout_s)
        async with self._slots, client:

            async def attempt() -> T:
                number = first + attempts.statistics["attempt_number"] - 1
                await self._pace.wait()
                url = f"{one.base_urls[number % len(one.base_urls)].rstrip('/')}/{path}"
                return read(await client.ask("POST", url, body=body), url)

            try:
                found: T = await attempts(attempt)
            except RequestError as error:
                note = client.note(str(error))  # a service may have quoted the key
                if error.late:
                    note = f"{note} no answer in time ({self._node}.timeout_s = {one.timeout_s:g})"
                if error.busy:
                    note = f"{note} (attempt {one.retries + 1}, the last)"
                raise RequestError(note, about_request=error.about_request) from error
            return found


class ChatEndpoint(ModelEndpoint):
    """Asks for chat completions."""

    def __init__(
        self, settings: EndpointConfig, node: str, *, api_key: str | None, concurrency: int, seed: int
    ) -> None:
        super().__init__(settings, node, api_key=api_key, concurrency=concurrency, seed=seed)
        self._settings = settings

    async def ask(
        self,
        name: str,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> ChatAnswer:
        """The answer to a chat; one that could not be had is an answer with an error, never an exception. The
        one of `stop` that ended the answer is part of it; an endpoint that does not say which one did has not
        answered. `more` are keys of the body, where the settings name none."""
        body = {**more, **request_body(self._settings, messages, stop)}
        try:
            answer = await self.post(
                name, "chat/completions", body, lambda found, url: read_completion(found, url, stop)
            )
        except RequestError as error:
            reason = FinishReason.REFUSED if error.about_request else FinishReason.ERROR
            return failed(str(error), reason)
        if answer.detail is None:
            return answer
        return replace(answer, detail=JsonClient(key=self._api_key).note(answer.detail))


def request_body(
    settings: EndpointConfig, messages: Sequence[Message], stop: Sequence[str] = ()
) -> dict[str, Any]:
    """The body: the chat, strings that end the answer, and those sampling settings that have a value."""
    body: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
    if stop:
        body["stop"] = list(stop)
    for name in ("temperature", "top_p", "max_tokens"):
        if (value := getattr(settings, name)) is not None:
            body[name] = value
    return {**body, **settings.extra_body}


def read_completion(body: Any, url: str, stop: Sequence[str] = ()) -> ChatAnswer:
    """The answer in a chat completion with its thinking part, where the server has taken that out
    (`reasoning_content`, in newer ones `reasoning`), and the one of `stop` that ended it, which servers leave
    out."""
    try:
        choice = body["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        ending = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        return failed(f"{url} answered no chat completion: {body}")
    if not isinstance(content, str) or not isinstance(reasoning, str):
        return failed(f"{url} answered something else than text: {message}")
    reason = FINISH_REASONS.get(ending)
    if reason is None:
        kind = FinishReason.REFUSED if ending == _FILTERED else FinishReason.ABORTED
        return failed(f"{url} ended the answer with finish_reason {ending!r}", kind)
    answer = ChatAnswer(content, reasoning, reason)
    return _with_stop_string(answer, choice, stop, url) if stop else answer


def _with_stop_string(
    answer: ChatAnswer, choice: Mapping[str, Any], stop: Sequence[str], url: str
) -> ChatAnswer:
    """The answer with the string that ended it, which vLLM names in `stop_reason`, SGLang in `matched_stop`;
    both are there where the model itself ended it, too."""
    if answer.finish is not FinishReason.STOP or any(one in answer.content for one in stop):
        return answer
    field = next((name for name in _ENDED_BY if name in choice), None)
    if field is None:
        said = f"{url} does not say what ended the answer ({' or '.join(_ENDED_BY)})"
        return failed(f"{said}, so that a {stop[0]} would be lost: set send_stop=false")
    if (ended_by := choice[field]) not in stop:
        return answer
    if (answer.content or answer.reasoning) and not final_text(answer.content).strip():
        return failed(f"{url} ended a thinking part at {ended_by}: set send_stop=false")
    return replace(answer, content=answer.content + ended_by)
