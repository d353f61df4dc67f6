"""Log-probabilities and gradients at each row's own temperature, against plain torch: through verl's engine,
and through ours that shares prefixes, without ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="the engine is verl's")

from tensordict import TensorDict
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import DatasetPadMode

from marsrl_verl.core.prefix_tree import always_joins
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import SHARE_KEY, SharedPrefixFSDPEngine

ROWS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5, 7], [9, 8]]
"""The first three share tokens, the second and third one of them at one temperature."""
MIXED = [1.0, 0.5, 0.5, 1.7]


@pytest.fixture(autouse=True)
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
    lengths = torch.tensor([len(row) for row in ROWS])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.nested.nested_tensor_from_jagged(
        torch.tensor([token for row in ROWS for token in row]), offsets
    )
    positions = torch.nested.nested_tensor_from_jagged(torch.cat([torch.arange(n) for n in lengths]), offsets)
    mask = torch.nested.nested_tensor_from_jagged(torch.ones(int(lengths.sum())), offsets)
    named = {"input_ids": ids, "position_ids": positions, "loss_mask": mask}
    named["temperature"] = torch.tensor(temperatures)
    data = TensorDict(named, batch_size=[len(ROWS)])
    options = {"use_remove_padding": False, "pad_mode": DatasetPadMode.NO_PADDING, "calculate_entropy": True}
    tu.assign_non_tensor(data, **options, **{SHARE_KEY: share})
    inputs, output_args = engine.prepare_model_inputs(data)
    output = model(**{name: one for name, one in inputs.items() if name != "multi_modal_inputs"})
    found = engine.prepare_model_outputs(output, output_args, data, None)
    return engine, {name: found[name].unbind() for name in ("log_probs", "entropy")}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("temperatures", [MIXED, [1.0] * 4, [0.7] * 4])
def test_every_row_is_computed_at_its_own_temperature(model, temperatures, share):
    expected = plain(model, temperatures)
    engine, found = through_the_engine(model, temperatures, share=share)
    for at, (log_probs, entropies) in enumerate(expected):
        torch.testing.assert_close(found["log_probs"][at][:-1].double(), log_probs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["entropy"][at].double(), entropies, rtol=1e-5, atol=1e-6)
    if share:
        # One after the other there are 16 tokens; of the first three rows two, or all, share theirs.
        assert engine._computed_tokens == (12 if temperatures == MIXED else 9)


@pytest.mark.parametrize("share", [False, True])
def test_the_gradient_is_that_of_plain_torch(model, share):
    def gradients(values):
        model.zero_grad()
        sum(one.sum() * (at + 1) for at, one in enumerate(values)).backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = gradients([one for one, _ in plain(model, MIXED)])
    _, found = through_the_engine(model, MIXED, share=share)
    for one, other in zip(gradients([one[:-1] for one in found["log_probs"]]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
