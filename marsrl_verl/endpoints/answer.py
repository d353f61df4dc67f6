"""An answer of a model of which only text is known."""

from __future__ import annotations

from dataclasses import dataclass

from marsrl_verl.core.trajectory import FinishReason

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
"""Regular ends as vLLM and OpenAI-compatible endpoints name them."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer, as it came."""

    content: str
    """The answer; a thinking part in `<think>` tags may stand before it."""
    reasoning: str = ""
    """The thinking part where it came apart from the answer."""
    finish: FinishReason = FinishReason.STOP
    detail: str | None = None
    """Why there is no regular answer."""


def failed(note: str, reason: FinishReason = FinishReason.ERROR) -> ChatAnswer:
    """An answer that did not come, with the reason for the log."""
    return ChatAnswer("", finish=reason, detail=note)
