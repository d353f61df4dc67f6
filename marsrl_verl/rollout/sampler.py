"""Source of a role's tokens, and the search for the stop string that ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sanitize import REPLACEMENT
from marsrl_verl.core.sequence import TokenIds, token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, TemplateBuilder
from marsrl_verl.rollout.generation import Completion, Decoding, GenerationClient, TopLogProbs

_TOKENS_PER_CHARACTER = 4
"""Most tokens that one character is spelt with: a byte each."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Source of a role's tokens."""

    client: GenerationClient
    chat: ChatTokenizer
    builder: Callable[[], TemplateBuilder]
    """Returns the builder of the template's additions; called by the first chat that grows."""
    role: str
    policy: str
    sampling: Sampling
    session: str
    """Requests of one session find their common beginning in one server's cache."""
    group_id: str
    name_suffix: str
    """Tells the requests of a further role, or of a further conversation of it, from those of the first."""
    sampled: Counter[int]
    """By trajectory, the tokens that all of its conversations have sampled in this round."""

    async def ask(
        self, ids: TokenIds, name: str, begins_at: int, n: int, decoding: Decoding
    ) -> list[Completion]:
        """Completions of one engine request; its seed is a function of the name and of where it begins."""
        seeded = replace(decoding, seed=self.sampling.request_seed(name, begins_at))
        return await self.client.generate(self.policy, ids, seeded, session=self.session, name=name, n=n)

    def decoding(self, max_tokens: int, stop: Sequence[str], top: int, structured: Any) -> Decoding:
        """Returns the decoding of a request, without a seed."""
        one = self.sampling
        return Decoding(
            max_tokens,
            one.temperature,
            one.top_p,
            one.top_k,
            stop=tuple(stop),
            top_log_probs=top,
            structured=structured,
            repetition_penalty=one.repetition_penalty,
            log_probs=one.log_probs,
        )


def nothing(finish: FinishReason) -> Completion:
    """A completion without tokens."""
    return Completion(token_ids([]), np.zeros(0, dtype=np.float32), finish)


def stopped(completion: Completion, run: TokenIds, stop: Sequence[str], chat: ChatTokenizer) -> Completion:
    """The completion up to the token that completes a stop string which an earlier request of the same run
    began: the engine sees the text of its own request alone."""
    reach = _TOKENS_PER_CHARACTER * (max(map(len, stop), default=0) - 1)
    before = run[-reach:].tolist() if reach > 0 else []
    after = completion.token_ids[:reach].tolist() if before else []
    if not after:
        return completion
    known = len(chat.decode(before).rstrip(REPLACEMENT))  # the last character may be there in part
    if _first(stop, chat.decode(before + after), known):
        for count in range(1, len(after) + 1):
            if found := _first(stop, chat.decode(before + after[:count]), known):
                return _shortened(completion, count, found)
    return completion


def _first(stop: Sequence[str], text: str, known: int) -> str | None:
    """The stop string that ends in a text after its first `known` characters, of several the first to end."""
    ends = [(text.find(one, max(0, known - len(one) + 1)) + len(one), one) for one in stop]
    found = [(end, one) for end, one in ends if end >= len(one)]
    return min(found)[1] if found else None


def _shortened(completion: Completion, count: int, stop: str) -> Completion:
    top = completion.top
    return replace(
        completion,
        token_ids=completion.token_ids[:count],
        log_probs=completion.log_probs[:count],
        finish=FinishReason.STOP,
        stop=stop,
        top=None if top is None else TopLogProbs(top.ids[:count], top.log_probs[:count]),
        forced=None if completion.forced is None else completion.forced[:count],
    )
