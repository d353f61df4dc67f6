"""Number of a generation round's prompt tokens that another of its prompts has after the same beginning.

An engine with a prefix cache reads such tokens only once. The count is independent of the engine: it is
what a cache without limits of memory or granularity would save inside the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from marsrl_verl.core.prefix_tree import distinct_tokens
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.trajectory import FinishReason, Trajectory

_NOT_SENT = frozenset({FinishReason.PROMPT_TOO_LONG, FinishReason.REFUSED, FinishReason.ERROR})


def engine_prompts(trajectories: Iterable[Trajectory]) -> list[TokenIds]:
    """The engine's input for each sequence in the round that it came from: the prompt and the response before
    the last part. Requests that did not reach an engine of ours are left out."""
    return [
        np.concatenate([one.prompt_ids, one.response_ids[: len(one) - one.new_tokens]])
        for trajectory in trajectories
        if trajectory.finish not in _NOT_SENT
        for one in trajectory.sequences
    ]


def shared_tokens(prompts: Sequence[TokenIds]) -> int:
    """Tokens of all prompts less the distinct ones (`prefix_tree.distinct_tokens`)."""
    return sum(map(len, prompts)) - distinct_tokens(prompts)
