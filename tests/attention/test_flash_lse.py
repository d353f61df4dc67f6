"""The log-sum-exp that flash-attention gives stands in for the one that is computed again.

flash-attention runs on NVIDIA GPUs only. Here functions with its arguments and its results stand in for it,
called by transformers' own `_flash_attention_forward`.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_cases import packed_layout
from flash_functions import attend, flash_attn_func, flash_attn_varlen_func, give_transformers
from kernel_cases import DEVICE
from test_collector import FIRST, IDS, model_of, packed_row, padded_rows
from transformers import modeling_flash_attention_utils as flash_utils

from marsrl_verl.attention import lse_kernel
from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.attention.flash_lse import tapped_flash_attention

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.fixture
def flash(monkeypatch):
    give_transformers(flash_attn_func, flash_attn_varlen_func, monkeypatch.setattr)


@pytest.fixture
def no_second_pass(monkeypatch):
    """The log-sum-exp must not be computed again."""

    def computed_again(*args, **kwargs):
        raise AssertionError("the log-sum-exp was computed a second time")

    monkeypatch.setattr(lse_kernel, "triton_lse", computed_again)


def influence(attention: str, layout, ids, backend: str = "triton", *, model=None, **inputs) -> torch.Tensor:
    model = model_of("qwen3", head_dim=16, **(model or {})).to(DEVICE)
    model.config._attn_implementation = attention
    moved = {name: value.to(DEVICE) for name, value in inputs.items()}
    with torch.no_grad(), collect_influence(model, layout.to(DEVICE), backend) as collector:
        model(ids.to(DEVICE), use_cache=False, **moved)
    assert collector.layers == 3
    return collector.by_step().cpu()


@pytest.mark.usefixtures("flash", "no_second_pass")
@pytest.mark.parametrize("window", [None, 6])
def test_one_row(window):
    layout, ids = packed_layout([FIRST], delta=2), IDS[None]
    model = {"use_sliding_window": bool(window), "sliding_window": window, "max_window_layers": 0}
    wanted = influence("sdpa", layout, ids, "chunked", model=model)
    found = influence("flash_attention_2", layout, ids, model=model)
    assert (wanted > 0).any()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("flash", "no_second_pass")
def test_a_packed_row():
    ids, positions, layout = packed_row()
    wanted = influence("sdpa", layout, ids, "chunked", position_ids=positions)
    found = influence("flash_attention_2", layout, ids, position_ids=positions)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("flash")
def test_padded_rows_are_computed_again(monkeypatch):
    """transformers takes the padding out before it calls flash-attention, so its tokens are others."""
    calls = []
    again = lse_kernel.triton_lse
    monkeypatch.setattr(lse_kernel, "triton_lse", lambda *a, **k: calls.append(1) or again(*a, **k))
    ids, mask, layout = padded_rows()
    wanted = influence("sdpa", layout, ids, "chunked", attention_mask=mask)
    found = influence("flash_attention_2", layout, ids, attention_mask=mask)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert len(calls) == 3


@pytest.mark.usefixtures("flash", "no_second_pass")
def test_the_queries_are_those_that_were_multiplied():
    """A float32 model under autocast: flash-attention multiplies bfloat16, and so do the column sums."""
    layout, ids = packed_layout([FIRST], delta=1), IDS[None]
    with torch.autocast(DEVICE, torch.bfloat16):
        found = influence("flash_attention_2", layout, ids)
    assert found.dtype == torch.float32
    whole = influence("sdpa", layout, ids, "chunked")
    torch.testing.assert_close(found, whole, rtol=0.1, atol=0.02)


def test_functions_that_cannot_be_asked_are_called_as_they_are(monkeypatch):
    def packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False
    ):
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal
        )

    give_transformers(None, packed, monkeypatch.setattr)
    with tapped_flash_attention() as tap:
        (dense, ours, *_), _ = flash_utils.lazy_import_flash_attention("flash_attention_2")
        assert dense is None and ours is packed
        assert tap.take() is None


@pytest.mark.usefixtures("flash")
def test_a_value_is_taken_once_and_the_functions_are_put_back():
    before = flash_utils.lazy_import_flash_attention
    q = torch.randn(2, 5, 4, 16)
    with tapped_flash_attention() as tap:
        (dense, *_), _ = flash_utils.lazy_import_flash_attention("flash_attention_2")
        output = dense(q, q, q, causal=True)
        lse = tap.take()
        assert tap.take() is None
    assert torch.equal(output, flash_attn_func(q, q, q, causal=True))
    assert lse.values.shape == (4, 10) and lse.dtype == torch.float32
    # Rows end to end: token 7 is the third of the second row.
    torch.testing.assert_close(lse.values[:, 7], attend(q[1], q[1], q[1], 0.25, -1)[1][:, 2])
    assert flash_utils.lazy_import_flash_attention is before
