"""One forward pass over a prefix tree: every token that sequences share is computed once.

A node attends to itself and its ancestors. That is causal attention over each of the sequences through it,
so logits, and with them every gradient, are those of the sequences one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from marsrl_verl.attention.node_values import NodeValues
from marsrl_verl.core.prefix_tree import PrefixTree, shelve

BLOCK = 128
"""Tokens of a block of flex attention's mask."""


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Places of a prefix tree's nodes in a model's input of B rows of T places."""

    input_ids: torch.Tensor
    """(B, T)."""
    position_ids: torch.Tensor
    """(B, T) each token's position in its sequences."""
    ends: torch.Tensor
    """(B, T) one after the last descendant's place, in the row's own places; padding ends at once."""
    places: torch.Tensor
    """(N,) each node's place in the flattened input."""

    def to(self, device: torch.device | str | int) -> TreeLayout:
        """The layout on a device."""
        return TreeLayout(*(getattr(self, field.name).to(device) for field in fields(self)))


def packed_layout(tree: PrefixTree, *, pad_token_id: int = 0) -> TreeLayout:
    """All trees end to end in one row, padded to whole blocks: for flex attention, which skips what a
    node does not see."""
    zeros = np.zeros(len(tree.tokens), dtype=np.int64)
    return _layout(tree, zeros, zeros, -(-len(tree.tokens) // BLOCK) * BLOCK, pad_token_id)


def padded_layout(tree: PrefixTree, *, pad_token_id: int = 0) -> TreeLayout:
    """Rows as long as the largest tree (`core.prefix_tree.shelve`): for attention with a dense mask, whose
    cost is the square of the rows' length."""
    sizes = np.diff([*tree.roots, len(tree.tokens)])
    shelves = np.array(shelve(sizes.tolist()))
    row, shift = (np.repeat(column, sizes) for column in (shelves[:, 0], shelves[:, 1] - tree.roots))
    return _layout(tree, row, shift, int(sizes.max()), pad_token_id)


def _layout(
    tree: PrefixTree, row: np.ndarray, shift: np.ndarray, width: int, pad_token_id: int
) -> TreeLayout:
    """`row` (N,) and `shift` (N,): node n stands in its row at place n + shift."""
    column = np.arange(len(tree.tokens)) + shift
    shape = (int(row.max()) + 1, width)
    ids = np.full(shape, pad_token_id, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    ends = np.broadcast_to(np.arange(1, width + 1), shape).copy()
    ids[row, column], positions[row, column] = tree.tokens, tree.positions
    ends[row, column] = tree.ends + shift
    arrays = (ids, positions, ends, row * width + column)
    return TreeLayout(*(torch.from_numpy(array) for array in arrays))


def dense_mask(layout: TreeLayout) -> torch.Tensor:
    """(B, 1, T, T) boolean: whether a place (row) attends to another (column). Padding attends to itself."""
    place = torch.arange(layout.ends.shape[1], device=layout.ends.device)
    seen = place[None, None, :] <= place[None, :, None]
    return (seen & (place[None, :, None] < layout.ends[:, None, :])).unsqueeze(1)


def block_mask(layout: TreeLayout) -> BlockMask:
    """The same mask of a `packed_layout` for flex attention, from the blocks' extremes: nothing of size T x T
    is made. ValueError for another layout."""
    rows, width = layout.ends.shape
    if rows != 1 or width % BLOCK:
        raise ValueError(f"a block mask needs one row of whole blocks of {BLOCK}, found {rows} of {width}")
    ends = layout.ends[0]
    count = width // BLOCK
    first = torch.arange(count, device=ends.device) * BLOCK
    latest, earliest = ends.view(count, BLOCK).amax(1), ends.view(count, BLOCK).amin(1)
    query, key = first[:, None], first[None, :]
    some = (key <= query) & (latest[None, :] > query)
    # Full: all keys before the first query, and none that ends before the last.
    full = (key < query) & (earliest[None, :] >= query + BLOCK)

    def sees(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < ends[k])

    part_counts, part_blocks = _listed(some & ~full)
    full_counts, full_blocks = _listed(full)
    return BlockMask.from_kv_blocks(
        part_counts, part_blocks, full_counts, full_blocks, BLOCK_SIZE=BLOCK, mask_mod=sees
    )


def _listed(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, 1, blocks) how many key blocks each query block has, and (1, 1, blocks, blocks) which, first."""
    counts = chosen.sum(1, dtype=torch.int32)
    blocks = torch.argsort(chosen.int(), dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], blocks[None, None].contiguous()


def node_values(
    logits: torch.Tensor, layout: TreeLayout, tree: PrefixTree, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(N,) the log-probability of every node's token after its ancestors, 0 for a first token, and (N,) the
    entropy of what follows a node, where wanted; nats, float32 or double as the logits (B, T, V), which are
    those of the layout's places divided by the temperature."""
    device = logits.device
    parents = torch.from_numpy(tree.parents).to(device)
    known = parents >= 0
    before = layout.places[parents[known]]
    tokens = torch.from_numpy(tree.tokens).to(device)[known]
    values, entropies = NodeValues.apply(logits.flatten(0, 1), before, tokens, entropy)
    log_probs = values.new_zeros(len(parents)).masked_scatter(known, values)
    return log_probs, entropies[layout.places] if entropy else None
