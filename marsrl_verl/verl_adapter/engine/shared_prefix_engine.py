"""verl's FSDP engine with shared-prefix training: tokens that rows of a micro-batch have in common at their
beginning are computed once.

The batch itself requests it (`share_prefixes`), so that every other pass runs as upstream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from marsrl_verl.attention.layer_kinds import FULL, layer_kinds
from marsrl_verl.attention.node_values import at_least_float32
from marsrl_verl.attention.shared_prefix import (
    TreeLayout,
    block_mask,
    dense_mask,
    node_values,
    packed_layout,
    padded_layout,
)
from marsrl_verl.core.prefix_tree import (
    Joins,
    PrefixTree,
    always_joins,
    build_prefix_tree,
    halve_until,
    joins_where_cheaper,
    packed_cost,
    padded_cost,
    part_cost,
    split_rows,
)
from marsrl_verl.verl_adapter.engine.adapter_engine import AdapterFSDPEngine

SHARE_KEY = "share_prefixes"
"""The batch's switch."""
COMPUTED_TOKENS = "computed_tokens"
"""Metric of an update: tokens that went through the model, on all ranks, padding of the layout apart."""
_TREE = "prefix_tree"
_MARK = 2**24
"""Above all token ids; 256 times it is `core.prefix_tree`'s limit of token ids."""
_FLEX = "flex_attention"


