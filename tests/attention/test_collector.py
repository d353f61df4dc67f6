"""FCI collected from real architectures' own forward pass, against their eager attention weights."""

from __future__ import annotations

import pytest
import torch
from attention_cases import packed_layout
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.attention.layout import NEVER, OUTSIDE, StepLayout, build_layout

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 128,
}
ARCHITECTURES = ("qwen2", "qwen3", "llama")
FIRST, SECOND = [5, 3, 4, 2, 6, 3], [2, 1, 7, 3, 3, 3, 2]


def model_of(architecture: str, attention: str = "sdpa", **more):
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **{**SHAPE, **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # far from uniform attention
    return model


def expected(model, ids: torch.Tensor, layout: StepLayout) -> torch.Tensor:
    """FCI by step of one sequence, from the weights that eager attention returns."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(ids[None], output_attentions=True).attentions
    steps = layout.query_steps.long()
    found = torch.zeros(len(layout.step_lengths))
    for layer in weights:
        for matrix in layer[0]:
            for k in range(len(found)):
                mine = steps == k
                if layout.key_steps[mine][0] == NEVER:
                    continue
                total = sum(matrix[steps == j][:, mine].mean() for j in range(k + layout.delta, len(found)))
                found[k] = max(found[k], float(total))
    model.set_attn_implementation("sdpa")
    return found


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_sequence_agrees_with_eager_attention(architecture):
    model, layout = model_of(architecture), packed_layout([FIRST], delta=2)
    ids = tokens(sum(FIRST), 1)
    with torch.no_grad(), collect_influence(model, layout) as collector:
        model(ids[None])
    assert collector.layers == 3
    wanted = expected(model, ids, layout)
    assert (wanted > 0).sum() == 2  # steps 2 and 3 of 0 … 5
    torch.testing.assert_close(collector.by_step(), wanted, rtol=1e-5, atol=1e-7)
    assert torch.equal(collector.by_token(), wanted_by_token(collector.by_step(), FIRST))


def wanted_by_token(by_step: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    return torch.cat([value.repeat(length) for value, length in zip(by_step, lengths, strict=True)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padded_rows_agree_with_each_row_alone(architecture):
    model = model_of(architecture)
    alone = [tokens(sum(FIRST), 1), tokens(sum(SECOND), 2)]
    single = [packed_layout([lengths], delta=2) for lengths in (FIRST, SECOND)]
    wanted = torch.cat([expected(model, ids, one) for ids, one in zip(alone, single, strict=True)])
    width = max(len(ids) for ids in alone) + 2
    ids, mask = torch.zeros(2, width, dtype=torch.long), torch.zeros(2, width, dtype=torch.long)
    steps = torch.full((2, width), OUTSIDE)
    for row, (one, layout) in enumerate(zip(alone, single, strict=True)):
        ids[row, : len(one)], mask[row, : len(one)] = one, 1
        steps[row, : len(one)] = layout.query_steps.long()
    layout = build_layout(steps, steps > 1, delta=2)
    with torch.no_grad(), collect_influence(model, layout) as collector:
        model(ids, attention_mask=mask)
    torch.testing.assert_close(collector.by_step(), wanted, rtol=1e-5, atol=1e-7)


def test_a_packed_row_agrees_with_its_sequences_alone():
    model = model_of("qwen3")
    alone = [tokens(sum(FIRST), 1), tokens(sum(SECOND), 2)]
    wanted = torch.cat(
        [
            expected(model, ids, packed_layout([lengths], delta=2))
            for ids, lengths in zip(alone, (FIRST, SECOND), strict=True)
        ]
    )
    layout = packed_layout([FIRST, SECOND], delta=2)
    positions = torch.cat([torch.arange(len(ids)) for ids in alone])
    with torch.no_grad(), collect_influence(model, layout) as collector:
        # Positions that begin anew tell transformers' mask where a sequence ends.
        model(torch.cat(alone)[None], position_ids=positions[None], attention_mask=None, use_cache=False)
    torch.testing.assert_close(collector.by_step(), wanted, rtol=1e-5, atol=1e-7)


def test_a_sliding_window_is_seen():
    model = model_of("qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=0)
    layout, ids = packed_layout([FIRST], delta=1), tokens(sum(FIRST), 1)
    with torch.no_grad(), collect_influence(model, layout) as collector:
        model(ids[None])
    torch.testing.assert_close(collector.by_step(), expected(model, ids, layout), rtol=1e-5, atol=1e-7)


def test_autocast_does_not_reach_the_sums():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    ids = tokens(sum(FIRST), 1)
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        collect_influence(model, layout) as collector,
    ):
        model(ids[None])
    assert collector.by_step().dtype == torch.float32


def test_outside_of_the_block_nothing_is_registered_and_the_output_is_the_same():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    ids, before = tokens(sum(FIRST), 1), ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.no_grad():
        plain = model(ids[None]).logits
        with pytest.raises(RuntimeError, match="in the block"), collect_influence(model, layout):
            measured = model(ids[None]).logits
            raise RuntimeError("in the block")
    assert torch.equal(plain, measured)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before and "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping


def test_one_collection_inside_another():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    ids = tokens(sum(FIRST), 1)
    with torch.no_grad(), collect_influence(model, layout) as outer:
        with collect_influence(model, layout) as inner:
            model(ids[None])
        model(ids[None])
    assert (inner.layers, outer.layers) == (3, 6)
    torch.testing.assert_close(inner.by_step(), outer.by_step())


def test_eager_attention_and_unseen_attention_are_refused():
    layout = packed_layout([FIRST], delta=2)
    with pytest.raises(ValueError, match="Qwen2Config uses eager attention"):
        collect_influence(model_of("qwen2", "eager"), layout).__enter__()
    with collect_influence(model_of("qwen2"), layout) as collector:
        pass
    with pytest.raises(RuntimeError, match="no attention was seen"):
        collector.by_step()


def test_an_attention_with_another_softmax_is_refused():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    ids = tokens(sum(FIRST), 1)
    with torch.no_grad(), collect_influence(model, layout), pytest.raises(ValueError, match="softcap"):
        model(ids[None], softcap=30.0)
