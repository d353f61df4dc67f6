"""FCI collected from real architectures' own forward pass, against their eager attention weights."""

from __future__ import annotations

import copy

import pytest
import torch
from attention_cases import packed_layout, padded_layout
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.attention.layout import NEVER, OUTSIDE, StepLayout
from marsrl_verl.attention.masks import MaskCheck

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


IDS = tokens(sum(FIRST), 1)
"""Of one sequence with the steps `FIRST`."""


def run_pass(model, layout, ids, **inputs) -> torch.Tensor:
    with torch.no_grad(), collect_influence(model, layout) as collector:
        model(ids, **inputs)
    return collector.by_step()


def padded_rows(left: bool = False) -> tuple[torch.Tensor, torch.Tensor, StepLayout]:
    """Tokens of two sequences, padded on the right or on the left, their mask and layout."""
    layout = padded_layout([FIRST, SECOND], width=sum(SECOND) + 2, delta=2, left=left)
    mask = (layout.query_steps != OUTSIDE).view(2, -1).long()
    ids = torch.zeros_like(mask)
    ids[mask.bool()] = torch.cat([IDS, tokens(sum(SECOND), 2)])
    return ids, mask, layout


def packed_row() -> tuple[torch.Tensor, torch.Tensor, StepLayout]:
    """The same tokens in one row, and positions that begin anew, which tell transformers' mask where a
    sequence ends."""
    ids = torch.cat([IDS, tokens(sum(SECOND), 2)])[None]
    positions = torch.cat([torch.arange(sum(FIRST)), torch.arange(sum(SECOND))])[None]
    return ids, positions, packed_layout([FIRST, SECOND], delta=2)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_one_sequence_agrees_with_eager_attention(architecture):
    model, layout = model_of(architecture), packed_layout([FIRST], delta=2)
    with torch.no_grad(), collect_influence(model, layout) as collector:
        model(IDS[None])
    assert collector.layers == 3
    wanted = expected(model, IDS, layout)
    assert (wanted > 0).sum() == 2  # steps 2 and 3 of 0 … 5
    torch.testing.assert_close(collector.by_step(), wanted, rtol=1e-5, atol=1e-7)
    assert torch.equal(collector.by_token(), collector.by_step().repeat_interleave(torch.tensor(FIRST)))


@pytest.mark.parametrize(
    ("architecture", "kind"), [("llama", "left"), ("qwen2", "right"), ("qwen3", "packed")]
)
def test_two_sequences_agree_with_each_alone(architecture, kind):
    model, alone = model_of(architecture), (IDS, tokens(sum(SECOND), 2))
    single = [packed_layout([lengths], delta=2) for lengths in (FIRST, SECOND)]
    wanted = torch.cat([expected(model, ids, one) for ids, one in zip(alone, single, strict=True)])
    if kind == "packed":
        ids, positions, layout = packed_row()
        found = run_pass(model, layout, ids, position_ids=positions, use_cache=False)
    else:
        ids, mask, layout = padded_rows(left=kind == "left")
        found = run_pass(model, layout, ids, attention_mask=mask)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("first_window_layer", [0, 2], ids=["all layers", "the last layer"])
