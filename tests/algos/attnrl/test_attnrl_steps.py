"""What a step of AttnRL tells: figures of its trees, the adaptive batch, probes, its state."""

from __future__ import annotations

import pytest
from attnrl_tools import LINES, always, method, run, step_metrics
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import BatchController, ExpansionRounding, FilterRule
from marsrl_verl.algos.attnrl.branch_points import BranchCriterion, FciAggregation
from marsrl_verl.algos.attnrl.method import CONTINUATION, INITIAL


def batch_controller() -> BatchController:
    return BatchController(40, problems=2.0, least=1, most=8, smoothing=0.9)


def test_figures_of_whole_trees():
    """First responses 0 and 1 are right; problem 0's continuations are all right, problem 1's none."""

    def answers(item, k):
        right = k < 2 if item.stage == INITIAL else item.problem.problem_id == "p10"
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'wrong'}}}")

    attnrl = method()
    run(attnrl, steps=2, answers=answers)
    found = step_metrics(attnrl)
    assert found["attnrl/ended_problems"] == 2 and found["attnrl/discarded_problems"] == 0
    assert found["attnrl/leaves_all_correct_share"] == found["attnrl/leaves_none_correct_share"] == 0.0
    assert found["attnrl/continued_problems"] == 2
    assert found["attnrl/continuations_all_correct_share"] == 0.5
    assert found["attnrl/continuations_none_correct_share"] == 0.5
    assert "attnrl/stays_all_correct_share" not in found, "no problem was solved by all first responses"
    assert found["attnrl/trees/4"] == 4, "of two steps' two problems all four responses"
    assert "attnrl/ended_problems" not in step_metrics(attnrl), "told once"


@pytest.mark.parametrize(("right", "name", "other"), [(True, "all", "none"), (False, "none", "all")])
def test_trees_without_a_difference_are_counted_as_discarded(right, name, other):
    attnrl = method()
    run(attnrl, steps=2, answers=always(right))
    found = step_metrics(attnrl)
    assert found["attnrl/ended_problems"] == found["attnrl/discarded_problems"] == 2
    assert found[f"attnrl/leaves_{name}_correct_share"] == found[f"attnrl/stays_{name}_correct_share"] == 1.0
    assert found[f"attnrl/leaves_{other}_correct_share"] == 0.0
    assert f"attnrl/stays_{other}_correct_share" not in found


def test_the_mean_influence_is_told_without_a_filter_too():
    attnrl = method()
    run(attnrl, steps=1, influence=[0.0, 0.1, 0.9, 0.2, 0.3])
    assert step_metrics(attnrl)["attnrl/influence_mean"] == pytest.approx(0.3)


@pytest.mark.parametrize(("influence", "share"), [([0.0] * 5, 1.0), ([0.0, 0.1, 0.0, 0.0, 0.0], 0.0)])
def test_responses_without_any_influence_are_counted(influence, share):
    attnrl = method()
    run(attnrl, steps=1, influence=influence)
    assert step_metrics(attnrl)["attnrl/without_influence_share"] == share


@pytest.mark.parametrize(
    ("criterion", "filter_rule", "recorded", "probed"),
    [
        (BranchCriterion.EARLIEST, FilterRule.NONE, False, False),
        (BranchCriterion.SURPRISAL, FilterRule.NONE, False, False),
        (BranchCriterion.ENTROPY, FilterRule.NONE, False, True),
        (BranchCriterion.EARLIEST, FilterRule.NONE, True, True),
        (BranchCriterion.EARLIEST, FilterRule.PAPER, False, True),
        (BranchCriterion.FCI, FilterRule.NONE, False, True),
    ],
)
def test_the_trainer_looks_only_where_something_needs_it(criterion, filter_rule, recorded, probed):
    rules = {"filter": filter_rule, "expansion": ExpansionRounding.ROUND}
    attnrl = method(criterion=criterion, record_log_probs=recorded, **rules)
    assert bool(attnrl.probes(INITIAL)) == probed and not attnrl.probes(CONTINUATION)
    if not probed:
        results, _ = run(attnrl)
        assert results[1].trained, "branch points come from the engine's log-probabilities"


