"""The balance of the roles in the loss, and of right and wrong solutions in the Verifier's part: factors of
advantages (`core.advantages`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.settings.choices import Choice


class RoleBalance(Choice):
    """How the roles share the loss."""

    TOKENS = "tokens"
    """One mean over all tokens: a role counts by the number of its tokens (MarsRL, arXiv 2511.11373)."""
    ROLES = "roles"
    """The mean of the roles' token means: roles count alike, however long their answers are."""


class VerdictBalance(Choice):
    """What the judged solutions count in the Verifier's part of the loss."""

    INPUTS = "inputs"
    """Every judged solution alike (MarsRL, arXiv 2511.11373)."""
    CLASSES = "classes"
    """The right ones together half, the wrong ones together half."""


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


def balance_verdicts(
    rows: Rows, balance: VerdictBalance | str = VerdictBalance.INPUTS
) -> NDArray[np.float64]:
    """(B,) the factor of every row by the solution that it judges; 1 for other roles than the Verifier.

    `classes`: T / (2 T_c), with T the Verifier's tokens in the loss and T_c those about solutions of class c
    (right, wrong). A constant verdict is then worth the same whatever the share of wrong solutions: half.
    Where only one class was judged its factor is 1/2.
    """
    factors = np.ones(len(rows), dtype=np.float64)
    if VerdictBalance(balance) is VerdictBalance.INPUTS:
        return factors
    judges = np.array([rows.sequence(row).role == VERIFIER for row in range(len(rows))], dtype=bool)
    solved = np.array([_judges_a_right_one(rows, row) for row in range(len(rows))], dtype=bool)
    tokens = rows.trained_tokens()
    total = tokens[judges].sum()
    for members in (judges & solved, judges & ~solved):
        if tokens[members].sum():
            factors[members] = total / (2.0 * tokens[members].sum())
    return factors


def _judges_a_right_one(rows: Rows, row: int) -> bool:
    return is_correct(rows.group(row).request.inputs.get("solution_reward") or 0.0)
