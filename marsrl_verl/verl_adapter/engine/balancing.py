"""The order of a batch's rows: their mini-batches, ranks and neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from marsrl_verl.core.seeding import derive_generator


def balance_rows(
    lengths: Sequence[int], *, ranks: int, updates: int, seed: int, step: int, padding_rows: int = 0
) -> list[int]:
    """Spreads rows over mini-batches and ranks.

    verl cuts the batch into `ranks` equal consecutive parts, and every part into `updates` consecutive
    mini-batches. Rows are drawn into mini-batches at random (by seed and step), padding rows evenly. Inside a
    mini-batch they are dealt out by length in serpentine order: every rank gets about as many tokens,
    and rows that share a micro-batch are of similar length, so little is padded.

    Args:
        lengths: tokens of each row, prompt and response; a multiple of `ranks * updates` many.
        ranks: data-parallel ranks.
        updates: mini-batches.
        padding_rows: number of padding rows, which are the last ones. A mini-batch of nothing else would
            divide by zero tokens, so `updates` must not exceed the other rows.

    Returns:
        The new order as indices of `lengths`.
    """
    count, real = len(lengths), len(lengths) - padding_rows
    _check(count, real, ranks, updates)
    order = list(range(count))
    if updates > 1:
        order[:real] = derive_generator(seed, "mini-batches", str(step)).permutation(real).tolist()
    dealt = []
    for update in range(updates):
        by_rank: list[list[int]] = [[] for _ in range(ranks)]
        rows = sorted(order[update::updates], key=lambda row: (-lengths[row], row))
        for position, row in enumerate(rows):
            turn, place = divmod(position, ranks)
            by_rank[place if turn % 2 == 0 else ranks - 1 - place].append(row)
        dealt.append(by_rank)
    return _rank_by_rank(dealt)


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
    """Spreads rows as `balance_rows`, those of one prompt in one mini-batch and on one rank, if there is
    room.

    Prompts, one of each row but for padding, are drawn into mini-batches at random. In a mini-batch the
    largest ones go first, each to the rank with the fewest tokens that has room for all of it; if no rank
    has, it is cut.
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
    return _rank_by_rank([_dealt_by_prompt(rows, prompts, lengths, real, ranks) for rows in mini_batches])


def _dealt_by_prompt(
    rows: list[int], prompts: Sequence[Hashable], lengths: Sequence[int], real: int, ranks: int
) -> list[list[int]]:
    """A mini-batch's rows by rank, as many for each."""
    units: dict[Hashable, list[int]] = {}
    for row in rows:
        units.setdefault(("padding", row) if row >= real else ("prompt", prompts[row]), []).append(row)
    tokens, free = [0] * ranks, [len(rows) // ranks] * ranks
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
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
            by_rank[rank] += taken
    return by_rank


def _rank_by_rank(dealt: list[list[list[int]]]) -> list[int]:
    """All rows of the first rank, mini-batch by mini-batch, then those of the next one."""
    return [row for mini_batches in zip(*dealt, strict=True) for rows in mini_batches for row in rows]


def _cut(order: list[int], count: int, ranks: int, updates: int) -> list[list[int]]:
    """Mini-batches of equal size: consecutive parts of `order`, and the other rows (padding) evenly."""
    _check(count, len(order), ranks, updates)
    mini_batches, start = [], 0
    for update in range(updates):
        padding = range(len(order) + update, count, updates)
        end = start + count // updates - len(padding)
        mini_batches.append([*order[start:end], *padding])
        start = end
    return mini_batches


def _check(count: int, real: int, ranks: int, updates: int) -> None:
    if count % (ranks * updates):
        raise ValueError(f"{count} rows cannot be cut into {updates} mini-batches for each of {ranks} ranks")
    if updates > real:
        raise ValueError(f"{real} rows cannot fill {updates} mini-batches; ask for at most {real}")
