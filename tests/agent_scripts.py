"""Agents without a model: what they write is a function of what they have read. Tools answer in an order that
a seed decides."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scripted_client import PieceTokenizer

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import TopLogProbs
from marsrl_verl.rollout.tool_protocol.chat import ParsedCall
from marsrl_verl.testing.client import AddedTokens, ScriptedClient
from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, function_schema

LIMITS = Sampling(max_new_tokens=600, max_prompt_tokens=80)
UNSURE = "?"
"""A character that could have been another one."""


def schema(name: str, argument: str = "code") -> Mapping[str, Any]:
    return function_schema(name, name, {argument: {"type": "string"}}, (argument,))


class Tokenizer(PieceTokenizer):
    """Whose vocabulary does not grow, and whose end of turn is a control token."""

    def __init__(self, size: int = 1) -> None:
        super().__init__(size)
        AddedTokens.__init__(self, ("<|turn|>", "<think>", "</s>"))

    def __len__(self) -> int:
        return sys.maxunicode + 1000


@dataclass
class FakeTools:
    """Stands for a `Toolbox`: the length of what is asked, after some turns of the event loop."""

    names: tuple[str, ...] = ("python", "search")
    seed: int = 0
    answer: Callable[[ToolCall], ToolResult] | None = None
    called: list[ToolCall] = field(default_factory=list)

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        arguments = {"python": "code", "search": "query"}
        return tuple(schema(name, arguments.get(name, "text")) for name in self.names)

    async def call(self, call: ToolCall) -> ToolResult:
        self.called.append(call)
        for _ in range(int(derive_generator(self.seed, call.call_id).integers(0, 40))):
            await asyncio.sleep(0)
        if call.name not in self.names:
            return ToolResult("There is no such tool.", ToolOutcome.REFUSED, attempts=0)
        if self.answer is not None:
            return self.answer(call)
        return ToolResult(str(len(next(iter(call.arguments.values())))))

    def fork(self, parent: str, child: str, calls: int) -> None:
        """It has no state that a fork would need."""


Says = Callable[[int, int], str]
"""What trajectory k writes in its turn number t; the turn that has no call is its last."""


@dataclass
class AgentClient(ScriptedClient):
    """Tells the two likeliest tokens: `?` could have been another one. Answers come in an order that a seed
    decides."""

    policy: Any = None
    says: Says = lambda k, turn: ""
    seed: int | None = None
    after: str = "</result>"

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        if self.seed is not None:
            for _ in range(int(derive_generator(self.seed, name, len(prompt_ids)).integers(0, 40))):
                await asyncio.sleep(0)
        k = int(name.rpartition("#")[2])
        own = ScriptedClient(
            lambda prompt: self._rest(prompt, k), self.tokenizer, self.version, self.requests
        )
        found = await own.generate(policy, prompt_ids, decoding, session=session, name=name, n=n)
        return [replace(one, top=self._top(one, decoding.top_log_probs)) for one in found]

    def _rest(self, prompt: str, k: int) -> str:
        turn = prompt.rpartition("<assistant>")[2]
        before, _, run = turn.rpartition(self.after)
        text = self.says(k, before.count(self.after) + bool(self.after in turn))
        assert text.startswith(run), (text, run)
        return text[len(run) :]

    def _top(self, one, count):
        if not count:
            return None
        unsure = [UNSURE in self.tokenizer.decode([token]) for token in one.token_ids.tolist()]
        likeliest = np.where(unsure, 0.5, 0.99)[:, None]
        log_probs = np.log(np.concatenate([likeliest, 0.99 - likeliest + 1e-9], axis=1))
        return TopLogProbs(np.zeros(log_probs.shape, np.int32), log_probs.astype(np.float32))


def call(name: str, text: str) -> str:
    return f"<{name}>{text}</{name}>"


class BraceParser:
    """Implements `TurnParser` for `{name: {"argument": …}}`."""

    stop: tuple[str, ...] = ()
    opening: tuple[str, ...] = ("{python:", "{nothing:")

    def __init__(self, tokenizer: PieceTokenizer) -> None:
        self.tokenizer = tokenizer

    async def calls(self, turn, schemas):
        found = re.findall(r"\{(\w+): (\{[^}]*\})\}", self.tokenizer.decode(turn.tolist()))
        return [ParsedCall(name, arguments) for name, arguments in found]


class ChatClient(AgentClient):
    """Turns of the assistant in place of results in the answer."""

    def _rest(self, prompt: str, k: int) -> str:
        *before, run = prompt.split("<assistant>")
        text = self.says(k, len(before) - 1)
        assert text.startswith(run), (text, run)
        return text[len(run) :]


def ends(members) -> dict[int, FinishReason]:
    return {one.number: one.finish for one in members}
