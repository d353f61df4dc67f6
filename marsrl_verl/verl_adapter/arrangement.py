"""The order of a batch's rows: which mini-batch, which rank, which neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from marsrl_verl.core.seeding import derive_generator


def arrange_rows(
    lengths: Sequence[int], *, ranks: int, updates: int, seed: int, step: int, padding_rows: int = 0
) -> list[int]:
    """Spread rows over mini-batches and ranks.

    verl cuts the batch into `ranks` equal consecutive parts, and every part into `updates` consecutive
    mini-batches. Rows are drawn into mini-batches at random (seeded), padding rows evenly. Inside a
    mini-batch they are dealt out by length in serpentine order: every rank gets about as many tokens,
    and rows that share a micro-batch are of similar length, so little is padded.

    Args:
        lengths: tokens of each row, prompt and response.
        ranks: data-parallel ranks.
        updates: mini-batches.
        seed, step: where the random order comes from.
        padding_rows: how many of the last rows are padding. A mini-batch of nothing else would divide
            by no token, so `updates` must not exceed the other rows.

    Returns:
        The new order as indices of `lengths`, which must be a multiple of `ranks * updates` many.
    """
    count = len(lengths)
    if count % (ranks * updates):
        raise ValueError(f"{count} rows cannot be cut into {updates} mini-batches for each of {ranks} ranks")
    real = count - padding_rows
    if updates > real:
        raise ValueError(f"{real} rows cannot fill {updates} mini-batches; ask for at most {real}")
    order = list(range(count))
    if updates > 1:
        order[:real] = derive_generator(seed, "mini-batches", str(step)).permutation(real).tolist()
    mini_batches = [order[update::updates] for update in range(updates)]
    parts: list[list[list[int]]] = [[[] for _ in range(updates)] for _ in range(ranks)]
    for update in range(updates):
        rows = sorted(mini_batches[update], key=lambda row: (-lengths[row], row))
        for position, row in enumerate(rows):
            turn, place = divmod(position, ranks)
            rank = place if turn % 2 == 0 else ranks - 1 - place
            parts[rank][update].append(row)
    return [row for rank in parts for rows in rank for row in rows]
