"""Log-probabilities of a whole micro-batch in one operation."""

from __future__ import annotations


def use_whole_batch_log_probs() -> None:
    """Let verl take the log-softmax of all tokens at once.

    Upstream behaviour: without flash-attn, `verl.utils.torch_functional.logprobs_from_logits_v2` walks
    over the first dimension to save memory. The engine hands it one row per token, so every token becomes
    its own node of the autograd graph: with a small vocabulary that is most of the update's time. verl's
    own `logprobs_from_logits_naive` gives the same numbers.
    """
    from verl.utils import torch_functional

    torch_functional.logprobs_from_logits_v2 = torch_functional.logprobs_from_logits_naive
