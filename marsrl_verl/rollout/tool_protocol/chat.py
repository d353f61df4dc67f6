"""Calls and results as the model's chat template writes them: turns of the assistant and of the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.thinking import CLOSE
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.tool_protocol.base import RequestedCall, read_arguments
from marsrl_verl.settings.choices import Choice


class CallParser(Choice):
    """The formats that verl's parsers read."""

    HERMES = "hermes"
    QWEN3_CODER = "qwen3_coder"
    GPT_OSS = "gpt-oss"
    GLM = "glm"
    SEED = "seed"
    MINIMAX = "minimax"
    KIMI = "kimi"
    DEEPSEEK_V4 = "deepseek_v4"
    GEMMA4 = "gemma4"


_TAGS_OF_FORMATS = {
    "": ("function", "parameter", "invoke", "arg_key", "arg_value"),
    "seed:": ("tool_call", "think"),
    "minimax:": ("tool_call",),
    "｜DSML｜": ("tool_calls", "invoke", "parameter"),
}
"""By what stands before their names: the tags of the formats that are written with tags. Templates of one
format may show another's, so all are taken."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call as a parser reads it."""

    name: str
    arguments: str
    """JSON, as far as the model writes such."""
    call_id: str | None = None


class TurnParser(Protocol):
    """Reads the calls of a turn."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Tokens after which a model that writes a call does not end its turn itself."""

    @property
    def opening(self) -> tuple[str, ...]:
        """Beginnings of a call; a call is spelt with one of them or with all of them."""

    async def calls(self, turn: TokenIds, schemas: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        """The calls in what a model has sampled, in their order; none where it made none that can be read."""


class ChatProtocol:
    """Implements `ToolProtocol` with the parser of the model's format and the tools' schemas."""

    tags = frozenset({"think", "answer", "result", "tools", "tool_call", "tool_calls", "tool_response"}) | {
        f"{space}{name}" for space, names in _TAGS_OF_FORMATS.items() for name in names
    }

    def __init__(self, parser: TurnParser, schemas: Sequence[Mapping[str, Any]]) -> None:
        self._parser = parser
        self.template_tools = tuple(schemas)
        self.stop = parser.stop

    async def calls(self, turn: TokenIds, stop: str | None, tokenizer: ChatTokenizer) -> list[RequestedCall]:
        """Returns the calls that the parser reads. The model is told of arguments that are no JSON object,
        and of calls that begin and that the parser does not read."""
        parsed = await self._parser.calls(turn, self.template_tools)
        missing = self._begun(tokenizer.decode(turn), parsed) - len(parsed)
        return [*map(_requested, parsed), *[_UNREADABLE] * missing]

    def _begun(self, text: str, parsed: Sequence[ParsedCall]) -> int:
        """Counts the calls that begin after the reasoning, without those that arguments quote."""
        answer = text.rpartition(CLOSE)[2]
        counts = [
            answer.count(opening) - sum(one.arguments.count(opening) for one in parsed)
            for opening in self._parser.opening
        ]
        return max(counts, default=0)

    def append(self, chat: Conversation, results: Sequence[tuple[RequestedCall, str]]) -> None:
        """A message of the tool's for each call."""
        messages = []
        for call, text in results:
            message = {"role": "tool", "name": call.name, "content": text}
            messages.append(message if call.call_id is None else {**message, "tool_call_id": call.call_id})
        chat.append(messages)


_UNREADABLE = RequestedCall(
    "unreadable", problem="A call could not be read: it is not written as the tools' instructions say."
)


def _requested(one: ParsedCall) -> RequestedCall:
    found = read_arguments(one.arguments)
    if isinstance(found, str):
        problem = f"The arguments of {one.name} are no JSON object: {found}."
        return RequestedCall(one.name, problem=problem, call_id=one.call_id)
    return RequestedCall(one.name, found, call_id=one.call_id)
