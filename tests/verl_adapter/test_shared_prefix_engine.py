"""What shared-prefix training refuses, and how tokens are counted. Gradients: test_gradient_invariance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="the engine is verl's")

from tensordict import TensorDict
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.utils import tensordict_utils as tu

from marsrl_verl.attention.shared_prefix import block_mask, packed_layout
from marsrl_verl.core.prefix_tree import build_prefix_tree
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import (
    SharedPrefixFSDPEngine,
    _let_flex_attention_take_block_masks,
    computed_tokens,
)


def refuse(config) -> None:
    SharedPrefixFSDPEngine._refuse_what_shares_nothing(SimpleNamespace(module=SimpleNamespace(config=config)))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(sliding_window=4),
        Qwen2Config(use_sliding_window=True, sliding_window=4, max_window_layers=0, num_hidden_layers=2),
    ],
    ids=["without layer types", "with layer types"],
)
def test_sliding_windows_are_refused(config):
    with pytest.raises(ValueError, match=r"share_prefixes: .* has layers of \['sliding"):
        refuse(config)


@pytest.mark.parametrize(
    "config", [Qwen2Config(), Qwen3Config(), LlamaConfig(), MistralConfig(sliding_window=None)], ids=str
)
def test_full_attention_is_taken(config):
    refuse(config)


def test_attention_outside_of_the_registry_is_refused():
    with pytest.raises(ValueError, match="attention 'eager' is not in transformers' registry"):
        _let_flex_attention_take_block_masks("eager")


def test_block_masks_go_to_flex_attention_and_everything_else_where_it_went(monkeypatch):
    entries = ALL_ATTENTION_FUNCTIONS._local_mapping
    monkeypatch.setitem(entries, "flash_like", lambda *args, **_: ("flash", args[4]))
    monkeypatch.setitem(entries, "flex_attention", lambda *args, **_: ("flex", args[4]))
    for _ in range(2):  # once is enough, twice does no harm
        _let_flex_attention_take_block_masks("flash_like")
    mask = block_mask(packed_layout(build_prefix_tree([torch.arange(3).numpy()])))
    attention = ALL_ATTENTION_FUNCTIONS["flash_like"]
    assert attention(None, 1, 2, 3, None) == ("flash", None)
    assert attention(None, 1, 2, 3, mask) == ("flex", mask)


def test_a_micro_batch_that_shares_nothing_has_numbers_of_the_same_kind(monkeypatch):
    """verl makes one nested tensor of all micro-batches' entropies, of which those of a bfloat16 model whose
    rows had nothing in common were bfloat16."""
    offsets = torch.tensor([0, 2, 5])

    def upstream(self, output, output_args, micro_batch, logits_processor_func):
        log_probs = torch.zeros(5)
        return {
            "log_probs": torch.nested.nested_tensor_from_jagged(log_probs, offsets),
            "entropy": torch.nested.nested_tensor_from_jagged(torch.ones(5).to(torch.bfloat16), offsets),
        }

    monkeypatch.setattr(SharedPrefixFSDPEngine.__mro__[1], "prepare_model_outputs", upstream)
    engine = SharedPrefixFSDPEngine.__new__(SharedPrefixFSDPEngine)
    for share, kind in ((True, torch.float32), (False, torch.bfloat16)):
        batch = TensorDict({})
        tu.assign_non_tensor(batch, share_prefixes=share)
        found = engine.prepare_model_outputs(None, {}, batch, None)
        assert found["entropy"].dtype is kind and found["log_probs"].dtype is torch.float32


def test_computed_tokens_are_those_of_all_updates_and_replace_verls_utilisation():
    metrics = {"actor/computed_tokens": 30.0, "perf/mfu/actor": 0.4, "actor/loss": 1.0}
    assert computed_tokens(metrics, updates=2) == 60.0
    assert metrics == {"actor/loss": 1.0}


def test_workers_that_share_nothing_are_found_out():
    with pytest.raises(RuntimeError, match="the workers shared nothing"):
        computed_tokens({"actor/loss": 1.0}, updates=1)
