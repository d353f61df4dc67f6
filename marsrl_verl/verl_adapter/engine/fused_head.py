"""Log-probabilities of verl's FSDP engine: fused kernels for a head of the model's own and for one that is
the embedding's, and logits without flash-attn.

Fused kernels take the head's weight and compute log-probabilities and entropies from it, a few hundred tokens
at a time, so that the logits of a micro-batch never exist at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.utils import fsdp_utils
from verl.utils import torch_functional as logits_functional
from verl.utils.experimental import torch_functional
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from marsrl_verl.attention.node_values import at_least_float32


class FusedHeadFSDPEngine(FSDPEngineWithLMHead):
    """Upstream behaviour: FSDP2 gathers a module's weights when it is called, `apply_fsdp2` makes a head that
    is not tied a unit of its own, and fused kernels read `lm_head.weight` without calling it: "aten.mm got
    mixed torch.Tensor and DTensor"."""

    def _build_fsdp_module(self, module: Any) -> Any:
        """Builds as upstream; with fused kernels a call of the model gathers the head's weight, too."""
        if not self.model_config.use_fused_kernels:
            return super()._build_fsdp_module(module)
        torch_functional.FusedLinearForPPOFunction = FusedLinear
        with _head_in_the_root_unit():
            return super()._build_fsdp_module(module)


def whole_batch_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the labels, (T,), from logits, (T, V); in float32 where those are half as wide."""
    return -torch.nn.functional.cross_entropy(
        at_least_float32(logits).flatten(0, -2), labels.flatten(), reduction="none"
    ).view_as(labels)


def use_whole_batch_log_probs() -> None:
    """Takes the log-softmax of all tokens at once where flash-attn is not installed.

    Upstream behaviour: `logprobs_from_logits_v2` walks over the first dimension, a token each, and rounds
    bfloat16's results to bfloat16: a node of the autograd graph and several launches for every token.
    """
    logits_functional.logprobs_from_logits_v2 = whole_batch_log_probs


@contextmanager
def _head_in_the_root_unit() -> Iterator[None]:
    upstream = fsdp_utils._select_fsdp2_wrap_targets

    def without_head(model: torch.nn.Module, *args: Any) -> list[torch.nn.Module]:
        heads = {one for name, one in model.named_modules() if name.rpartition(".")[2] == "lm_head"}
        return [one for one in upstream(model, *args) if one not in heads]

    fsdp_utils._select_fsdp2_wrap_targets = without_head
    try:
        yield
    finally:
        fsdp_utils._select_fsdp2_wrap_targets = upstream


class FusedLinear(torch_functional.FusedLinearForPPOFunction):
    """verl's fused kernel in torch, with the gradient of the head's weight added up in float32.

    Upstream behaviour: it is added up over parts of 512 tokens in the weight's own number format; in bfloat16
    what a part adds is rounded to the sum's last place, the more the more parts there are.
    """

    @staticmethod
    def backward(ctx: Any, dlog_probs: Any, dentropy: Any) -> tuple[Any, ...]:
        """Gradients of hidden states (T, D) or (B, T, D) and weight (V, D)."""
        hidden, weight, labels = ctx.saved_tensors
        for_hidden = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        outer = [None if one is None else one.flatten() for one in (dlog_probs, dentropy)]
        for start in range(0, len(hidden), ctx.chunk_size):
            part = slice(start, start + ctx.chunk_size)
            for_hidden[part], from_part = torch_functional._fused_linear_for_ppo_bwd(
                *(None if one is None else one[part] for one in outer),
                hidden[part],
                weight,
                labels[part],
                ctx.temperature,
            )
            if for_weight is not None:
                for_weight += from_part
        if ctx.orig_ndim == 3:
            for_hidden = for_hidden.view(ctx.orig_batch_size, -1, hidden.shape[-1])
        return for_hidden, None if for_weight is None else for_weight.to(weight.dtype), None, None, None
