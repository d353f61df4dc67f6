"""A forward pass over a prefix tree gives what the sequences give one by one, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers
from torch.nn.attention.flex_attention import flex_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from marsrl_verl.attention.node_values import NodeValues
from marsrl_verl.attention.shared_prefix import (
    BLOCK,
    TreeLayout,
    block_mask,
    dense_mask,
    node_values,
    packed_layout,
    padded_layout,
)
from marsrl_verl.core.prefix_tree import PrefixTree, build_prefix_tree, joins_where_cheaper

VOCABULARY = 50
TEMPERATURE = 0.7


def plain_flex(module, query, key, value, attention_mask, scaling=None, **_):
    """What flex attention computes, with its mask written out: on a processor it has no backward pass."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if not torch.is_grad_enabled():
        out = flex_attention(query, key, value, block_mask=attention_mask, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    place = torch.arange(query.shape[2])
    sees = attention_mask.mask_mod(torch.tensor(0), torch.tensor(0), place[:, None], place[None, :])
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


@pytest.fixture(autouse=True)
def flex_registered(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "plain_flex", plain_flex)


def model(family: str) -> torch.nn.Module:
    torch.manual_seed(1)
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**shape, attn_implementation="sdpa")
    return getattr(transformers, f"{family}ForCausalLM")(config).double()


def branching_rows(seed: int = 0) -> list[np.ndarray]:
    """Two prompts; a response with continuations from two of its tokens, a repeated row, a prefix of one."""
    draw = np.random.default_rng(seed)
    prompt, other = draw.integers(0, VOCABULARY, 9), draw.integers(0, VOCABULARY, 5)
    response = draw.integers(0, VOCABULARY, 30)
    rows = [np.concatenate([prompt, response])]
    for branch in (8, 8, 19, 19):
        rows.append(np.concatenate([prompt, response[:branch], draw.integers(0, VOCABULARY, 12)]))
    rows += [np.concatenate([other, draw.integers(0, VOCABULARY, 7)]), rows[1].copy(), rows[0][:20]]
    return [rows[index] for index in draw.permutation(len(rows))]


