"""Rows whose log-probabilities the trainer recorded when their samples came back, and which therefore need no
second pass before the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from verl import DataProto

ENTROPIES = "recorded_entropies"
"""Column (B, R) of a batch: entropies that were recorded beside `recorded_log_probs`, else NaN."""


def fully_recorded(batch: DataProto) -> torch.Tensor:
    """(B,) bool: rows with a recorded log-probability and entropy for each trained token; rows of padding,
    which have no such token, are among them."""
    tensors = batch.batch
    missing = tensors["recorded_log_probs"].isnan() | tensors[ENTROPIES].isnan()
    return ~(missing & tensors["response_mask"].bool()).any(1)


def rows_to_compute(recorded: Sequence[bool], ranks: int, multiple: int = 1) -> list[int]:
    """The rows that are not recorded, as many for every rank: recorded ones of a rank fill up its part.

    verl cuts the batch into `ranks` equal consecutive parts, so that the rows of a part are its rank's.

    Args:
        recorded: of each row, a multiple of `ranks * multiple` in all.
        ranks: data-parallel ranks.
        multiple: of which a rank's number of rows has to be one.
    """
    size = len(recorded) // ranks
    parts = [range(rank * size, (rank + 1) * size) for rank in range(ranks)]
    most = max(sum(not recorded[row] for row in part) for part in parts)
    most += -most % multiple
    chosen: list[int] = []
    for part in parts:
        needed_first = sorted(part, key=lambda row: recorded[row])
        chosen += sorted(needed_first[:most])
    return chosen


def old_log_probs(
    batch: DataProto,
    compute: Callable[[DataProto], DataProto],
    *,
    ranks: int,
    multiple: int = 1,
    reuse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the batch `old_log_probs`, (B, R): of each row those under the weights about to be updated, or the
    recorded ones, which the loss takes for it.

    Args:
        batch: arranged for the ranks; `recorded_entropies` are taken out.
        compute: the workers' pass over some rows: `old_log_probs` and `entropys`.
        ranks, multiple: see `rows_to_compute`.
        reuse: whether recorded rows are left out of the pass.

    Returns:
        The entropies, (B, R), and (B,) bool, which rows were computed.
    """
    computed = torch.ones(len(batch), dtype=torch.bool)
    recorded = fully_recorded(batch) if reuse else ~computed
    entropies = batch.batch.pop(ENTROPIES)
    rows = rows_to_compute(recorded.tolist(), ranks, multiple)
    if len(rows) == len(batch):
        output = compute(batch)
        entropies = output.batch.pop("entropys")
        batch.union(output)
        return entropies, computed
    computed[:] = False
    log_probs = batch.batch["recorded_log_probs"].nan_to_num()  # NaN is left in padding alone
    entropies = entropies.nan_to_num()
    if rows:
        index = torch.tensor(rows)
        part = batch.select_idxs(rows)
        lengths = batch.meta_info["global_token_num"]
        part.meta_info = {**batch.meta_info, "global_token_num": [lengths[row] for row in rows]}
        output = compute(part)
        log_probs[index], entropies[index] = output.batch["old_log_probs"], output.batch["entropys"]
        computed[index] = True
    batch.batch["old_log_probs"] = log_probs
    return entropies, computed
