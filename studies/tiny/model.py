"""The tiny task's language model: a Qwen3 network of a quarter of a million parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from studies.tiny import tokenizer as vocabulary_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Qwen3Config

HEAD_SIZE = 32
"""The smallest that vLLM's CPU attention accepts."""
CONTEXT_TOKENS = 512


def build_config(hidden: int = 64, layers: int = 4, ids: Mapping[str, int] | None = None) -> Qwen3Config:
    """The network's shape.

    Args:
        hidden: a multiple of the head size.
        ids: every token's; None: the tiny task's.
    """
    from transformers import Qwen3Config

    if hidden % HEAD_SIZE:
        raise ValueError(f"hidden must be a multiple of the head size {HEAD_SIZE}, found {hidden}")
    ids = vocabulary_of.vocabulary() if ids is None else ids
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=len(ids),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_SIZE,
        num_key_value_heads=1,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        rope_theta=200.0,
        bos_token_id=None,
        eos_token_id=ids[vocabulary_of.END],
        pad_token_id=ids[vocabulary_of.PAD],
        initializer_range=0.1,  # at the usual 0.02 so small a network learns many times slower
        dtype="float32",
    )


def build_model(
    seed: int, hidden: int = 64, layers: int = 4, ids: Mapping[str, int] | None = None
) -> PreTrainedModel:
    """A fresh network in float32, its weights a function of `seed`."""
    import torch
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(build_config(hidden, layers, ids)).float()
