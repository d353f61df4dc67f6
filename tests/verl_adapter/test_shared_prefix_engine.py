"""What shared-prefix training refuses, how tokens are counted, and each row's own temperature, against plain
torch. Gradients of ranks: test_gradient_invariance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="the engine is verl's")

from tensordict import TensorDict
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode

from marsrl_verl.attention.shared_prefix import block_mask, packed_layout
from marsrl_verl.core.prefix_tree import always_joins, build_prefix_tree
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import (
    SHARE_KEY,
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


# --- each row's own temperature ---

ROWS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5, 7], [9, 8]]
"""The first three share tokens, the second and third one of them at one temperature."""
MIXED = [1.0, 0.5, 0.5, 1.7]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("marsrl_verl.verl_adapter.engine.shared_prefix_engine.get_device_id", lambda: "cpu")
    monkeypatch.setattr("verl.workers.engine.fsdp.transformer_impl.get_device_id", lambda: "cpu")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=12, initializer_range=0.5, attn_implementation="sdpa", **sizes, **heads)
    return LlamaForCausalLM(config).double()


def plain(model, temperatures):
    """(log-probabilities, entropies) of each row but for its last place."""
    found = []
    for row, temperature in zip(ROWS, temperatures, strict=True):
        ids = torch.tensor([row])
        logs = (model(ids).logits[0] / temperature).log_softmax(-1)
        values = logs[:-1].gather(1, ids[0, 1:, None])[:, 0]
        found.append((values, -(logs.exp() * logs).sum(-1)))
    return found


def through_the_engine(model, temperatures, *, share):
    engine = SharedPrefixFSDPEngine.__new__(SharedPrefixFSDPEngine)
    engine.module, engine.use_ulysses_sp, engine.pad_to_length = model, False, False
    engine.engine_config = SimpleNamespace(
        entropy_from_logits_with_chunking=False, entropy_checkpointing=False
    )
    engine._joins = lambda: always_joins
    engine.compute_entropy_from_logits = lambda logits: torch.distributions.Categorical(
        logits=logits
    ).entropy()
    columns = {"input_ids": list(map(torch.tensor, ROWS))}
    columns["position_ids"] = [torch.arange(len(row)) for row in ROWS]
    columns["loss_mask"] = [torch.ones(len(row)) for row in ROWS]
    named = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    data = TensorDict({**named, "temperature": torch.tensor(temperatures)}, batch_size=[len(ROWS)])
    options = {"use_remove_padding": False, "pad_mode": DatasetPadMode.NO_PADDING, "calculate_entropy": True}
    tu.assign_non_tensor(data, **options, **{SHARE_KEY: share})
    inputs, output_args = engine.prepare_model_inputs(data)
    output = model(**{name: one for name, one in inputs.items() if name != "multi_modal_inputs"})
    found = engine.prepare_model_outputs(output, output_args, data, None)
    return engine, {name: found[name].unbind() for name in ("log_probs", "entropy")}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("temperatures", [MIXED, [1.0] * 4, [0.7] * 4])
def test_every_row_is_computed_at_its_own_temperature(no_gpu, model, temperatures, share):
    expected = plain(model, temperatures)
    engine, found = through_the_engine(model, temperatures, share=share)
    for at, (log_probs, entropies) in enumerate(expected):
        torch.testing.assert_close(found["log_probs"][at][:-1].double(), log_probs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["entropy"][at].double(), entropies, rtol=1e-5, atol=1e-6)
    if share:
        # One after the other there are 16 tokens; of the first three rows two, or all, share theirs.
        assert engine._computed_tokens == (12 if temperatures == MIXED else 9)


@pytest.mark.parametrize("share", [False, True])
def test_the_gradient_is_that_of_plain_torch(no_gpu, model, share):
    def gradients(values):
        model.zero_grad()
        sum(one.sum() * (at + 1) for at, one in enumerate(values)).backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = gradients([one for one, _ in plain(model, MIXED)])
    _, found = through_the_engine(model, MIXED, share=share)
    for one, other in zip(gradients([one[:-1] for one in found["log_probs"]]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
