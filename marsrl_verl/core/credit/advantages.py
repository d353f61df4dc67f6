"""Group-relative and REINFORCE++ advantages.

The loss they are meant for is the mean over all T trained tokens of the step,

    loss = -1/T * sum_i sum_t A_i * log p(token_it),

with one advantage A_i per sequence, or A_it per token. Whatever concerns groups is a factor in it,
so that any split of the rows into micro-batches or ranks gives the same gradient, if each part divides by the
same T.

Where the column `kl_penalties` is there (`algorithm.use_kl_in_reward`), rewards are less these penalties:
token by token for REINFORCE++, and their sum over a sequence for what is compared in a group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import KL_PENALTIES, RESPONSE_MASK, RowRef, Rows
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.trajectory import Trajectory


def group_advantages(
    rewards: Sequence[float], *, normalize_std: bool = True, eps: float = 1e-6
) -> list[float]:
    """(r - mean) / (std + eps) inside one group (GRPO, arXiv 2402.03300).

    Args:
        rewards: the rewards of a group, G >= 2 numbers.
        normalize_std: False leaves out the division (Dr. GRPO, arXiv 2503.20783).
        eps: keeps the quotient finite.

    The standard deviation is the sample's (G - 1 in the denominator), as in verl.
    """
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least 2 rewards to be compared, found {len(rewards)}")
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalize_std:
        return centred
    variance = math.fsum(value * value for value in centred) / (len(rewards) - 1)
    return [value / (math.sqrt(variance) + eps) for value in centred]


Part = tuple[str, int]
"""Role of a sequence and its number among that role's; equal ones of a group's trajectories are compared."""


def parts(one: Trajectory) -> list[Part]:
    """The parts of a trajectory's sequences."""
    seen: Counter[str] = Counter()
    found = []
    for sequence in one.sequences:
        found.append((sequence.role, seen[sequence.role]))
        seen[sequence.role] += 1
    return found


def _rewards(group: Group, part: Part | None) -> list[float]:
    """Rewards of the comparable trajectories for a part: its own, or the trajectory's where it has none or
    the trajectory lacks the part (an agent that never spoke)."""
    return [_reward(one, part) for one in group.comparable]


def _reward(one: Trajectory, part: Part | None) -> float:
    if all(sequence.reward is None for sequence in one.sequences):
        return one.value
    rewards = (sequence.reward for sequence in one.sequences)
    own = next((reward for other, reward in zip(parts(one), rewards, strict=True) if other == part), None)
    return one.value if own is None else own


def _all_parts(group: Group) -> set[Part]:
    return {part for one in group.trajectories for part in parts(one)}


def has_signal(group: Group) -> bool:
    """True if a group's rewards, before any KL penalty, are not all equal: those of its trajectories, or of
    some part of them."""
    found: set[Part | None] = {*_all_parts(group)} or {None}
    return any(len(set(_rewards(group, part))) > 1 for part in found)


def comparable_rows(groups: Sequence[Group], *, differing: bool = True) -> list[RowRef]:
    """The sequences that an advantage can be given to, in the order of the groups.

    Trajectories whose request or grading failed say nothing: they are left out and count in no mean. So are
    sequences without a token of their policy's own and trajectories that were trained before (their rewards
    do count in their group's mean).

    Args:
        groups: of the step.
        differing: leave out groups whose rewards, before any KL penalty, are all equal.
    """
    rows = []
    for at, group in enumerate(groups):
        differ = {part: not differing or len(set(_rewards(group, part))) > 1 for part in _all_parts(group)}
        rows += [
            RowRef(at, place, number)
            for place, one in enumerate(group.trajectories)
            if one.comparable and one.trajectory_id not in group.trained_before
            for number, (part, sequence) in enumerate(zip(parts(one), one.sequences, strict=True))
            if differ[part] and sequence.trained_tokens
        ]
    return rows


def group_relative(rows: Rows, *, normalize_std: bool = True, eps: float = 1e-6) -> NDArray[np.float64]:
    """(B,) the advantage of every row in its group (`group_advantages`): sequences of one role are compared
    (several of one in a trajectory by their number), each by its own reward or its trajectory's, less its
    tokens' `kl_penalties`.

    Raises:
        ValueError: rewards have KL penalties, and a sequence that is compared is no row, so that its penalty
            is unknown.
    """
    penalties = _row_penalties(rows)
    by_group: dict[tuple[int, Part], dict[str, float]] = {}
    found = []
    for row, ref in enumerate(rows.refs):
        part = parts(rows.trajectory(row))[ref.sequence]
        key = ref.group, part
        if key not in by_group:
            group = rows.groups[ref.group]
            rewards = _rewards(group, part)
            if penalties is not None:
                costs = [_cost(penalties, part, one) for one in group.comparable]
                rewards = [reward - cost for reward, cost in zip(rewards, costs, strict=True)]
            values = group_advantages(rewards, normalize_std=normalize_std, eps=eps)
            names = [one.trajectory_id for one in group.comparable]
            by_group[key] = dict(zip(names, values, strict=True))
        found.append(by_group[key][rows.trajectory(row).trajectory_id])
    return np.array(found, dtype=np.float64)


