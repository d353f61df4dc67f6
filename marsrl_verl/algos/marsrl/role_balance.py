"""The balance of the roles in the loss, and of right and wrong solutions in the Verifier's part: factors of
advantages (`core.credit.advantages`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.settings.choices import Choice


class RoleBalance(Choice):
    """Balance of the roles in the loss (`Config.role_balance`; `role_factors`)."""

    TOKENS = "tokens"
    ROLES = "roles"


class VerdictBalance(Choice):
    """Weighting of the judged solutions in the Verifier's part of the loss (`Config.verdict_balance`;
    `balance_verdicts`)."""

    INPUTS = "inputs"
    CLASSES = "classes"
    ERRORS = "errors"


def role_factors(
    role_tokens: Mapping[str, int],
    balance: RoleBalance | str = RoleBalance.TOKENS,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Returns the factor by which a role's advantages enter a loss that is a mean over all T tokens.

    `tokens`: w_role. `roles`: w_role * T / (R * T_role), which turns the mean over all tokens into the
    mean over the R roles of w_role times the role's own token mean.

    Args:
        role_tokens: tokens in the loss by role (T_role); roles without tokens get no factor.
        balance: of the roles in the loss.
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

    `classes`: N / (2 N_c), with N the step's comparable judgements and N_c those of solutions of class c
    (right, wrong), those of groups with equal rewards among them. Counting only what is trained would give a
    step with one such class a push towards its verdict that no other step takes back.

    `errors`: that times 2 e_c / (e_right + e_wrong), with e_c the share of the class's judgements that are
    wrong: the direction in which the sum of the squared shares falls. A Verifier that can't tell one class
    from the other has e_right + e_wrong = 1, whatever it says (if all is readable); `classes` leaves it
    there, while squares are least where it says both verdicts equally often.

    A step in which one class alone was judged does not train the Verifier: 0.
    """
    factors = np.ones(len(rows), dtype=np.float64)
    balance = VerdictBalance(balance)
    if balance is VerdictBalance.INPUTS:
        return factors
    judged: dict[bool, list[bool]] = {True: [], False: []}
    for group in rows.groups:
        if group.request.role == VERIFIER:
            # Those of an earlier part of the group were counted then.
            fresh = [one for one in group.comparable if one.trajectory_id not in group.trained_before]
            judged[_judges_a_right_one(group)] += [is_correct(one.value) for one in fresh]
    by_class = _class_factors({one: found for one, found in judged.items() if found}, balance)
    for row in range(len(rows)):
        if rows.sequence(row).role == VERIFIER:
            factors[row] = by_class[_judges_a_right_one(rows.group(row))]
    return factors


def _class_factors(judged: Mapping[bool, list[bool]], balance: VerdictBalance) -> dict[bool, float]:
    """Returns the factor of each class's rows, from whether each of its judgements is right."""
    if len(judged) < 2:
        return dict.fromkeys(judged, 0.0)
    total = sum(len(found) for found in judged.values())
    factors = {one: total / (2.0 * len(found)) for one, found in judged.items()}
    if balance is VerdictBalance.ERRORS:
        errors = {one: found.count(False) / len(found) for one, found in judged.items()}
        both = sum(errors.values())
        # Without an error there is no group to compare either.
        factors = {one: 2.0 * errors[one] / both * factor if both else 0.0 for one, factor in factors.items()}
    return factors


def _judges_a_right_one(group: Group) -> bool:
    return is_correct(group.request.inputs.get("solution_reward") or 0.0)
