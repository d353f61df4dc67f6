"""Batch arithmetic of trees, by hand."""

from marsrl_verl.algos.attnrl.config import Config
from marsrl_verl.algos.attnrl.method import AttnRL
from marsrl_verl.config.batching import BatchPlan


def test_trees_have_a_stage_of_responses_and_one_of_continuations():
    stages = AttnRL.stages(Config())
    plan = BatchPlan(stages, 64, True, 10, 8, 1, None)
    assert [(one.groups_per_problem, one.group_size) for one in plan.stages] == [(1, 6), (12, 2)]
    assert plan.samples == plan.trained_rows == 64 * 30
    assert BatchPlan(stages, 64, True, 10, 8, 1, 100).samples == 64 * 6 + 36 * 2