def one_by_one(net: torch.nn.Module, rows: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for row in rows:
        logits = net(input_ids=torch.from_numpy(row)[None]).logits[0] / TEMPERATURE
        logs = torch.log_softmax(logits, -1)
        own = logs[:-1].gather(1, torch.from_numpy(row)[1:, None])[:, 0]
        found.append((own, -(logs.exp() * logs).sum(-1)))
    return found


def from_tree(
    net: torch.nn.Module, tree: PrefixTree, layout: TreeLayout, mask: Callable[[TreeLayout], object]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    placed = {"input_ids": layout.input_ids, "position_ids": layout.position_ids}
    logits = net(**placed, attention_mask=mask(layout)).logits
    log_probs, entropy = node_values(logits / TEMPERATURE, layout, tree, entropy=True)
    assert entropy is not None
    return [(log_probs[row[1:]], entropy[row]) for row in map(torch.from_numpy, tree.rows)]


def gradients(net: torch.nn.Module, found: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Of a loss with another weight for every row and token."""
    net.zero_grad()
    loss = sum(
        (own * torch.linspace(-1, 1, len(own)) * (k + 1)).sum() + 0.1 * k * entropy.sum()
        for k, (own, entropy) in enumerate(found)
    )
    loss.backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


@pytest.mark.parametrize(
    ("family", "kind"),
    [("Qwen2", "padded"), ("Qwen3", "packed"), ("Llama", "checkpointed"), ("Llama", "packed")],
)
def test_values_and_gradients_are_those_of_the_rows(family, kind):
    net, rows = model(family), branching_rows()
    expected = one_by_one(net, rows)
    wanted = gradients(net, expected)
    tree = build_prefix_tree(rows)
    assert len(tree.tokens) < sum(map(len, rows)) / 2
    if kind == "checkpointed":
        net.gradient_checkpointing_enable()
        net.train()
    if kind == "packed":
        net.config._attn_implementation = "plain_flex"
        found = from_tree(net, tree, packed_layout(tree), block_mask)
    else:
        found = from_tree(net, tree, padded_layout(tree), dense_mask)
    for (own, entropy), (own_alone, entropy_alone) in zip(found, expected, strict=True):
        torch.testing.assert_close(own, own_alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(entropy, entropy_alone, rtol=1e-9, atol=1e-9)
    # transformers' RMS norms are float32 in every model, and their gradients are summed in another order.
    for one, other in zip(gradients(net, found), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6 * float(other.abs().max()))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_itself_gives_the_values_of_the_rows():
    net, rows = model("Qwen3"), branching_rows()
    with torch.no_grad():
        expected = one_by_one(net, rows)
        net.config._attn_implementation = "plain_flex"
        tree = build_prefix_tree(rows)
        found = from_tree(net, tree, packed_layout(tree), block_mask)
    for (own, _), (alone, _) in zip(found, expected, strict=True):
        torch.testing.assert_close(own, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("entropy", [True, False])
def test_gradient_of_node_values_is_that_of_finite_differences(entropy, monkeypatch):
    """Over several chunks, with places that no, one and several nodes follow."""
    monkeypatch.setattr("marsrl_verl.attention.node_values.CHUNK", 3)
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(8, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    before, tokens = torch.tensor([7, 0, 0, 0, 3, 4, 4]), torch.tensor([1, 2, 2, 4, 0, 3, 1])
    assert torch.autograd.gradcheck(lambda x: NodeValues.apply(x, before, tokens, entropy), logits)


def test_node_values_in_bfloat16_have_a_gradient_of_their_own_type():
    logits = torch.randn(4, 6, dtype=torch.bfloat16, requires_grad=True)
    values, _ = NodeValues.apply(logits, torch.tensor([0, 2]), torch.tensor([5, 1]), False)
    assert values.dtype is torch.float32
    values.sum().backward()
    assert logits.grad.dtype is torch.bfloat16
    assert float(logits.grad[[1, 3]].abs().max()) == 0, "nothing follows them"


def test_a_node_that_saw_another_branch_would_be_found_out():
    """Control: a causal mask over the packed tree gives other values."""
    net, rows = model("Qwen3"), branching_rows()
    tree = build_prefix_tree(rows)
    causal = lambda layout: torch.ones(1, 1, *(layout.ends.shape[1],) * 2, dtype=torch.bool).tril()  # noqa: E731
    found = from_tree(net, tree, packed_layout(tree), causal)
    expected = one_by_one(net, rows)
    pairs = zip(found, expected, strict=True)
    assert max(float((a - b).detach().abs().max()) for (a, _), (b, _) in pairs) > 0.01


def long_tree(seed: int) -> PrefixTree:
    draw = np.random.default_rng(seed)
    trunk = draw.integers(0, 9, 700)
    branches = [np.concatenate([trunk[:cut], draw.integers(0, 9, 150)]) for cut in draw.integers(300, 700, 6)]
    return build_prefix_tree([trunk, *branches])


@pytest.mark.parametrize("seed", range(3))
def test_block_mask_covers_the_dense_one(seed):
    """A block that is left out holds nothing, a full one everything."""
    layout = packed_layout(long_tree(seed))
    dense, blocks = dense_mask(layout)[0, 0], block_mask(layout)
    count = dense.shape[0] // BLOCK
    tiles = dense.view(count, BLOCK, count, BLOCK).permute(0, 2, 1, 3).flatten(2)
    part, full = torch.zeros(count, count, dtype=torch.bool), torch.zeros(count, count, dtype=torch.bool)
    for table, counts, indices in (
        (part, blocks.kv_num_blocks, blocks.kv_indices),
        (full, blocks.full_kv_num_blocks, blocks.full_kv_indices),
    ):
        for query in range(count):
            table[query, indices[0, 0, query, : counts[0, 0, query]].long()] = True
    assert not (part & full).any()
    assert not tiles.any(-1)[~(part | full)].any(), "every pair that is seen is in a block"
    assert tiles.all(-1)[full].all()
    below = torch.ones(count, count, dtype=torch.bool).tril()
    assert full.any() and (below & ~(part | full)).any(), "something is saved"
    places = torch.arange(dense.shape[0])
    mask = blocks.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None, :])
    assert torch.equal(mask, dense)


def test_block_mask_of_several_rows_is_refused():
    tree = build_prefix_tree([np.array([1, 2]), np.array([3])])
    with pytest.raises(ValueError, match="one row of whole blocks"):
        block_mask(padded_layout(tree))


def test_without_entropy_none_is_computed():
    tree = build_prefix_tree([np.array([1, 2])])
    values, entropy = node_values(torch.randn(1, 2, 5), padded_layout(tree), tree, entropy=False)
    assert entropy is None and values[0] == 0


def test_trees_that_share_a_short_beginning_only_may_stand_apart():
    net, rows = model("Qwen3"), branching_rows()
    tree = build_prefix_tree(rows, joins_where_cheaper(1))
    assert len(tree.roots) > 2
    found = from_tree(net, tree, padded_layout(tree), dense_mask)
    for (own, _), (alone, _) in zip(found, one_by_one(net, rows), strict=True):
        torch.testing.assert_close(own, alone, rtol=1e-9, atol=1e-9)
