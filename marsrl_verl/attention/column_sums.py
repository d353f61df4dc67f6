"""FCI of one layer with whatever computes it best on the device."""

from __future__ import annotations

import importlib.util

import torch

from marsrl_verl.attention.blocks import VisitPlan, check_token_axis, plan_visits
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.layout import StepLayout


class ColumnSums:
    """The column sums of all layers of one forward pass; the layout is on the device of the model."""

    def __init__(self, layout: StepLayout, backend: FciBackend | str = FciBackend.AUTO) -> None:
        self._layout, self._backend = layout, FciBackend(backend)
        self._plan: VisitPlan | None = None

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        scale: float,
        *,
        lse: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        """(H, N) weighted column sums.

        Args:
            query: (N, H, D) after the position embedding.
            key: (N, H_kv, D).
            scale: factor of the scores.
            lse: (H, N) log-sum-exp of the scores, if the attention returned it.
            window: length of a sliding window; None: every earlier token is seen.
        """
        check_token_axis(query, key, self._layout)
        if not self._uses_triton(query):
            return chunked_column_sums(query, key, self._layout, scale, window=window)
        from marsrl_verl.attention.kernel import KEY_BLOCK, triton_column_sums
        from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

        if self._plan is None:
            self._plan = plan_visits(self._layout, key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK)
        query, key = _with_contiguous_heads(query), _with_contiguous_heads(key)
        if lse is None:
            lse = triton_lse(query, key, self._plan.queries, scale, window=window)
        return triton_column_sums(query, key, lse, self._layout, self._plan.keys, scale, window=window)

    def _uses_triton(self, query: torch.Tensor) -> bool:
        if self._backend is not FciBackend.AUTO:
            return self._backend is FciBackend.TRITON
        # Larger tiles than those of bf16 at 128 do not fit into the shared memory of every GPU.
        known = query.shape[2] in (16, 32, 64, 128) and query.shape[2] * query.element_size() <= 256
        return known and query.is_cuda and importlib.util.find_spec("triton") is not None


def step_influence(sums: torch.Tensor, layout: StepLayout) -> torch.Tensor:
    """(S,) the mean over each step's tokens of one layer's column sums, (H, N), then the largest over the
    heads (arXiv 2509.26628, eq. 6)."""
    inside = sums.index_select(1, layout.token_index).T.contiguous()
    # A reduction over fixed segments adds in a fixed order, as index_add on a GPU would not.
    # `unsafe`: the lengths add up by construction, and a check would have the GPU waited for in every layer.
    means = torch.segment_reduce(inside, "mean", lengths=layout.step_lengths, axis=0, unsafe=True)
    return means.amax(dim=1)


def _with_contiguous_heads(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()
