"""Folders of models with random weights, of real shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

QWEN3_06B = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
}
"""Qwen3-0.6B's."""
SMALL = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512,
}  # fmt: skip
"""For processors."""
PLANNED = {**SMALL, "vocab_size": QWEN3_06B["vocab_size"]}
"""For plans, which read the shape alone; a vocabulary as small as `SMALL`'s is taken for the tiny task's."""


def random_model(folder: Path, shape: Mapping[str, float] = QWEN3_06B, *, tied: bool = True) -> Path:
    """A Qwen3 network of random weights in bfloat16 with the tiny task's tokenizer, in which every further
    id is a word of its own: verl keeps its engine from ids that the tokenizer does not know, and then engine
    and trainer would normalise over different vocabularies.

    Args:
        folder: where it is written; made.
        shape: what differs from Qwen3-0.6B.
        tied: whether the head has the embedding's weights.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from studies.tiny.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    config = Qwen3Config(
        **{**QWEN3_06B, **shape},
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    known = json.loads(file.read_text())
    words = known["model"]["vocab"]
    words |= {f"word{number} ": number for number in range(len(words), config.vocab_size)}
    file.write_text(json.dumps(known))
    return folder
