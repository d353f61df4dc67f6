"""Collect FCI from a model's own forward pass, through transformers' registry of attention functions.

For the length of a `with` block, the attention function that the model is configured with is wrapped by one
that calls it and then reads the same queries and keys. Any architecture works whose layers all take their
attention from the registry and let a token see the earlier ones of its sequence, or a window of them; any
other is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.column_sums import ColumnSums, step_influence
from marsrl_verl.attention.flash_lse import FlashLse, tapped_flash_attention
from marsrl_verl.attention.layer_kinds import MEASURED, hidden_layers, without_influence
from marsrl_verl.attention.layout import StepLayout
from marsrl_verl.attention.masks import MaskCheck

_UNSUPPORTED = ("softcap", "s_aux", "indices")
"""Arguments of attention functions that change the softmax or choose keys: FCI without them would be another
attention's."""
_WITHOUT_MASK_CAUSAL = "sdpa"
"""The attention function that, without a mask, lets tokens see the whole row before them; flash-attention is
told of sequences and windows by arguments."""


class InfluenceCollector:
    """The largest influence of every step over the layers and heads seen so far."""

    def __init__(
        self, layout: StepLayout, model_layers: int, backend: FciBackend | str = FciBackend.AUTO
    ) -> None:
        self.layout = layout
        self.layers = 0
        self._model_layers = model_layers
        self._column_sums = ColumnSums(layout, backend)
        self._largest: torch.Tensor | None = None

    def add_layer(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        scale: float,
        window: int | None = None,
        flash: FlashLse | None = None,
    ) -> None:
        """Takes in one layer's queries (B, H, T, D) and keys (B, H_kv, T, D); B x T is the layout's axis of
        tokens, the other arguments are those of `ColumnSums`.

        Args:
            flash: what flash-attention said of its softmax. Not used where it ran on other tokens, as on
                padded rows, from which transformers takes the padding first.
        """
        lse = None
        # Under autocast the products would be taken in half precision.
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            queries, keys = _token_first(query), _token_first(key)
            if flash is not None and flash.values.shape == (queries.shape[1], queries.shape[0]):
                lse, queries, keys = flash.values, queries.to(flash.dtype), keys.to(flash.dtype)
            sums = self._column_sums(queries, keys, scale, lse=lse, window=window)
            influence = step_influence(sums, self.layout)
            self._largest = influence if self._largest is None else torch.maximum(self._largest, influence)
            self.layers += 1

    def by_step(self) -> torch.Tensor:
        """(S,) FCI of the steps of all sequences in order; 0 where a step is not measured.

        Raises:
            RuntimeError: not all layers of the model were seen.
        """
        if self._largest is None:
            raise RuntimeError(
                "no attention was seen in the forward pass: the model does not take its attention function "
                "from transformers' registry, so FCI cannot be computed for it"
            )
        if self.layers % self._model_layers:  # several passes have as many times the layers
            raise RuntimeError(
                f"the attention of {self.layers} layers was seen, but the model has {self._model_layers} "
                "(num_hidden_layers): the others do not take it from transformers' registry, and the largest "
                "influence over a part of the layers is not FCI"
            )
        return self._largest

    def by_token(self) -> torch.Tensor:
        """(N,) the FCI of each token's step; 0 between sequences."""
        values = self.by_step()
        result = torch.zeros(self.layout.total, dtype=values.dtype, device=values.device)
        index = self.layout.token_index
        result[index] = values[self.layout.step_of_token[index]]
        return result


@contextmanager
def collect_influence(
    model: torch.nn.Module, layout: StepLayout, backend: FciBackend | str = FciBackend.AUTO
) -> Iterator[InfluenceCollector]:
    """Wraps the attention of every forward pass of `model` inside the block.

    The pass must see the whole sequences at once (no key-value cache) with causal attention.

    Args:
        model: a transformers model, also wrapped in FSDP.
        layout: sequences and steps of the batch (padded rows end to end, or one packed row).
        backend: what computes the column sums.

    Raises:
        ValueError: the model's attention function is not in the registry, or some of its layers are of a kind
            without FCI; the message names them. In the block: a layer's attention is not the causal one that
            FCI is computed from.
    """
    config: Any = model.config
    name = str(config._attn_implementation)
    original = _function(name, config)
    if others := without_influence(config):
        raise ValueError(
            f"{type(config).__name__} (model type {config.model_type}) has layers of {others}: FCI is "
            f"computed for {sorted(MEASURED)} only, and the largest influence over a part of the layers is "
            "not FCI"
        )
    collector = InfluenceCollector(layout, hidden_layers(config), backend)
    check_mask = MaskCheck(layout)

    def measured(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(module, query, key, value, attention_mask, *args, **kwargs)
        _refuse_other_attention(module, query, key, kwargs)
        scale, window = kwargs.get("scaling"), kwargs.get("sliding_window")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        window = None if window is None else int(window)
        collector.add_layer(query, key, scale, window, tap.take())
        length = query.shape[2]
        if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 4:
            check_mask(attention_mask, length, window)
        elif attention_mask is None and name == _WITHOUT_MASK_CAUSAL:
            check_mask.without_mask(length, window)
        return result

    with tapped_flash_attention() as tap, _registered(name, measured):
        yield collector


def _function(name: str, config: Any) -> Callable[..., Any]:
    registry = ALL_ATTENTION_FUNCTIONS
    if name == "eager" and name not in registry:
        raise ValueError(
            f"{type(config).__name__} uses eager attention, which is not in transformers' registry; FCI "
            "needs attn_implementation sdpa or flash_attention_2"
        )
    if name not in registry:
        raise ValueError(
            f"attention function {name!r} is not in transformers' registry, found {sorted(registry)}"
        )
    return registry[name]


def _refuse_other_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, kwargs: dict[str, Any]
) -> None:
    """Rejects what no mask tells: as in the attention functions, the argument goes before the module's
    own."""
    who = type(module).__name__
    if changed := [name for name in _UNSUPPORTED if kwargs.get(name) is not None]:
        raise ValueError(f"{who} calls its attention with {changed}: FCI has no form for it")
    causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ValueError(f"{who} is not causal: FCI is how much later steps attend to earlier ones")
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{who} has {query.shape[2]} queries and {key.shape[2]} keys: FCI needs whole sequences in one "
            "pass, without a key-value cache and without cross-attention"
        )


@contextmanager
def _registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Has the registry give `function` for `name`. An instance's own entry hides the class's, which is
    what others registered, and is taken away again."""
    local = ALL_ATTENTION_FUNCTIONS._local_mapping
    before = local.get(name)
    local[name] = function
    try:
        yield
    finally:
        if before is None:
            del local[name]
        else:
            local[name] = before


def _token_first(tensor: torch.Tensor) -> torch.Tensor:
    """(B, H, T, D) as (B * T, H, D); a view for one packed row."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])
