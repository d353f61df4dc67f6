"""Group-relative advantages and the balance of the roles in the loss.

The loss they are meant for is the mean over all T trained tokens of the step,

    loss = -1/T * sum_i sum_t A_i * log p(token_it),

with one advantage A_i per sequence. Whatever concerns groups and roles is a factor in A_i, so that any
split of the rows into micro-batches or ranks gives the same gradient, if each part divides by the
same T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.settings.choices import Choice


class RoleBalance(Choice):
    """How the roles share the loss."""

    TOKENS = "tokens"
    """One mean over all tokens: a role counts by the number of its tokens (MarsRL, arXiv 2511.11373)."""
    ROLES = "roles"
    """The mean of the roles' token means: roles count alike, however long their answers are."""


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


def role_factors(
    role_tokens: Mapping[str, int],
    balance: RoleBalance | str = RoleBalance.TOKENS,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The factor by which a role's advantages enter a loss that is a mean over all T tokens.

    `tokens`: w_role. `roles`: w_role * T / (R * T_role), which turns the mean over all tokens into the
    mean over the R roles of w_role times the role's own token mean.

    Args:
        role_tokens: tokens in the loss by role (T_role); roles without tokens get no factor.
        balance: how roles share the loss.
        weights: w_role, 1 where absent.
    """
    present = {role: count for role, count in role_tokens.items() if count > 0}
    total = sum(present.values())
    weights = weights or {}
    factors = {role: weights.get(role, 1.0) for role in present}
    if RoleBalance(balance) is RoleBalance.ROLES:
        factors = {role: factors[role] * total / (len(present) * present[role]) for role in present}
    return factors


def _rewards(group: Group, sequence: int) -> list[float]:
    """What the comparable trajectories earn with their sequence of this number: its own reward, else (or
    where one has no such sequence) the trajectory's."""
    found = []
    for one in group.comparable:
        own = one.sequences[sequence].reward if sequence < len(one.sequences) else None
        found.append(one.value if own is None else own)
    return found


def comparable_rows(groups: Sequence[Group]) -> list[RowRef]:
    """The sequences that a group-relative advantage can be given to, in the order of the groups.

    Trajectories whose request or grading failed say nothing: they are left out and count in no mean. Groups
    whose rewards are all equal are left out, as are sequences without a token of their policy's own and
    trajectories that were trained before (their rewards do count in their group's mean).
    """
    rows = []
    for at, group in enumerate(groups):
        most = max((len(one.sequences) for one in group.trajectories), default=0)
        differ = [len(set(_rewards(group, number))) > 1 for number in range(most)]
        rows += [
            RowRef(at, place, number)
            for place, one in enumerate(group.trajectories)
            if one.comparable and one.trajectory_id not in group.trained_before
            for number, sequence in enumerate(one.sequences)
            if differ[number] and sequence.trained_tokens
        ]
    return rows


def group_relative(rows: Rows, *, normalize_std: bool = True, eps: float = 1e-6) -> NDArray[np.float64]:
    """(B,) the advantage of every row in its group (`group_advantages`): sequences of one number are
    compared, each by its own reward or its trajectory's."""
    by_group: dict[tuple[int, int], dict[str, float]] = {}
    found = []
    for row, ref in enumerate(rows.refs):
        key = ref.group, ref.sequence
        if key not in by_group:
            group = rows.groups[ref.group]
            rewards = _rewards(group, ref.sequence)
            values = group_advantages(rewards, normalize_std=normalize_std, eps=eps)
            names = [one.trajectory_id for one in group.comparable]
            by_group[key] = dict(zip(names, values, strict=True))
        found.append(by_group[key][rows.trajectory(row).trajectory_id])
    return np.array(found, dtype=np.float64)


def balance_roles(
    rows: Rows, balance: RoleBalance | str = RoleBalance.TOKENS, weights: Mapping[str, float] | None = None
) -> NDArray[np.float64]:
    """(B,) the factor of every row's role (`role_factors`); the loss's normaliser is the number of the rows'
    tokens with `response_mask` 1."""
    roles = [rows.sequence(row).role for row in range(len(rows))]
    role_tokens: dict[str, int] = {}
    for role, count in zip(roles, rows.trained_tokens().tolist(), strict=True):
        role_tokens[role] = role_tokens.get(role, 0) + count
    factors = role_factors(role_tokens, balance, weights)
    return np.array([factors[role] for role in roles], dtype=np.float64)
