"""OpenAI's chat completions: what a client may request, and the form of a run's answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from marsrl_verl.core.request import Message, Problem
from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.data.problems import problem_key, question_of, repaired_messages
from marsrl_verl.evaluation.runs import Call, Evaluation, Run

Usage = Mapping[str, Counter[str]]
"""Tokens by role: `prompt_tokens`, `completion_tokens`."""


class _Model(BaseModel):
    # A field that would have no effect is rejected.
    model_config = ConfigDict(extra="forbid")


class TextPart(_Model):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(_Model):
    """A message of the chat in a request."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: None = None

    def plain(self) -> Message:
        """Returns the message in the form that prompts have."""
        parts = self.content if isinstance(self.content, str) else "".join(one.text for one in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": valid_unicode(parts)}


class StreamOptions(_Model):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(_Model):
    """The format of an answer."""

    type: Literal["text"]


class ChatRequest(_Model):
    """A request of a client: the problem is the last user message; sampling settings are for all roles."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    # What has no effect may be said.
    n: Literal[1, None] = None
    logprobs: Literal[False, None] = None
    frequency_penalty: float | None = Field(None, ge=0.0, le=0.0)
    presence_penalty: float | None = Field(None, ge=0.0, le=0.0)
    store: Literal[False, None] = None
    response_format: TextFormat | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def response_tokens(self) -> int | None:
        """Limit of tokens of each response of a role."""
        given = [one for one in (self.max_tokens, self.max_completion_tokens) if one is not None]
        return min(given, default=None)

    @property
    def stops(self) -> list[str]:
        """Strings before which the solution that clients get ends."""
        return [self.stop] if isinstance(self.stop, str) else [one for one in self.stop or () if one]

    def problem(self) -> Problem:
        """The problem, without a reference. ValueError: there is no user message."""
        messages = repaired_messages([one.plain() for one in self.messages])
        last = max((k for k, one in enumerate(messages) if one["role"] == "user"), default=0)
        question = question_of(messages)
        others = messages[:last] + messages[last + 1 :]
        key = problem_key(question, others)
        return Problem(key, question, "", "chat", tuple(messages), has_reference=False)


class RunFailedError(RuntimeError):
    """A request of the run failed, so that there is no answer."""


def usage_of(one: Trajectory) -> dict[str, Counter[str]]:
    """Tokens by role; what tools and templates wrote in a response is read, as a prompt is. An endpoint's
    are not known, and a prompt that was too long is not read."""
    found: dict[str, Counter[str]] = {}
    if one.finish is FinishReason.PROMPT_TOO_LONG:
        return found
    for sequence in one.sequences:
        written = int(sequence.response_mask.sum())
        read = len(sequence.prompt_ids) + len(sequence) - written
        own = found.setdefault(sequence.role, Counter())
        own.update(prompt_tokens=read, completion_tokens=written)
    return found


def usage_of_all(run: Run) -> dict[str, Counter[str]]:
    """Tokens by role of all calls."""
    found: dict[str, Counter[str]] = {}
    for call in run.calls:
        for role, counted in usage_of(call.trajectory).items():
            found.setdefault(role, Counter()).update(counted)
    return found


def told(call: Call, evaluation: Evaluation) -> dict[str, Any]:
    """An entry of the trail: who wrote what, and what the log of an evaluation says of it, but for what it
    was given."""
    request, one = call.request, call.trajectory
    record = evaluation.record(request, one).items()
    return {
        "stage": request.stage,
        "role": request.role,
        "text": one.text,
        "finish": one.finish.value,
        **{name: value for name, value in record if name not in request.inputs and value is not None},
        **({"detail": one.detail} if one.detail else {}),
        **({"events": one.events} if one.events else {}),
        "usage": {role: dict(counted) for role, counted in usage_of(one).items()},
    }


class Answer:
    """A run that has ended, in the form that clients get.

    Raises:
        ValueError: the problem is longer than the first role takes.
        RunFailedError: the run has no answer since a request of it failed.
    """

    def __init__(self, asked: ChatRequest, run: Run, evaluation: Evaluation, name: str) -> None:
        last = run.calls[-1].trajectory
        if run.skipped:
            raise ValueError(last.detail or "the problem is longer than the first role takes")
        if run.answer is None and (last.finish.failed or last.finish is FinishReason.REFUSED):
            raise RunFailedError(f"{last.finish.value}: {last.detail or 'no detail is known'}")
        self.asked, self.run, self.evaluation, self.name = asked, run, evaluation, name
        self.id, self.created = f"chatcmpl-{name}", int(time.time())

    @property
    def text(self) -> str:
        """The final solution, up to the first stop string; empty where the run came to none."""
        text = "" if self.run.answer is None else self.run.answer.final_text
        found = [place for one in self.asked.stops if (place := text.find(one)) >= 0]
        return text[: min(found, default=len(text))]

    @property
    def finish(self) -> str:
        """OpenAI's finish reason: `length` where a limit kept the run from an answer."""
        cut = self.run.calls[-1].trajectory.finish in (FinishReason.LENGTH, FinishReason.LIMIT)
        return "length" if self.run.answer is None and cut else "stop"

    def usage(self) -> dict[str, int]:
        """Token counts of all roles together."""
        total = sum(usage_of_all(self.run).values(), Counter())
        prompt, completion = total["prompt_tokens"], total["completion_tokens"]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def about_run(self, *, trail: bool) -> dict[str, Any]:
        """Why the run ended, tokens by role, and its calls."""
        found: dict[str, Any] = {
            "end": str(getattr(self.run.end, "value", self.run.end)),
            "usage": {role: dict(counted) for role, counted in usage_of_all(self.run).items()},
        }
        return {**found, "trail": [told(one, self.evaluation) for one in self.run.calls]} if trail else found

    def completion(self) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None}
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.asked.model,
            "choices": [choice],
            "usage": self.usage(),
            "run": self.about_run(trail=True),
        }


def chunk(
    asked: ChatRequest, name: str, delta: Mapping[str, Any], finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """A piece of a stream."""
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [{"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}],
        **more,
    }
