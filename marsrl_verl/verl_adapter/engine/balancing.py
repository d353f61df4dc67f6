"""The order of a batch's rows: which mini-batch, which rank, which neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from marsrl_verl.core.seeding import derive_generator


def balance_rows(
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
    count, real = len(lengths), len(lengths) - padding_rows
    _check(count, real, ranks, updates)
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


def balance_by_prompt(
    prompts: Sequence[Hashable],
    lengths: Sequence[int],
    *,
    ranks: int,
    updates: int,
    seed: int,
    step: int,
    padding_rows: int = 0,
) -> list[int]:
    """As `balance_rows`, with rows of one prompt in one mini-batch and on one rank as far as there is room.

    Prompts are drawn into mini-batches at random (seeded). In a mini-batch the largest ones go first, each
    to the rank with the fewest tokens that has room for all of it; where no rank has, it is cut.

    Args:
        prompts: the prompt of each row. Padding rows are dealt out for themselves.
        lengths, ranks, updates, seed, step, padding_rows: as in `balance_rows`.
    """
    real = len(lengths) - padding_rows
    members: dict[Hashable, list[int]] = {}
    for row in range(real):
        members.setdefault(prompts[row], []).append(row)
    names = list(members)
    if updates > 1:
        drawn = derive_generator(seed, "mini-batches", str(step)).permutation(len(names))
        names = [names[index] for index in drawn]
    order = [row for name in names for row in members[name]]
    mini_batches = _cut(order, len(lengths), ranks, updates)
    parts: list[list[list[int]]] = [[[] for _ in range(updates)] for _ in range(ranks)]
    for update, rows in enumerate(mini_batches):
        capacity = len(rows) // ranks
        for part in _deal_by_prompt(rows, prompts, lengths, real, ranks, capacity):
            parts[part[0]][update].extend(part[1])
    return [row for rank in parts for rows in rank for row in rows]


def _deal_by_prompt(
    rows: list[int], prompts: Sequence[Hashable], lengths: Sequence[int], real: int, ranks: int, capacity: int
) -> list[tuple[int, list[int]]]:
    """(rank, rows) parts of one mini-batch; every rank gets `capacity` rows."""
    units: dict[Hashable, list[int]] = {}
    for row in rows:
        units.setdefault(("padding", row) if row >= real else ("prompt", prompts[row]), []).append(row)
    tokens, free = [0] * ranks, [capacity] * ranks
    parts = []
    for unit in sorted(units.values(), key=lambda some: (-sum(lengths[row] for row in some), some[0])):
        while unit:
            fitting = [rank for rank in range(ranks) if free[rank] >= len(unit)]
            if fitting:
                rank = min(fitting, key=lambda one: (tokens[one], one))
            else:
                rank = max(range(ranks), key=lambda one: (free[one], -one))
            taken, unit = unit[: free[rank]], unit[free[rank] :]
            free[rank] -= len(taken)
            tokens[rank] += sum(lengths[row] for row in taken)
            parts.append((rank, taken))
    return parts


def _cut(order: list[int], count: int, ranks: int, updates: int) -> list[list[int]]:
    """Mini-batches of equal size: consecutive parts of `order`, and the other rows (padding) evenly."""
    _check(count, len(order), ranks, updates)
    size = count // updates
    mini_batches = []
    start = 0
    for update in range(updates):
        padding = list(range(len(order) + update, count, updates))
        mini_batches.append(order[start : start + size - len(padding)] + padding)
        start += size - len(padding)
    return mini_batches


def _check(count: int, real: int, ranks: int, updates: int) -> None:
    if count % (ranks * updates):
        raise ValueError(f"{count} rows cannot be cut into {updates} mini-batches for each of {ranks} ranks")
    if updates > real:
        raise ValueError(f"{real} rows cannot fill {updates} mini-batches; ask for at most {real}")
