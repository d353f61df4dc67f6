"""Collect FCI from a model's own forward pass, through transformers' registry of attention functions.

No model file is edited: for the length of a `with` block, the attention function that the model is
configured with is wrapped by one that calls it and then reads the same queries and keys. Any architecture
that takes its attention from the registry works. Outside of the block nothing is registered and nothing is
paid for.
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
from marsrl_verl.attention.layout import StepLayout

_UNSUPPORTED = ("softcap", "s_aux")
"""Arguments of attention functions that change the softmax: FCI without them would be another attention's."""


class InfluenceCollector:
    """The largest influence of every step over the layers and heads seen so far."""

    def __init__(self, layout: StepLayout, backend: FciBackend | str = FciBackend.AUTO) -> None:
        self.layout = layout
        self.layers = 0
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
        """Take in one layer's queries (B, H, T, D) and keys (B, H_kv, T, D), both after the position
        embedding; B x T is the layout's axis of tokens.

        Args:
            query: the queries.
            key: the keys.
            scale: factor of the scores.
            window: length of a sliding window; None: every earlier token is seen.
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
            RuntimeError: no layer was seen, so the model's attention does not come from the registry.
        """
        if self._largest is None:
            raise RuntimeError(
                "no attention was seen in the forward pass: the model does not take its attention function "
                "from transformers' registry, so FCI cannot be computed for it"
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
    """Wrap the attention of every forward pass of `model` inside the block.

    The pass must see the whole sequences at once (no key-value cache) with causal attention.

    Args:
        model: a transformers model, also wrapped in FSDP.
        layout: sequences and steps of the batch (padded rows end to end, or one packed row).
        backend: what computes the column sums.

    Raises:
        ValueError: the model's attention function is not in the registry; the message names it.
    """
    config: Any = model.config
    name = str(config._attn_implementation)
    original = _function(name, config)
    collector = InfluenceCollector(layout, backend)

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
        changed = [key for key in _UNSUPPORTED if kwargs.get(key) is not None]
        if changed:
            raise ValueError(
                f"{type(module).__name__} calls its attention with {changed}: FCI has no form for it"
            )
        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        collector.add_layer(query, key, scale, _window(kwargs), tap.take())
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


@contextmanager
def _registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Have the registry give `function` for `name`. An instance's own entry hides the class's, which is
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


def _window(kwargs: dict[str, Any]) -> int | None:
    window = kwargs.get("sliding_window")
    return None if window is None else int(window)


def _token_first(tensor: torch.Tensor) -> torch.Tensor:
    """(B, H, T, D) as (B * T, H, D); a view for one packed row."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])