@pytest.mark.parametrize(
    ("influence", "share"),
    # The lines end at 11, 23, 34 and 46 of 56 tokens. Without a step that stands out the earliest are taken.
    [([0.0, 0.9, 0.0, 0.0, 0.0], 1.0), ([0.0, 0.0, 0.0, 0.9, 0.0], 0.0)],
)
def test_how_often_the_points_are_the_earliest_steps(influence, share):
    attnrl = method(num_branch_points=1)
    run(attnrl, steps=1, influence=influence)
    found = step_metrics(attnrl)
    assert found["attnrl/earliest_points_share"] == share
    assert found["attnrl/branch_token_mean"] == (11 if share else 34)
    kept = found["attnrl/branch_token_mean"]
    assert kept / 60 < found["attnrl/branch_position_mean"] < kept / 55, "answers differ in length"


def test_criteria_that_choose_tokens_are_not_compared_with_steps():
    attnrl = method(criterion=BranchCriterion.ENTROPY, num_branch_points=1)
    run(attnrl, steps=1)
    found = step_metrics(attnrl)
    assert "attnrl/earliest_points_share" not in found
    assert found["attnrl/branch_position_mean"] > 0.9, "the last token but one"


def test_influence_per_later_step_is_what_branching_and_filter_see():
    """Sums of 0.4, 0.3, 0.2 and 0.1 over four to one later steps are means of 0.1."""
    attnrl = method(fci_aggregation=FciAggregation.MEAN, delta=1, num_branch_points=1, top_share=0.1)
    run(attnrl, steps=1, influence=[0.0, 0.3, 0.2, 0.11, 0.0])
    found = step_metrics(attnrl)
    assert found["attnrl/influence_mean"] == pytest.approx((0.1 + 0.1 + 0.11) / 5)
    assert found["attnrl/branch_token_mean"] == 34, "the fourth step, the third by its sum"


def test_the_batch_controller_waits_for_the_pipeline_to_fill():
    controller = batch_controller()
    attnrl = method(controller=controller)
    assert attnrl.schedule.problems_per_step(2) == 2
    run(attnrl, steps=1)
    # Six responses of problems that cannot be branched are trained at once.
    assert "attnrl/next_problems" in step_metrics(attnrl, trained=6) and controller.problems == 2.0
    step_metrics(attnrl, trained=10, finished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 16) * 2), "6 and 10 samples"
    assert method().schedule.problems_per_step(7) == 7


def test_deferred_trees_are_told_to_the_batch_controller_when_they_train():
    """With `min_groups` a step may train nothing although trees were completed."""
    controller = batch_controller()
    attnrl = method(controller=controller)
    step_metrics(attnrl, finished=2, deferred=5)
    assert controller.problems == 2.0, "nothing is known yet"
    saved = attnrl.schedule.state_dict()
    attnrl = method(controller=controller)
    attnrl.schedule.load_state_dict(saved)
    step_metrics(attnrl, trained=80, finished=2)
    assert controller.problems == pytest.approx(2.0), "80 samples of two steps are 40 a step, the target"
    step_metrics(attnrl, trained=20, finished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 20) * 2)


def test_the_batch_controller_hears_of_steps_in_which_no_problem_reaches_the_last_stage():
    """Responses of one step cannot be branched: their problems are trained and end at the first stage."""
    controller = batch_controller()
    attnrl = method(controller=controller)
    step_metrics(attnrl, trained=10, unfinished=2)
    assert controller.problems == 2.0, "the pipeline may be filling"
    step_metrics(attnrl, trained=10, unfinished=2)
    assert controller.problems == pytest.approx(0.9 * 2 + 0.1 * (40 / 10) * 2), "ten samples a step"
    before = controller.problems
    step_metrics(attnrl)
    step_metrics(attnrl)
    assert controller.problems == before, "no problem ended"
    for _ in range(2):
        step_metrics(attnrl, trained=0, unfinished=2)
    assert controller.problems == pytest.approx(0.9 * before + 0.1 * 8), (
        "all are rejected: the most there may be"
    )


def test_the_state_is_restored():
    rules = {"filter": FilterRule.PAPER, "expansion": ExpansionRounding.ROUND}
    attnrl = method(controller=batch_controller(), **rules)
    run(attnrl)
    step_metrics(attnrl, trained=10, finished=2)
    again = method(controller=batch_controller(), **rules)
    again.load_state_dict(attnrl.state_dict())
    assert again.state_dict() == attnrl.state_dict()
    assert again.mean.count == 6
