"""A request, and what vLLM answers to one."""

from __future__ import annotations

import numpy as np
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

from marsrl_verl.rollout.generation import Decoding

PROMPT = np.array([5, 6], dtype=np.int32)
DECODING = Decoding(max_tokens=4, temperature=0.7, top_p=0.9, top_k=5)


def answer(
    tokens: list[int], reason: str | None, stop: int | str | None = None, top: int = 0
) -> CompletionOutput:
    """As vLLM makes it with flat log-probs. The sampled token has minus a tenth of its number, the k-th
    likeliest is 100 + k with -k."""
    flat = FlatLogprobs()
    for token in tokens:
        ids = [token, *range(101, 101 + top)]
        flat.append_fast(
            ids, [-token / 10, *(float(-k) for k in range(1, top + 1))], iter(ids), [None] * len(ids)
        )
    return CompletionOutput(0, "", tokens, None, flat, finish_reason=reason, stop_reason=stop)