class SharedPrefixFSDPEngine(AdapterFSDPEngine):
    """Upstream behaviour: every row is computed from its first token on, whatever other rows begin with."""

    _computed_tokens: int = 0
    """Computed tokens of the micro-batch at hand."""

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """Runs as upstream; with `share_prefixes`, rows with a common beginning are in one micro-batch."""
        if not sharing(data):
            return super().forward_backward_batch(data, loss_function, forward_only)
        self._refuse_what_shares_nothing()
        # Micro-batches are cut by tokens, and verl puts the rows back in order where it knows that.
        tu.assign_non_tensor(data, use_dynamic_bsz=True)
        with _micro_batches_by_prefix(padded_cost if self._dense() else packed_cost, self._joins()):
            return super().forward_backward_batch(data, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """Upstream's inputs, or the prefix tree of the rows."""
        if not sharing(micro_batch):
            return super().prepare_model_inputs(micro_batch)
        rows = _token_rows(micro_batch)
        tree = build_prefix_tree(rows, self._joins())
        tree = replace(tree, tokens=tree.tokens % _MARK)
        self._computed_tokens = len(tree.tokens)
        if self._computed_tokens == sum(map(len, rows)):  # nothing to share, and a mask would cost more
            return super().prepare_model_inputs(micro_batch)
        layout = (padded_layout if self._dense() else packed_layout)(tree).to(get_device_id())
        inputs = {
            "input_ids": layout.input_ids,
            "position_ids": layout.position_ids,
            # transformers leaves a mask of four dimensions as it is.
            "attention_mask": dense_mask(layout) if self._dense() else block_mask(layout),
        }
        return inputs, {_TREE: (tree, layout)}

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Nested `log_probs` as upstream, and `entropy` if requested, a value per token of each row."""
        if _TREE not in output_args:
            found = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
            # Upstream's entropies have the logits' dtype; the other micro-batches of the pass have float32.
            return {k: at_least_float32(v) for k, v in found.items()} if sharing(micro_batch) else found
        tree, layout = output_args[_TREE]
        entropy = bool(tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False))
        logits = _scaled(output.logits, _temperatures(micro_batch), tree, layout)
        log_probs, entropies = node_values(logits, layout, tree, entropy=entropy)
        device, offsets = log_probs.device, micro_batch["input_ids"].offsets()
        # A log-probability stands one place to the left of its token; the row's last place has none.
        following = torch.from_numpy(np.concatenate([np.append(row[1:], row[0]) for row in tree.rows]))
        result = {"log_probs": log_probs[following.to(device)]}
        if entropies is not None:
            result["entropy"] = entropies[torch.from_numpy(np.concatenate(tree.rows)).to(device)]
        return {k: torch.nested.nested_tensor_from_jagged(v, offsets) for k, v in result.items()}

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        """Runs as upstream; an update's metrics count the tokens that were computed."""
        loss, output = super().forward_step(micro_batch, loss_function, forward_only)
        if sharing(micro_batch) and loss_function is not None:
            ranks = self.get_data_parallel_size()  # verl takes the mean over them
            count = Metric(AggregationType.SUM, self._computed_tokens * ranks)
            output["metrics"][COMPUTED_TOKENS] = count
        return loss, output

    def _dense(self) -> bool:
        """True if the model's attention takes a dense mask; flash attention takes none, and flex attention
        stands in for it."""
        name = _model_config(self)._attn_implementation
        if name == "sdpa":
            return True
        _let_flex_attention_take_block_masks(name)
        return False

    def _joins(self) -> Joins:
        return joins_where_cheaper(_model_config(self).hidden_size) if self._dense() else always_joins

    def _refuse_what_shares_nothing(self) -> None:
        config = _model_config(self)
        if others := layer_kinds(config) - {FULL}:
            raise ValueError(
                f"marsrl.training.share_prefixes: {type(config).__name__} has layers of {sorted(others)}, "
                "for which there is no mask of a prefix tree; set it to false"
            )


def computed_tokens(metrics: dict[str, Any], updates: int) -> float:
    """Takes the computed tokens of a step out of an update's metrics, and verl's utilisation with them, which
    counts the tokens of whole rows. RuntimeError if the rows were computed one by one."""
    mean = metrics.pop(f"actor/{COMPUTED_TOKENS}", None)
    if mean is None:
        raise RuntimeError(
            "marsrl.training.share_prefixes: the workers shared nothing. It needs our engine, which is "
            "registered for NVIDIA GPUs and for the processor (verl_adapter/engine/probe_engine.py)"
        )
    metrics.pop("perf/mfu/actor", None)
    return float(mean) * updates


def sharing(data: TensorDict) -> bool:
    return bool(tu.get_non_tensor_data(data=data, key=SHARE_KEY, default=False))


def _model_config(engine: FSDPEngineWithLMHead) -> Any:
    return getattr(engine.module, "module", engine.module).config  # FSDP1 keeps the model below


def _token_rows(data: TensorDict) -> list[np.ndarray]:
    """The ids of each row. Rows of different temperatures differ in the first one, so that they share
    nothing: the logits of a place have one temperature."""
    rows = [row.cpu().numpy() for row in data["input_ids"].unbind()]
    _, marks = np.unique(_temperatures(data), return_inverse=True)
    if not marks.any():
        return rows
    return [np.append(row[:1] + mark * _MARK, row[1:]) for row, mark in zip(rows, marks, strict=True)]


def _temperatures(data: TensorDict) -> np.ndarray:
    """(R,) temperatures of the rows."""
    value = data["temperature"]
    if isinstance(value, torch.Tensor):
        return value.flatten().cpu().numpy()
    return np.full(data["input_ids"].shape[0], float(value))


def _scaled(
    logits: torch.Tensor, temperatures: np.ndarray, tree: PrefixTree, layout: TreeLayout
) -> torch.Tensor:
    """(B, T, V) logits over the temperature of the rows that go through their places."""
    if (temperatures == temperatures[0]).all():
        one = float(temperatures[0])
        return logits if one == 1.0 else logits / one
    of_nodes = np.ones(len(tree.tokens), dtype=np.float32)
    for nodes, one in zip(tree.rows, temperatures, strict=True):
        of_nodes[nodes] = one
    of_places = torch.ones(logits.shape[0] * logits.shape[1], dtype=logits.dtype, device=logits.device)
    of_places[layout.places] = torch.from_numpy(of_nodes).to(of_places)
    return logits / of_places.view(*logits.shape[:2], 1)


@contextmanager
def _micro_batches_by_prefix(cost: Any, joins: Joins) -> Iterator[None]:
    """Has `forward_backward_batch` cut its rows by prefixes. Upstream behaviour: it calls its module's
    `prepare_micro_batches`, which balances rows by their lengths, and has no hook to cut them by prefixes."""

    def cut(data: TensorDict, dp_group: Any = None, **_: Any) -> tuple[list[Any], list[list[int]]]:
        limit = int(data["max_token_len_per_gpu"])
        rows = _token_rows(data)
        parts = split_rows(rows, limit, cost=cost, joins=joins)
        # Every rank passes through the model equally often.
        most = torch.tensor([len(parts)], device=get_device_id())
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        parts = halve_until(
            parts,
            int(most.item()),
            lambda part: part_cost([rows[index] for index in part], cost=cost, joins=joins) <= limit,
        )
        return [tu.index_select_tensor_dict(data, part) for part in parts], parts

    upstream = transformer_impl.prepare_micro_batches
    transformer_impl.prepare_micro_batches = cut
    try:
        yield
    finally:
        transformer_impl.prepare_micro_batches = upstream


def _let_flex_attention_take_block_masks(name: str) -> None:
    """Has the attention function `name` leave calls with a block mask to flex attention, for good: activation
    checkpointing calls it again in the backward pass."""
    if name not in ALL_ATTENTION_FUNCTIONS:
        raise ValueError(
            f"marsrl.training.share_prefixes: attention {name!r} is not in transformers' registry and takes "
            "no mask of a prefix tree; use sdpa or flash_attention_2"
        )
    original = ALL_ATTENTION_FUNCTIONS[name]
    if name == _FLEX or getattr(original, "takes_block_masks", False):
        return
    flex = ALL_ATTENTION_FUNCTIONS[_FLEX]

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        function = flex if isinstance(attention_mask, BlockMask) else original
        return function(module, query, key, value, attention_mask, **kwargs)

    attention.takes_block_masks = True  # type: ignore[attr-defined]
    ALL_ATTENTION_FUNCTIONS[name] = attention
