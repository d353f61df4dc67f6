"""MarsRL's credit: the estimator's advantages, with factors of roles and of judged solutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.algos.marsrl.role_balance import VerdictBalance, balance_roles, balance_verdicts
from marsrl_verl.core.credit import EstimatorCredit
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import Rows


class MarsCredit(EstimatorCredit):
    """Advantages of a role's responses relative to their group, weighted by role and by judged solution."""

    config: Config

    def trains(self, groups: Sequence[Group]) -> bool:
        """True for groups that the estimator can compare, and for complete groups of judgements that the
        balance of verdicts counts, whatever their rewards."""
        return super().trains(groups) or any(map(self._balances, groups))

    def _balances(self, group: Group) -> bool:
        complete = len(group.trajectories) == group.request.n
        counted = group.request.role == VERIFIER and complete and bool(group.comparable)
        return counted and self.config.verdict_balance is not VerdictBalance.INPUTS

    def factors(self, rows: Rows) -> NDArray[np.float64]:
        """(B,) of the rows' roles, times those of the judged solutions."""
        found = balance_roles(rows, self.config.role_balance, self.config.role_weights)
        return found * balance_verdicts(rows, self.config.verdict_balance)
