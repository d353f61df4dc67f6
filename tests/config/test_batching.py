"""The batch arithmetic, by hand."""

from __future__ import annotations

import pytest

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.config.batching import BatchPlan, optimizer_updates, plan_batch
from marsrl_verl.config.schema import PipelineConfig
from marsrl_verl.core.stage import Stage


def stage_plans(**settings) -> tuple[Stage, ...]:
    return MarsRL.stages(Config(**settings))


def test_published_step_holds_9216_responses():
    plan = BatchPlan(
        stages=stage_plans(),
        problems=128,
        pipelined=True,
        updates=1,
        world_size=32,
        sequence_parallel=8,
        prompt_budget=None,
    )
    assert [stage.groups_per_problem for stage in plan.stages] == [1, 2, 2, 2, 2]
    assert (plan.groups, plan.samples, plan.trained_rows) == (1152, 9216, 9216)
    assert (plan.ranks, plan.row_multiple, plan.padded_rows) == (4, 4, 9216)
    assert (plan.rows_per_update, plan.rows_per_rank, plan.rounds) == (9216, 2304, 1)


def test_a_step_that_trains_less_than_its_stages_hold():
    """Of ReMA's published single turn 4 of each problem's 20 responses: 8 updates of 500 samples."""
    stages = (Stage("plan", "a", 10), Stage("solution", "b", 1, 10))
    plan = BatchPlan(stages, 1000, False, 8, 8, 1, None, max_trained=4)
    assert (plan.samples, plan.trained_rows, plan.rows_per_update) == (20_000, 4_000, 504)
    assert BatchPlan(stages, 1000, False, 8, 8, 1, None, max_trained=40).trained_rows == 20_000


def test_groups_multiply_when_inputs_count_per_group():
    plans = stage_plans(select_scope="group")
    assert [stage.groups_per_problem for stage in plans] == [1, 2, 4, 8, 16]


def test_untrained_stages_add_no_rows():
    stages = stage_plans(train_roles=["verifier"], correction_rounds=1)
    plan = BatchPlan(stages, 4, False, 1, 1, 1, None)
    assert plan.samples == 4 * 3 * 8
    assert plan.trained_rows == 4 * 2 * 8
    assert plan.rounds == 2


def test_padding_fills_ranks_and_updates():
    plan = BatchPlan((Stage("solver", "solver", 3),), 5, True, 2, 2, 1, None)
    assert (plan.trained_rows, plan.row_multiple, plan.padded_rows) == (15, 4, 16)
    assert (plan.rows_per_update, plan.rows_per_rank) == (8, 4)


def test_budget_limits_a_pipelined_step_only():
    stages = stage_plans()
    assert BatchPlan(stages, 10, True, 1, 1, 1, 50).groups == 50
    assert BatchPlan(stages, 10, False, 1, 1, 1, 50).groups == 90


def test_plan_of_a_composed_configuration(checked):
    context = checked({"data.train_batch_size": 16, "trainer.n_gpus_per_node": 2})
    plan = plan_batch(context.config, context.settings)
    assert (plan.problems, plan.groups, plan.ranks) == (16, 144, 2)


@pytest.mark.parametrize(
    ("samples", "updates"), [(1, 1), (95, 1), (287, 1), (288, 2), (1920, 10), (2016, 11), (2015, 10)]
)
def test_updates_follow_the_samples(samples, updates):
    assert optimizer_updates(PipelineConfig(samples_per_update=192), samples) == updates


def test_a_step_has_no_more_updates_than_samples():
    assert optimizer_updates(PipelineConfig(updates_per_step=10), 3) == 3
    assert optimizer_updates(PipelineConfig(updates_per_step=10), 300) == 10
