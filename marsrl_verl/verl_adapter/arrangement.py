"""The order of a batch's rows: which mini-batch, which rank, which neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from marsrl_verl.core.seeding import derive_generator


def arrange_rows(lengths: Sequence[int], *, ranks: int, updates: int, seed: int, step: int) -> list[int]:
    """Spread rows over mini-batches and ranks.

    verl cuts the batch into `ranks` equal consecutive parts, and every part into `updates` consecutive
    mini-batches. Rows are drawn into mini-batches at random (seeded), and inside a mini-batch dealt out
    by length in serpentine order: every rank gets about as many tokens, and rows that share a
    micro-batch are of similar length, so little is padded.

    Args:
        lengths: tokens of each row, prompt and response.
        ranks: data-parallel ranks.
        updates: mini-batches.
        seed, step: where the random order comes from.

    Returns:
        The new order as indices of `lengths`, which must be a multiple of `ranks * updates` many.
    """
    count = len(lengths)
    if count % (ranks * updates):
        raise ValueError(f"{count} rows cannot be cut into {updates} mini-batches for each of {ranks} ranks")
    order = list(range(count))
    if updates > 1:
        order = derive_generator(seed, "mini-batches", str(step)).permutation(count).tolist()
    size = count // updates
    parts: list[list[list[int]]] = [[[] for _ in range(updates)] for _ in range(ranks)]
    for update in range(updates):
        rows = sorted(order[update * size : (update + 1) * size], key=lambda row: (-lengths[row], row))
        for position, row in enumerate(rows):
            turn, place = divmod(position, ranks)
            rank = place if turn % 2 == 0 else ranks - 1 - place
            parts[rank][update].append(row)
    return [row for rank in parts for rows in rank for row in rows]
