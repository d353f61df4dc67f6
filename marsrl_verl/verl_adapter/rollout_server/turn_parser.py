"""verl's tool parsers behind `marsrl_verl.rollout.tool_protocol.chat.TurnParser`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.tool_protocol.chat import CallParser, ParsedCall

_OPENING = {
    CallParser.HERMES: ("<tool_call>",),
    CallParser.QWEN3_CODER: ("<tool_call>", "<function="),
    CallParser.GPT_OSS: (" to=functions.",),
    CallParser.GLM: ("<tool_call>",),
    CallParser.SEED: ("<seed:tool_call>", "<function="),
    CallParser.MINIMAX: ("<minimax:tool_call>", "<invoke "),
    CallParser.KIMI: ("<|tool_call_begin|>",),
    CallParser.DEEPSEEK_V4: ("<｜DSML｜invoke ",),
    CallParser.GEMMA4: ("<|tool_call>",),
}
"""Beginnings of a call in each format; where blocks hold several calls, those of block and call."""


@dataclass(frozen=True, slots=True)
class VerlTurnParser:
    """One of verl's parsers. Upstream behaviour: a parser decodes in a thread of the event loop's executor,
    while prompts are tokenised in the loop itself, and a fast tokenizer must not be used from two threads at
    a time, so it has its own. Some parsers raise on what they can't read, others leave it out and log it."""

    parser: Any
    """verl's `ToolParser`."""
    stop: tuple[str, ...]
    opening: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, tokenizer: Any) -> VerlTurnParser:
        """The parser of that name; ValueError: verl has none."""
        parser = ToolParser.get_tool_parser(name, copy.deepcopy(tokenizer))
        stop = tuple(
            str(tokenizer.convert_ids_to_tokens(one)) for one in parser.stop_token_ids if one is not None
        )
        ends = {tokenizer.eos_token, None, ""}
        return cls(parser, tuple(one for one in stop if one not in ends), _OPENING[CallParser(name)])

    async def calls(self, turn: TokenIds, schemas: Sequence[Mapping[str, Any]]) -> list[ParsedCall]:
        """See `TurnParser`."""
        try:
            _, calls = await self.parser.extract_tool_calls(turn.tolist(), _known(schemas))
        except Exception:  # what a model writes is data: `ChatProtocol` tells it of what can't be read
            return []
        return [ParsedCall(str(one.name), str(one.arguments), one.tool_call_id) for one in calls]


def _known(schemas: Sequence[Mapping[str, Any]]) -> list[OpenAIFunctionToolSchema]:
    """The schemas as verl's parsers read them, which look up arguments' types in them. Upstream behaviour:
    verl's class wants a description, and a `type` of every argument, which JSON Schema does not (`anyOf`);
    arguments of other tools are taken as the model wrote them."""
    found = []
    for one in schemas:
        with suppress(ValidationError):
            found.append(OpenAIFunctionToolSchema.model_validate(dict(one)))
    return found