def _row_penalties(rows: Rows) -> dict[tuple[str, Part], float] | None:
    """KL penalties of the rows, by trajectory and part; None: rewards have none."""
    if KL_PENALTIES not in rows.columns:
        return None
    sums = rows.row_sums(rows.columns[KL_PENALTIES]).tolist()
    members = [rows.trajectory(row) for row in range(len(rows))]
    return {
        (one.trajectory_id, parts(one)[ref.sequence]): cost
        for one, ref, cost in zip(members, rows.refs, sums, strict=True)
    }


def _cost(penalties: Mapping[tuple[str, Part], float], part: Part, one: Trajectory) -> float:
    found = penalties.get((one.trajectory_id, part))
    own = dict(zip(parts(one), one.sequences, strict=True)).get(part)
    if found is None and own is not None and own.trained_tokens:
        raise ValueError(
            f"trajectory {one.trajectory_id} is compared by its reward less a KL penalty, which is known of "
            "the step's rows alone, and its sequence is none of them: select all that is compared"
        )
    return found or 0.0


def token_rewards(rows: Rows) -> NDArray[np.float64]:
    """(N,) each sequence's reward, its own or its trajectory's, at its last token with `response_mask` 1,
    less `kl_penalties`."""
    found = np.zeros(rows.tokens, dtype=np.float64)
    if KL_PENALTIES in rows.columns:
        found -= rows.columns[KL_PENALTIES]
    chosen = np.flatnonzero(rows.columns[RESPONSE_MASK])
    last = np.searchsorted(chosen, rows.offsets[1:]) - 1  # its place among the chosen tokens
    for row, ref in enumerate(rows.refs):
        if last[row] >= 0 and chosen[last[row]] >= rows.offsets[row]:
            one = rows.trajectory(row)
            found[chosen[last[row]]] += _reward(one, parts(one)[ref.sequence])
    return found


def discounted_returns(
    rows: Rows, rewards: NDArray[np.floating], *, gamma: float | NDArray[np.floating] = 1.0
) -> NDArray[np.float64]:
    """(N,) G_t = r_t + gamma_t * G_{t+1} over a row's tokens with `response_mask` 1; others have none, and
    cause no discount.

    Args:
        rows: of the step.
        rewards: (N,) those of tokens with `response_mask` 0 do not count.
        gamma: the discount, the same for all tokens or (N,) each token's of what follows it
            (`turn_discounts`).
    """
    chosen = np.flatnonzero(rows.columns[RESPONSE_MASK])
    bounds = np.searchsorted(chosen, rows.offsets)
    lengths, ends = np.diff(bounds), bounds[1:]
    values = rewards[chosen].astype(np.float64)
    discounts = np.broadcast_to(gamma, rows.tokens)[chosen]
    order = np.argsort(-lengths, kind="stable")
    # All rows at once, from their ends: the k-th step is for rows with more than k tokens.
    longer = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)))
    for back, count in enumerate(longer.tolist()[1:], start=1):
        at = ends[order[:count]] - 1 - back
        values[at] += discounts[at] * values[at + 1]
    found = np.zeros(rows.tokens, dtype=np.float64)
    found[chosen] = values
    return found


def turn_discounts(rows: Rows, *, token: float = 1.0, turn: float = 1.0) -> NDArray[np.float64]:
    """(N,) discount of all that follows each token with `response_mask` 1: `turn` where the next such token
    is of another turn (annotation `turn`), else `token`. A row without turns is one."""
    found = np.full(rows.tokens, token, dtype=np.float64)
    for row in range(len(rows)):
        sequence = rows.sequence(row)
        if (turns := sequence.annotations.get(TURN)) is not None:
            chosen = np.flatnonzero(sequence.response_mask)
            last = chosen[:-1][turns[chosen[:-1]] != turns[chosen[1:]]]
            found[rows.slice(row)][last] = turn
    return found


def whitened(rows: Rows, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """(N,) (v - mean) / sqrt(var + 1e-8) over all of the step's tokens of one policy with `response_mask` 1;
    0 elsewhere, and where a policy has one token only.

    Args:
        rows: of the step: any split into micro-batches or ranks comes later.
        values: (N,)

    As verl's `masked_whiten`, with the sample's variance.
    """
    found = np.zeros(rows.tokens, dtype=np.float64)
    mask = rows.columns[RESPONSE_MASK].astype(bool)
    policies = np.array([rows.sequence(row).policy for row in range(len(rows))])
    for policy in np.unique(policies):
        chosen = mask if (policies == policy).all() else mask & rows.to_tokens(policies == policy)
        some = values[chosen].astype(np.float64)
        if len(some) > 1:
            found[chosen] = (some - some.mean()) / np.sqrt(some.var(ddof=1) + 1e-8)
    return found


def reinforce_plus_plus(
    rows: Rows, rewards: NDArray[np.floating] | None = None, *, gamma: float | NDArray[np.floating] = 1.0
) -> NDArray[np.float64]:
    """(N,) REINFORCE++ (arXiv 2501.03262): whitened discounted returns, without groups.

    Args:
        rows: of the step.
        rewards: (N,) by token; None: `token_rewards`.
        gamma: as in `discounted_returns`.

    As verl's `reinforce_plus_plus`, except that the reward stands on the last token that the policy chose
    itself, where verl loses one that stands on a masked token, and that each policy is whitened alone.
    """
    rewards = token_rewards(rows) if rewards is None else rewards
    return whitened(rows, discounted_returns(rows, rewards, gamma=gamma))
