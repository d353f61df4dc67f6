"""How many prompt tokens of a generation round stand after the same beginning as in another of its prompts.

An engine with a prefix cache need read such tokens once only. The count knows nothing of the engine: it is
what a cache without limits of memory or granularity would save inside the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from marsrl_verl.core.types import FinishReason, Sample

_NOT_SENT = frozenset({FinishReason.PROMPT_TOO_LONG, FinishReason.REFUSED, FinishReason.ERROR})


def prompts_sent(samples: Iterable[Sample]) -> list[list[int]]:
    """What the engine was given to read for each sample in the round that the sample came from: the prompt
    and the response before the last segment. Requests that did not reach an engine of ours are left out."""
    return [
        sample.prompt_ids + sample.response_ids[: len(sample.response_ids) - sample.new_tokens]
        for sample in samples
        if sample.finish_reason not in _NOT_SENT and not sample.external
    ]


def distinct_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Tokens that stand after a beginning which no other prompt has, or the first of those that have it: the
    nodes of the prompts' trie. Linear in their total length, but for sorting.

    Args:
        prompts: token ids from 0 to 2**32 - 1.

    Returns:
        A count, at most the number of tokens.
    """
    # Big-endian numbers sort as bytes in the order of the token ids, and bytes compare fast. Sorted, a prompt
    # shares with its left neighbour as much as with any prompt before it.
    ordered = sorted({np.asarray(prompt, dtype=">u4").tobytes() for prompt in prompts})
    found, left = 0, np.empty(0, dtype=np.uint32)
    for one in ordered:
        right = np.frombuffer(one, dtype=np.uint32)
        found += len(right) - _common_beginning(left, right)
        left = right
    return found


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of all prompts less the distinct ones."""
    return sum(map(len, prompts)) - distinct_tokens(prompts)


def _common_beginning(left: np.ndarray, right: np.ndarray) -> int:
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