def test_a_sliding_window_is_seen(first_window_layer):
    model = model_of("qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=first_window_layer)
    assert model.config.layer_types.count("sliding_attention") == 3 - first_window_layer
    layout = packed_layout([FIRST], delta=1)
    found = run_pass(model, layout, IDS[None])
    torch.testing.assert_close(found, expected(model, IDS, layout), rtol=1e-5, atol=1e-7)


def test_autocast_does_not_reach_the_sums():
    with torch.autocast("cpu", torch.bfloat16):
        found = run_pass(model_of("qwen2"), packed_layout([FIRST], delta=2), IDS[None])
    assert found.dtype == torch.float32


def test_outside_of_the_block_nothing_is_registered_and_the_output_is_the_same():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    with torch.no_grad():
        plain = model(IDS[None]).logits
        with pytest.raises(RuntimeError, match="in the block"), collect_influence(model, layout):
            measured = model(IDS[None]).logits
            raise RuntimeError("in the block")
    assert torch.equal(plain, measured)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before and "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping


def test_one_collection_inside_another():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    with torch.no_grad(), collect_influence(model, layout) as outer:
        with collect_influence(model, layout) as inner:
            model(IDS[None])
        model(IDS[None])
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
    with torch.no_grad(), collect_influence(model, layout), pytest.raises(ValueError, match="softcap"):
        model(IDS[None], softcap=30.0)


def test_chunked_attention_is_refused():
    """Llama 4 attends inside chunks, which neither an argument nor `is_causal` tells."""
    experts = {"num_local_experts": 2, "moe_layers": [0], "intermediate_size_mlp": 48}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = model_of("llama4_text", attention_chunk_size=5, **experts, **marks)
    layout = packed_layout([FIRST], delta=1)
    said = r"Llama4TextConfig \(model type llama4_text\) has layers of \['chunked_attention'\]"
    with pytest.raises(ValueError, match=said), collect_influence(model, layout):
        raise AssertionError("it was let in")
    model.config = copy.deepcopy(model.config)  # had it not said so
    model.config.layer_types = ["full_attention"] * 3
    with pytest.raises(ValueError, match="False in the mask at query 5, key 0, expected every earlier token"):
        run_pass(model, layout, IDS[None])


def dense_masks() -> dict[str, torch.Tensor]:
    """Masks of one sequence that transformers gives on as they are."""
    place = torch.arange(sum(FIRST))
    distance = place[:, None] - place
    causal, least = distance >= 0, torch.finfo(torch.float32).min
    return {
        "causal": causal,
        "causal, added": torch.where(causal, 0.0, least),
        "chunks": causal & (place[:, None] // 5 == place // 5),
        "window": causal & (distance < 6),
        "both ways": torch.ones_like(causal),
        "prefix": causal | (place < 5),
        "bias by distance": torch.where(causal, -0.1 * distance, least),
        "hidden by little": torch.where(causal, 0.0, -5.0),
    }


@pytest.mark.parametrize("name", dense_masks())
def test_dense_masks_are_looked_at(name):
    """What the mask shows is what FCI takes to be seen, or the pass is rejected."""
    model, layout = model_of("qwen3"), packed_layout([FIRST], delta=1)
    mask = {"attention_mask": dense_masks()[name][None, None]}
    if name.startswith("causal"):
        found = run_pass(model, layout, IDS[None], **mask)
        torch.testing.assert_close(found, expected(model, IDS, layout), rtol=1e-5, atol=1e-7)
    else:
        with pytest.raises(ValueError, match=r"not the one that FCI measures.* in the mask at"):
            run_pass(model, layout, IDS[None], **mask)


def test_sequences_that_see_one_another_are_refused():
    """Without positions that begin anew a packed row is one sequence to the model."""
    model, layout = model_of("qwen3"), packed_layout([FIRST, SECOND], delta=2)
    ids, _, _ = packed_row()
    with pytest.raises(ValueError, match="sees all earlier tokens of the row"):
        run_pass(model, layout, ids)
    mask = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="of its sequence, which begins at 23"):
        run_pass(model, layout, ids, attention_mask=mask)


def test_a_window_that_the_mask_does_not_have_is_refused():
    model, layout = model_of("qwen3"), packed_layout([FIRST], delta=2)
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 6
    with pytest.raises(ValueError, match="expected the last 6"):
        run_pass(model, layout, IDS[None])
    for layer in model.model.layers:
        layer.self_attn.sliding_window = sum(FIRST)  # all of the sequence
    assert run_pass(model, layout, IDS[None]).max() > 0


def test_attention_that_is_not_causal_is_refused():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(ValueError, match="Qwen2Attention is not causal"):
        run_pass(model, layout, IDS[None])
    with pytest.raises(ValueError, match="Qwen2Attention is not causal"):
        run_pass(model_of("qwen2"), layout, IDS[None], is_causal=False)


def test_keys_of_an_earlier_pass_are_refused():
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    ids = tokens(sum(FIRST) + 4, 1)[None]
    with torch.no_grad():
        cache = model(ids[:, :4], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="has 23 queries and 27 keys"):
        run_pass(model, layout, ids[:, 4:], past_key_values=cache)


def test_a_layer_without_the_registry_is_missed():
    """The largest influence over a part of the layers would pass for FCI."""
    model, layout = model_of("qwen2"), packed_layout([FIRST], delta=2)
    model.model.layers[1].forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(RuntimeError, match="of 2 layers was seen, but the model has 3"):
        run_pass(model, layout, IDS[None])


# --- masks against layouts ------------------------------------------------------------------------------

LENGTHS, WIDTH = (1300, 2500), 2600
"""Two padded rows, longer than the rows of a mask that are compared at a time."""


ROWS = padded_layout([[100] * (length // 100) for length in LENGTHS], width=WIDTH, delta=2, unmeasured=(0,))


def causal(rows: int) -> torch.Tensor:
    return torch.ones(rows, 1, WIDTH, WIDTH, dtype=torch.bool).tril()


@pytest.mark.parametrize("rows", [1, 2])
def test_every_row_and_query_is_looked_at(rows):
    mask = causal(rows)
    MaskCheck(ROWS)(mask, WIDTH, None)
    mask[-1, 0, 2499, 7] = False  # the last query of the second row
    with pytest.raises(ValueError, match="False in the mask at query 2499, key 7"):
        MaskCheck(ROWS)(mask, WIDTH, None)
    mask = causal(rows)
    mask[0, 0, 1100, 1101] = True
    with pytest.raises(ValueError, match="True in the mask at query 1100, key 1101"):
        MaskCheck(ROWS)(mask, WIDTH, None)


def test_what_padding_sees_does_not_matter():
    mask = causal(2)
    mask[0, 0, 1300:] = True
    MaskCheck(ROWS)(mask, WIDTH, None)


def test_a_mask_is_looked_at_once_for_each_window():
    check, mask = MaskCheck(ROWS), causal(2)
    check(mask, WIDTH, None)
    mask.fill_(True)  # as no pass does: it would be found out
    check(mask, WIDTH, None)
    with pytest.raises(ValueError, match="the last 50 tokens of its sequence"):
        check(mask, WIDTH, 50)
