"""A policy without a model: what follows on a text is a function of that text. A token is a character."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Completion, Decoding

END = 3
"""The id that ends a turn; its text is `</s>`."""


@dataclass(frozen=True)
class AddedToken:
    """An entry of a tokenizer's table of added tokens."""

    content: str
    special: bool = True

    def __str__(self) -> str:
        return self.content


class AddedTokens:
    """A tokenizer's tables of added tokens, all of them special ones."""

    chat_template: str | None = None
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, special: tuple[str, ...] = ()) -> None:
        self.added_tokens_decoder = dict(enumerate(map(AddedToken, special)))


class CharacterTokenizer(AddedTokens):
    """Tokens whose ids are code points. Token 3 ends a turn."""

    eos_token_id = END

    def __init__(self) -> None:
        super().__init__(("<|turn|>", "<think>"))

    def __len__(self) -> int:
        return sys.maxunicode + 1

    def apply_chat_template(
        self, messages, *, add_generation_prompt, tokenize, return_dict=False, tools=(), **kwargs
    ):
        text = "".join(f"<{m['role']}>{m['content']}" + "</s>" * (m["role"] == "assistant") for m in messages)
        text = "".join(f"[{tool.get('function', tool)['name']}]" for tool in tools) + text
        text += "<assistant>" * add_generation_prompt + kwargs.get("suffix", "")
        return {"input_ids": self.encode(text)} if tokenize else text

    def encode(self, text, add_special_tokens=False):
        first, *others = text.split("</s>")
        ids = self._plain(first)
        for part in others:
            ids += [END, *self._plain(part)]
        return ids

    def _plain(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids, **_kwargs):
        return "".join("</s>" if i == END else self._text(i) for i in ids)

    def _text(self, i: int) -> str:
        return chr(i)


@dataclass
class CharacterBuilder:
    """Implements `TemplateBuilder` for the template above."""

    tokenizer: CharacterTokenizer

    def merge(self, previous, updated, tail, tools):
        added = updated[len(previous) :]
        text = "".join(f"<{m['role']}>{m['content']}" for m in added) + "<assistant>"
        return [*tail, *self.tokenizer.encode(text)]


FORCED = '{"}'
"""Characters that a grammar leaves no choice about."""

Policy = Callable[[str], str]
"""Returns the continuation of a text, `</s>` included where the turn ends. A pure function that is
consistent: the continuation of a text and the beginning of its continuation is the rest of it."""


@dataclass
class ScriptedClient:
    """Implements `GenerationClient`; keeps the requests."""

    policy: Policy
    tokenizer: CharacterTokenizer = field(default_factory=CharacterTokenizer)
    version: int = 7
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        tokenizer = self.tokenizer
        prompt = tokenizer.decode(prompt_ids.tolist())
        asked = {"policy": policy, "prompt": prompt, "decoding": decoding}
        self.requests.append({**asked, "session": session, "name": name, "n": n})
        await asyncio.sleep(0)
        ids = tokenizer.encode(self.policy(prompt))
        finish, stop = FinishReason.STOP, None
        for count in range(1, len(ids) + 1):
            text = tokenizer.decode(ids[:count])
            stop = next((one for one in decoding.stop if one in text), None)
            if stop is not None:
                ids = ids[:count]
                break
        if len(ids) > decoding.max_tokens:
            ids, finish, stop = ids[: decoding.max_tokens], FinishReason.LENGTH, None
        log_probs = np.array([-0.01 * (token % 50) - 0.01 for token in ids], dtype=np.float32)
        forced = None
        if decoding.structured is not None:
            forced = np.array([tokenizer.decode([token]) in FORCED for token in ids], dtype=np.bool_)
        found = Completion(token_ids(ids), log_probs, finish, stop, self.version, forced=forced)
        return [found] * n


def asked_messages(
    name: str, asked: Mapping[str, RolloutRequest], n: int
) -> list[tuple[RolloutRequest, str, int]]:
    """(request, role, k) of each message that an engine's request of this name is for: one of each of `n`
    trajectories, or the next one of a trajectory that goes on."""
    if name in asked:
        return [(asked[name], asked[name].role, k) for k in range(n)]
    group, _, rest = name.rpartition("#")
    k, _, role = rest.partition("~")[0].partition("/")
    return [(asked[group], role or asked[group].role, int(k))]
