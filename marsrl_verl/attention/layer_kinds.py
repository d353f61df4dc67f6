"""Kinds of a model's layers, by its Hugging Face configuration; imports no library for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
MEASURED = frozenset({FULL, SLIDING})
"""Kinds for which there is FCI: attention to all earlier tokens, or to those in a window."""


def layer_kinds(config: Any) -> frozenset[str]:
    """Returns the kinds of the layers, in transformers' words, by a transformers configuration or the content
    of a `config.json`. For a model of texts and images the text model's part counts."""
    text = _text_part(config)
    named = _get(text, "layer_types") or _get(text, "layers_block_type")
    if named:
        return frozenset(str(kind) for kind in named)
    # Older architectures name the window only, and some of these have a switch for it.
    if _get(text, "attention_chunk_size"):
        return frozenset({CHUNKED})
    if _get(text, "sliding_window") and _get(text, "use_sliding_window", True):
        return frozenset({SLIDING})
    return frozenset({FULL})


def without_influence(config: Any) -> list[str]:
    """The kinds of layers for which there is no FCI, sorted."""
    return sorted(layer_kinds(config) - MEASURED)


def hidden_layers(config: Any) -> int:
    """Number of layers of the (text) model. Raises ValueError if the configuration does not say."""
    count = _get(_text_part(config), "num_hidden_layers")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{type(config).__name__} has num_hidden_layers = {count}, expected 1 or more")
    return count


def _text_part(config: Any) -> Any:
    if isinstance(config, Mapping):
        inner = config.get("text_config")
        return inner if isinstance(inner, Mapping) else config
    return config.get_text_config(decoder=True)


def _get(config: Any, name: str, default: Any = None) -> Any:
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
