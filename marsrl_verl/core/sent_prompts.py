"""How many prompt tokens of a generation round stand after the same beginning as in another of its prompts.

An engine with a prefix cache need read such tokens once only. The count knows nothing of the engine: it is
what a cache without limits of memory or granularity would save inside the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marsrl_verl.core.prefix_tree import distinct_tokens
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


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of all prompts less the distinct ones (`prefix_tree.distinct_tokens`)."""
    return sum(map(len, prompts)) - distinct_tokens(prompts)
