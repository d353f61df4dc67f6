"""The numbers of a model that memory depends on, from its Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marsrl_verl.config import hf_folder
from marsrl_verl.config.tables import read_table


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    parameters: int
    layer_parameters: int
    """Parameters of one layer, all experts included."""
    feed_forward: int
    """Width of the feed-forward part, or of one expert."""
    experts_per_token: int = 0
    """0: the feed-forward part has no experts."""
    query_norms: bool = False
    """Queries and keys are normalised."""
    tied: bool = False
    """Input and output embeddings are the same parameters."""
    linear_ends: int = 0
    """Inputs and outputs of a layer's linear maps together, experts apart: an adapter of rank r on all of
    them has r times as many parameters."""


PUBLISHED: dict[str, dict[str, Any]] = read_table("published_models")
"""Contents of `config.json` of the models that our presets name, for plans made where the model is not."""

_KNOWN_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


def shape_from_config(config: Mapping[str, Any]) -> ModelShape | None:
    """Sizes from the content of a `config.json`; None for an architecture that is not known here."""
    kind = config.get("model_type")
    if kind not in _KNOWN_TYPES:
        return None
    layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * head_size, kv_heads * head_size
    biased, norms = kind == "qwen2" or bool(config.get("attention_bias")), kind in ("qwen3", "qwen3_moe")
    attention = 2 * hidden * (queries + keys) + (queries + 2 * keys) * biased + 2 * head_size * norms
    vocabulary, experts = int(config["vocab_size"]), int(config.get("num_experts") or 0)
    wide = int(config["moe_intermediate_size" if experts else "intermediate_size"])
    feed_forward = 3 * hidden * wide * max(1, experts) + hidden * experts
    layer, tied = attention + feed_forward + 2 * hidden, bool(config.get("tie_word_embeddings"))
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=vocabulary,
        parameters=vocabulary * hidden * (1 if tied else 2) + layers * layer + hidden,
        layer_parameters=layer,
        feed_forward=wide,
        # transformers' own number where the file says none.
        experts_per_token=int(config.get("num_experts_per_tok") or 8) if experts else 0,
        query_norms=norms,
        tied=tied,
        linear_ends=4 * hidden + 2 * (queries + keys) + (0 if experts else 3 * (hidden + wide)),
    )


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of a layer's experts in configurations."""
_EXPERTS_IN_NAME = re.compile(r"-A\d+(\.\d+)?B\b|mixtral|\bmoe\b", re.IGNORECASE)
"""Matches hub names of models with experts: `Qwen3-30B-A3B` has 3B active parameters."""


def has_experts(model: Any) -> bool:
    """True if a model, by its folder or its name on a hub, has layers of experts: by its `config.json`, and
    by its name where it is not here. A configuration that can't be read is reported elsewhere."""
    try:
        config = hf_folder.known_config(model)
    except ValueError:
        return False
    if config is None:
        return hf_folder.is_hub_id(str(model)) and bool(_EXPERTS_IN_NAME.search(str(model)))
    # A model of texts and images has its text model's apart.
    nodes = [node for node in (config, config.get("text_config")) if isinstance(node, Mapping)]
    counts = [node.get(name) for node in nodes for name in _EXPERTS]
    return any(isinstance(count, int) and count > 1 for count in counts)


def largest_weight(config: Mapping[str, Any]) -> int:
    """Elements of the largest weight by the content of a `config.json`: the embedding, a layer's experts in
    one where there are some, or a feed-forward matrix; 0 where it does not say. Of a model of texts and
    images it is the text model's."""
    if isinstance(text := config.get("text_config"), Mapping):
        return largest_weight({**text, "vocab_size": text.get("vocab_size") or config.get("vocab_size")})
    experts = max(int(config.get(name) or 0) for name in _EXPERTS)
    wide = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
    others = (int(config.get(name) or 0) for name in ("vocab_size", "intermediate_size"))
    return int(config.get("hidden_size") or 0) * max(experts * 2 * wide, *others)
