"""A batch of rows that ranks and mini-batches can share evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto

from marsrl_verl.core.prefix_tree import prefix_order, shared_with_previous
from marsrl_verl.verl_adapter.arrangement import arrange_families, arrange_rows
from marsrl_verl.verl_adapter.batch import TrainingRow, build_batch


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a batch is cut and what the workers are told with it."""

    ranks: int
    """Data-parallel ranks."""
    updates: int
    """Mini-batches."""
    seed: int
    step: int
    share_prefixes: bool = False
    """Rows with the same prompt stay together, and the workers compute common beginnings once."""


def arranged_batch(rows: list[TrainingRow], plan: BatchPlan, config: DictConfig, tokenizer: Any) -> DataProto:
    """The batch of `rows` (`build_batch`), padded and ordered for the plan's ranks and mini-batches."""
    actor = config.actor_rollout_ref.actor
    # With a fixed micro-batch size verl wants every rank's rows to be a multiple of it.
    by_tokens = actor.use_dynamic_bsz or plan.share_prefixes
    micro_batch_rows = 1 if by_tokens else int(actor.ppo_micro_batch_size_per_gpu)
    batch = build_batch(
        rows,
        pad_token_id=pad_token_id(tokenizer),
        row_multiple=plan.ranks * plan.updates * micro_batch_rows,
    )
    lengths = batch.meta_info["global_token_num"]
    padding = len(batch) - len(rows)
    cut = {"ranks": plan.ranks, "updates": plan.updates, "seed": plan.seed, "step": plan.step}
    if plan.share_prefixes:
        families = [tuple(row.sample.prompt_ids) for row in rows]
        costs = [*_computed_tokens(rows), *lengths[len(rows) :]]  # a padding row may be alone where it goes
        order = arrange_families(families, costs, padding_rows=padding, **cut)
    else:
        order = arrange_rows(lengths, padding_rows=padding, **cut)
    batch.reorder(torch.tensor(order))
    batch.meta_info["global_token_num"] = [lengths[row] for row in order]
    batch.meta_info["temperature"] = config.actor_rollout_ref.rollout.temperature
    batch.meta_info["updates"] = plan.updates
    batch.meta_info["micro_batch_rows"] = micro_batch_rows
    batch.meta_info["share_prefixes"] = plan.share_prefixes
    return batch


def _computed_tokens(rows: list[TrainingRow]) -> list[int]:
    """What each row adds to the prefix tree of all rows."""
    sequences = [np.array(row.sample.prompt_ids + row.sample.response_ids, dtype=np.int64) for row in rows]
    order = prefix_order(sequences)
    added = [0] * len(rows)
    for index, common in zip(order, shared_with_previous(sequences, order), strict=True):
        added[index] = len(sequences[index]) - common
    return added


def pad_token_id(tokenizer: Any) -> int:
    """What fills up rows: the tokenizer's padding token, or its end of sequence."""
    pad = tokenizer.pad_token_id
    return int(pad if pad is not None else tokenizer.eos_token_id)
