"""Rows whose log-probabilities the trainer recorded when their samples came back, and which therefore need no
second pass before the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RESPONSE_MASK, Rows
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS
from marsrl_verl.verl_adapter.engine.batch import PADDING, PolicyBatch

Pass = Callable[[list[int] | None], tuple[torch.Tensor, torch.Tensor]]
"""The workers' pass over some slots (None: all): log-probabilities and entropies, jagged."""


def fully_recorded(rows: Rows) -> NDArray[np.bool_]:
    """(B,) rows with a recorded log-probability and entropy for each trained token."""
    missing = np.isnan(rows.columns[RECORDED_LOG_PROBS]) | np.isnan(rows.columns[RECORDED_ENTROPIES])
    return rows.row_sums(missing & rows.columns[RESPONSE_MASK].astype(bool)) == 0


def slots_to_compute(recorded: Sequence[bool], ranks: int, multiple: int = 1) -> list[int]:
    """The slots that are not recorded, as many for every rank: recorded ones of a rank fill up its part.

    verl cuts the batch into `ranks` equal consecutive parts, so that the slots of a part are its rank's.

    Args:
        recorded: of each slot, a multiple of `ranks * multiple` in all.
        ranks: data-parallel ranks.
        multiple: of which a rank's number of slots has to be one.
    """
    size = len(recorded) // ranks
    parts = [range(rank * size, (rank + 1) * size) for rank in range(ranks)]
    most = max(sum(not recorded[slot] for slot in part) for part in parts)
    most += -most % multiple
    chosen: list[int] = []
    for part in parts:
        needed_first = sorted(part, key=lambda slot: recorded[slot])
        chosen += sorted(needed_first[:most])
    return chosen


def fill_log_probs(batch: PolicyBatch, compute: Pass, *, reuse: bool) -> NDArray[np.bool_]:
    """Fill the columns `old_log_probs` and `entropies` of a policy's rows: under the weights about to be
    updated, or as they were recorded, which the loss takes for them.

    Args:
        batch: its rows; the step's rows have both columns.
        compute: the workers' pass.
        reuse: whether recorded rows are left out of the pass.

    Returns:
        (B,) of the step's rows, which were computed here.
    """
    rows = batch.rows
    computed = np.zeros(len(rows), dtype=bool)
    slots: list[int] | None = None
    if reuse:
        known = fully_recorded(rows)
        recorded = np.where(batch.slots == PADDING, True, known[batch.slots])
        slots = slots_to_compute(recorded.tolist(), batch.plan.ranks, batch.plan.micro_batch_rows)
        if len(slots) == len(batch):
            slots = None
        for row in batch.members[known[batch.members]].tolist():
            part = rows.slice(row)
            for name, source in ((OLD_LOG_PROBS, RECORDED_LOG_PROBS), (ENTROPIES, RECORDED_ENTROPIES)):
                rows.columns[name][part] = np.nan_to_num(rows.columns[source][part])
    if slots == []:
        return computed
    log_probs, entropies = compute(slots)
    batch.read(log_probs, rows.columns[OLD_LOG_PROBS], slots)
    batch.read(entropies, rows.columns[ENTROPIES], slots)
    selected = batch.slots if slots is None else batch.slots[slots]
    computed[selected[selected != PADDING]] = True
    return computed
