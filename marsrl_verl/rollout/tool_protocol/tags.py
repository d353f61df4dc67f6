"""Calls as tags inside one answer: `<python>…</python>`, then `<result>…</result>`, and the model writes on.

What a call's tag encloses is the tool's one required argument, or its only one; of a tool with several it is
a JSON object of them. So may be a call with optional arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.tool_protocol.base import RequestedCall, read_arguments

THINK, ANSWER, RESULT = "think", "answer", "result"
RESERVED = frozenset({THINK, ANSWER, RESULT})
"""Tags with a meaning of their own, which no tool may have as its name."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
TAG_NAMES = f"lower-case letters, digits and _, and none of {', '.join(sorted(RESERVED))}"


def is_tag(name: str) -> bool:
    """True if a tool of this name can be called by a tag."""
    return name not in RESERVED and _NAME.fullmatch(name) is not None


def wrapped(text: str) -> str:
    """A result as it stands in the answer."""
    return f" <{RESULT}>\n{text}\n</{RESULT}>"


class TagProtocol:
    """Implements `ToolProtocol` for the tools of these schemas. Raises ValueError: a tool has a name that can
    be no tag."""

    template_tools: tuple[Mapping[str, Any], ...] = ()

    def __init__(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        functions = {one["function"]["name"]: one["function"] for one in schemas}
        self._arguments = {name: _only_argument(one) for name, one in functions.items()}
        self._optional = {name: _optional_arguments(one) for name, one in functions.items()}
        for name in self._arguments:
            if not is_tag(name):
                raise ValueError(f"tool {name!r} can't be called by a tag: expected {TAG_NAMES}")
        self.stop = tuple(f"</{name}>" for name in self._arguments)
        self.tags = frozenset({*RESERVED, *self._arguments})

    async def calls(self, turn: TokenIds, stop: str | None, tokenizer: ChatTokenizer) -> list[RequestedCall]:
        """The call that the closing tag ends: what stands after the last opening tag before it."""
        if stop is None:
            return []
        name = stop[2:-1]
        before, _, _ = tokenizer.decode(turn).partition(stop)
        _, opened, body = before.rpartition(f"<{name}>")
        if not opened:
            return [RequestedCall(name, problem=f"{stop} closes nothing: a call is <{name}>…{stop}.")]
        return [self._call(name, tokenizer.without_control_tokens(body).strip())]

    def _call(self, name: str, body: str) -> RequestedCall:
        argument = self._arguments[name]
        if not body:
            return RequestedCall(name, problem=f"<{name}></{name}> is empty.")
        if argument is not None:
            return RequestedCall(name, self._with_optional(name, argument, body) or {argument: body})
        found = read_arguments(body)
        if isinstance(found, str):
            return RequestedCall(name, problem=f"{name} takes a JSON object of its arguments: {found}.")
        return RequestedCall(name, found)

    def _with_optional(self, name: str, argument: str, body: str) -> Mapping[str, Any] | None:
        """The arguments of a JSON object with the required one and an optional one; None: it is the required
        one itself."""
        optional = self._optional[name] - {argument}
        found = read_arguments(body) if optional and body.startswith("{") else {}
        is_call = isinstance(found, dict) and argument in found and found.keys() <= {argument, *optional}
        return found if isinstance(found, dict) and is_call else None

    def append(self, chat: Conversation, results: Sequence[tuple[RequestedCall, str]]) -> None:
        """Appends the results after the call, inside the answer."""
        chat.append_text("".join(wrapped(text) for _, text in results))


def _only_argument(function: Mapping[str, Any]) -> str | None:
    """The argument that a tag can enclose as it is: a text, the only required one or the only one."""
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    names = list(parameters.get("required") or properties)
    if len(names) == 1 and properties.get(names[0], {}).get("type", "string") == "string":
        return str(names[0])
    return None


def _optional_arguments(function: Mapping[str, Any]) -> frozenset[str]:
    """The arguments that a call may leave out."""
    parameters = function.get("parameters") or {}
    return frozenset(parameters.get("properties") or {}) - frozenset(parameters.get("required") or ())
