"""What a method trains with the estimator that its settings choose."""

from __future__ import annotations

import numpy as np
import pytest
from scheduler_tools import build, rewarded_group

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.credit import Estimator, EstimatorConfig, EstimatorCredit
from marsrl_verl.core.method import is_trained, trained_rows
from marsrl_verl.core.rows import KL_PENALTIES, Rows
from marsrl_verl.demo.prompts import TinyPrompts

GROUPS = [
    rewarded_group("g0", "solver", [1, 0], [2, 2]),
    rewarded_group("g1", "solver", [1, 1], [2, 2]),
]


class Weighted(EstimatorCredit):
    def __init__(self, config, factors) -> None:
        super().__init__(config)
        self._factors = factors

    def factors(self, rows):
        return self._factors


def settings(**changes) -> EstimatorConfig:
    return EstimatorConfig(name="one", **changes)


def test_a_group_with_equal_rewards_is_for_reinforce_alone():
    names = {
        one: [(ref.group, ref.trajectory) for ref in EstimatorCredit(settings(estimator=one)).keep(GROUPS)]
        for one in Estimator
    }
    assert names == {
        Estimator.GROUP: [(0, 0), (0, 1)],
        Estimator.REINFORCE_PP: [(0, 0), (0, 1), (1, 0), (1, 1)],
    }
    config = {"correction_rounds": 0, "train_roles": ["solver"]}
    by_group = build(MarsRL, TinyPrompts(), **config)
    by_step = build(MarsRL, TinyPrompts(), estimator="reinforce_pp", **config)
    assert [is_trained(by_group, [one], 1) for one in GROUPS] == [True, False]
    groups = (*GROUPS, rewarded_group("g2", "verifier", [1, 0], [2, 2]))
    assert [is_trained(by_step, [one], 1) for one in groups] == [True, True, False]
    assert len(trained_rows(by_step, GROUPS, 1)) == 4


def test_advantages_are_those_of_the_estimator_times_the_rows_factors():
    config = settings(estimator="reinforce_pp")
    rows = Rows.of(GROUPS, EstimatorCredit(config).keep(GROUPS))
    # Returns 1, 1, 0, 0, 1, 1, 1, 1: mean 3/4, squares 6/16 + 18/16 = 3/2, over 7.
    scale = 1 / np.sqrt(1.5 / 7 + 1e-8)
    expected = np.array([0.25, 0.25, -0.75, -0.75, 0.25, 0.25, 0.25, 0.25]) * scale
    found = EstimatorCredit(config).advantages(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    factors = np.array([1.0, 2.0, 1.0, 1.0])
    np.testing.assert_allclose(
        Weighted(config, factors).advantages(rows), expected * np.repeat(factors, 2), rtol=1e-6
    )
    relative = settings(normalize_std=False)
    rows = Rows.of(GROUPS, EstimatorCredit(relative).keep(GROUPS))
    assert Weighted(relative, np.array([1.0, 2.0])).advantages(rows).tolist() == [0.5, 0.5, -1.0, -1.0]


@pytest.mark.parametrize("estimator", Estimator)
def test_kl_lowers_what_tokens_before_it_are_worth(estimator):
    config = settings(estimator=estimator, normalize_std=estimator is not Estimator.GROUP)
    groups = GROUPS[:1]
    rows = Rows.of(groups, EstimatorCredit(config).keep(groups))
    rows.columns[KL_PENALTIES] = np.array([0.0, 0.0, 0.5, 0.0], dtype=np.float32)
    found = EstimatorCredit(config).advantages(rows)
    if estimator is Estimator.GROUP:
        assert found.tolist() == [0.75, 0.75, -0.75, -0.75]
    else:
        assert found[0] == found[1] > found[3] > found[2], "the token after it is not to blame"
