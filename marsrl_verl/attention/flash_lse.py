"""Take the log-sum-exp of the attention scores from flash-attention's own forward pass.

flash-attention computes it anyway and returns it on request; transformers requests the output alone. This
spares the pass over the scores that `lse_kernel.py` needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import modeling_flash_attention_utils as flash_utils

_ASKED_BY = "return_attn_probs"
"""flash-attention's name for "return more than the output". Without dropout the probabilities themselves are
not written, so asking costs nothing."""


@dataclass(frozen=True, slots=True)
class FlashLse:
    """The softmax's normaliser in one call of flash-attention."""

    values: torch.Tensor
    """(H, N) float32, natural logarithm; N is the call's axis of tokens, several rows end to end."""
    dtype: torch.dtype
    """Type of the multiplied queries and keys. Weights from others would not sum to one."""


class LseTap:
    """Keeps the log-sum-exp of the latest call until it is taken."""

    def __init__(self) -> None:
        self._latest: FlashLse | None = None

    def take(self) -> FlashLse | None:
        """Returns the latest call's log-sum-exp, once; None if no flash-attention ran or it returned none."""
        latest, self._latest = self._latest, None
        return latest

    def listen(self, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """Wraps `function` so that its log-sum-exp is kept here; returns it as it is where it lacks the
        argument, as on other devices."""
        if function is None or _ASKED_BY not in inspect.signature(function).parameters:
            return function

        def with_lse(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            output, lse, *_ = function(query, *args, **{**kwargs, _ASKED_BY: True})
            # (H, N) for sequences end to end, (B, H, T) for equally long rows.
            values = lse if lse.dim() == 2 else lse.transpose(0, 1).flatten(1)
            self._latest = FlashLse(values, query.dtype)
            return output

        return with_lse


@contextmanager
def tapped_flash_attention() -> Iterator[LseTap]:
    """Keeps the log-sum-exp of every call of flash-attention that transformers makes inside the block.

    Upstream behaviour: `_flash_attention_forward` looks its functions up anew at every call
    (`lazy_import_flash_attention`), calls them without asking and drops all but the output.
    """
    tap = LseTap()
    upstream = flash_utils.lazy_import_flash_attention

    def importing(*args: Any, **kwargs: Any) -> Any:
        (dense, packed, *others), process = upstream(*args, **kwargs)
        return (tap.listen(dense), tap.listen(packed), *others), process

    flash_utils.lazy_import_flash_attention = importing
    try:
        yield tap
    finally:
        flash_utils.lazy_import_flash_attention = upstream
