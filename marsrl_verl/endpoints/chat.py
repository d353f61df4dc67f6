"""Asks a model behind an OpenAI-compatible endpoint (chat completions)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import aiohttp

from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.request import Message
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.endpoints.answer import FINISH_REASONS, ChatAnswer, failed
from marsrl_verl.machine.http import LongAnswerError, proxy_for, read_content, retry_after_seconds

if TYPE_CHECKING:
    from marsrl_verl.endpoints.config import EndpointConfig

LONGEST_PAUSE_S = 60.0
"""Most seconds between two attempts, whatever the endpoint asks for."""
CONNECT_S = 30.0
"""Most seconds until a connection is there."""

MOST_BYTES = 64 << 20
"""Most bytes of an answer: many times what a model can write."""
_BUSY = frozenset({408, 429})
"""Statuses below 500 after which the same request may succeed."""
_ABOUT_THE_REQUEST = frozenset({400, 413, 422})
"""Statuses that speak of this request (too long, not accepted), not of the endpoint."""
_FILTERED = "content_filter"
_ENDED_BY = ("stop_reason", "matched_stop")
"""Where servers name the stop string that ended an answer."""
_NOTE = 500
"""Most characters of a note."""


@dataclass(frozen=True, slots=True)
class _TryAgain:
    """An attempt that failed in a way that may pass."""

    note: str
    wait_s: float = 0.0
    """How long the endpoint asks to wait."""


class ChatEndpoint:
    """Asks one request per answer. Requests go to the base URLs in turn, and a repeated one to the next after
    that which failed.

    Args:
        settings: of the endpoint.
        node: where they are, for messages.
        api_key: sent as bearer token; None: no key is sent.
        concurrency: most requests of this object that are under way at a time, pauses included.
        seed: of the random part of the pauses.
    """

    def __init__(
        self, settings: EndpointConfig, node: str, *, api_key: str | None, concurrency: int, seed: int
    ) -> None:
        self._node = node
        if not settings.base_urls:
            raise ValueError(f"{self._node}.base_urls is empty, expected at least one URL")
        self._settings = settings
        self._api_key = api_key
        self._slots = asyncio.Semaphore(concurrency)
        self._seed = seed
        self._numbers = itertools.count()

    async def ask(self, name: str, messages: Sequence[Message], stop: Sequence[str] = ()) -> ChatAnswer:
        """The answer to a chat; one that could not be had is an answer with an error, never an exception.

        As many attempts as it takes; the slot is kept during pauses, so that an endpoint that is too busy is
        asked less.

        Args:
            name: of the request: the random part of its pauses derives from it.
            stop: strings at which the endpoint ends its answer; the one that did is part of it. An endpoint
                that does not say which one did has not answered.
        """
        body = request_body(self._settings, messages, stop)
        limit = self._settings.timeout_s
        async with (
            self._slots,
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=limit, sock_connect=min(CONNECT_S, limit)),
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else None,
            ) as session,
        ):
            first = next(self._numbers)
            outcome = await self._attempt(session, body, first, stop)
            for repeat in range(self._settings.retries):
                if isinstance(outcome, ChatAnswer):
                    break
                await asyncio.sleep(self._pause(name, repeat, outcome.wait_s))
                outcome = await self._attempt(session, body, first + repeat + 1, stop)
        if isinstance(outcome, _TryAgain):
            outcome = failed(f"{outcome.note} (attempt {self._settings.retries + 1}, the last)")
        return self._without_key(outcome)

    async def _attempt(
        self, session: aiohttp.ClientSession, body: dict[str, Any], number: int, stop: Sequence[str]
    ) -> ChatAnswer | _TryAgain:
        base = self._settings.base_urls[number % len(self._settings.base_urls)]
        url = f"{base.rstrip('/')}/chat/completions"
        try:
            async with session.post(url, json=body, proxy=proxy_for(url), allow_redirects=False) as response:
                content = await read_content(response, MOST_BYTES)
                if response.status == 200:
                    return read_completion(json.loads(content), url, stop)
                note = f"{url} answered HTTP {response.status}: {content.decode('utf-8', 'replace')}"
                if response.status in _BUSY or response.status >= 500:
                    return _TryAgain(note, retry_after_seconds(response.headers))
                return failed(
                    note,
                    FinishReason.REFUSED if response.status in _ABOUT_THE_REQUEST else FinishReason.ERROR,
                )
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            return _TryAgain(f"{url}: {type(error).__name__}: {error}")
        except asyncio.TimeoutError:
            limit = f"{self._node}.timeout_s = {self._settings.timeout_s:g}"
            return failed(f"{url}: no answer in time ({limit})")
        except LongAnswerError as error:
            return failed(str(error))
        except (aiohttp.ClientError, ValueError, RecursionError) as error:
            return failed(f"{url}: {type(error).__name__}: {error}")

    def _without_key(self, answer: ChatAnswer) -> ChatAnswer:
        """Its note is for logs: printable, without the key, which a server may have quoted, not too long."""
        if answer.detail is None:
            return answer
        note = answer.detail.replace(self._api_key, "[api key]") if self._api_key else answer.detail
        note = printable(note[: 2 * _NOTE])
        return replace(answer, detail=note if len(note) <= _NOTE else f"{note[:_NOTE]}…")

    def _pause(self, name: str, repeat: int, wait_s: float) -> float:
        """Doubled from attempt to attempt, by half at random, so that not all come back at once."""
        share = 0.5 + 0.5 * derive_generator(self._seed, "pause", name, repeat).random()
        return min(LONGEST_PAUSE_S, max(wait_s, self._settings.backoff_s * 2.0**repeat * share))


def request_body(
    settings: EndpointConfig, messages: Sequence[Message], stop: Sequence[str] = ()
) -> dict[str, Any]:
    """What is sent: the chat, strings that end the answer, and of the sampling settings those that have a
    value."""
    body: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
    if stop:
        body["stop"] = list(stop)
    for name in ("temperature", "top_p", "max_tokens"):
        if (value := getattr(settings, name)) is not None:
            body[name] = value
    return {**body, **settings.extra_body}


def read_completion(body: Any, url: str, stop: Sequence[str] = ()) -> ChatAnswer:
    """The answer in a chat completion, and its thinking part where the server has taken that out
    (`reasoning_content`, in newer servers `reasoning`). The one of `stop` that ended the answer is put behind
    it: servers leave it out."""
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
