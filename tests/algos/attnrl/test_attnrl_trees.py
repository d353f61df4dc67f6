"""AttnRL on the scheduler with scripted answers: which responses continue, from where, and what they earn."""

from __future__ import annotations

import numpy as np
import pytest
from attnrl_tools import SAMPLING, always, annotate, method, run, script, segments, selected, step_metrics
from marsrl_script import ScriptedEngine
from scheduler_tools import problems
from scripted_engine import Reply

from marsrl_verl.algos.attnrl.adaptive_sampling import ExpansionRounding, FilterRule, TreeChoice
from marsrl_verl.algos.attnrl.branch_points import BranchCriterion, OnTooFew
from marsrl_verl.algos.attnrl.config import AdvantageRule, Config
from marsrl_verl.algos.attnrl.credit import by_problem, problem_tree, tree_metrics, treerl_advantages
from marsrl_verl.algos.attnrl.method import CONTINUATION, INITIAL, AttnRL
from marsrl_verl.config.batching import BatchPlan
from marsrl_verl.core.method import is_trained
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.sequence import RECORDED_LOG_PROBS
from marsrl_verl.core.stage import EndReason
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.core.tree import Path, build_tree


def test_a_problem_is_one_tree_trained_in_the_step_of_its_continuations():
    results, engine = run(method())
    assert [len(step.trained) for step in results] == [0, 2 * 9, 2 * 9]  # 1 + 4 responses x 2 points
    trained = by_problem(results[1].trained)
    assert list(trained) == ["p10", "p11"]
    for groups in trained.values():
        assert [group.request.stage for group in groups] == [INITIAL] + [CONTINUATION] * 8
    assert [len(rounds) for rounds in engine.rounds] == [2, 2 + 16, 2 + 16], "one round a step"


def test_sequential_and_pipelined_train_the_same_trees():
    def trees(mode):
        results, engine = run(method(), mode)
        found = {
            (name, one.trajectory_id): (tuple(one.sequence.response_ids.tolist()), one.value)
            for step in results
            for name, groups in by_problem(step.trained).items()
            for group in groups
            for one in group.trajectories
        }
        return found, engine.rounds

    sequential, rounds = trees("sequential")
    pipelined, _ = trees("pipelined")
    assert len(rounds) == 6 and sequential
    assert pipelined == {key: value for key, value in sequential.items() if key[0] < "p30"}


def test_a_continuation_keeps_the_beginning_its_versions_and_its_log_probs():
    results, _ = run(method())
    groups = [group for group in results[1].trained if group.request.stage == CONTINUATION]
    by_id = {one.trajectory_id: one.sequence for group in results[1].trained for one in group.trajectories}
    for group in groups:
        parent, kept = by_id[group.request.parent_id], len(group.request.prefix)
        beginning = bytes(parent.response_ids[:kept].tolist()).decode()
        assert beginning in ("first line\n", "first line\nsecond line\n")
        for one in group.trajectories:
            sequence = one.sequence
            added = len(sequence) - kept
            assert np.array_equal(sequence.response_ids[:kept], parent.response_ids[:kept])
            assert np.array_equal(sequence.prompt_ids, parent.prompt_ids)
            recorded = sequence.annotations[RECORDED_LOG_PROBS]
            assert np.all(recorded[:kept] == -0.5) and np.all(np.isnan(recorded[kept:]))
            assert sequence.token_versions().tolist() == [0] * kept + [1] * added
            assert sequence.new_tokens == one.new_tokens == added


def test_advantages_are_the_trees_by_segment():
    attnrl = method()
    results, _ = run(attnrl, count=1)
    groups = results[1].trained
    credit = segments(attnrl, groups)
    # Every right or wrong response 0-3 has continuations right, wrong, right, wrong: V = 10 / 20.
    assert tree_metrics(groups)["attnrl/root_value_mean"] == pytest.approx(0.5)
    # Response 0 (right): two cuts of two right and two wrong ones. V(beginning) = 3/5, V(middle) = 2/3.
    (first, a), (second, b), (_last, c) = credit["p10/initial/0#0"]
    assert (first, second) == (len("first line\n"), len("first line\nsecond line\n"))
    assert a == pytest.approx((0.1 + 0.1) / 5**0.5)
    assert b == pytest.approx((2 / 3 - 0.5 + 2 / 3 - 3 / 5) / 3**0.5)
    assert c == pytest.approx(0.5 + 1 / 3)
    wrong = credit["p10/continuation/000-000011#1"]
    assert wrong[0] == (first, a) and wrong[1][1] == pytest.approx(-0.5 - 3 / 5)


def test_every_leaf_trains_once_and_covers_its_response():
    attnrl = method()
    results, _ = run(attnrl)
    rows = selected(attnrl, results[1].trained)
    names = [rows.trajectory(row).trajectory_id for row in range(len(rows))]
    assert names == [one.trajectory_id for group in results[1].trained for one in group.trajectories]
    assert np.all(attnrl.credit.advantages(rows) != 0) and len(attnrl.credit.advantages(rows)) == rows.tokens


def test_unexpanded_responses_are_trained_or_dropped_and_count_in_the_root_either_way():
    def rows(keep):
        attnrl = method(expansion=ExpansionRounding.ROUND, train_unbranched=keep)
        results, _ = run(attnrl, count=1)
        groups = results[1].trained
        _tree, members = problem_tree(groups)
        assert len(members) == 4 + 2 * 4  # exp(-1/2) * 4 = 2.43: two are expanded
        return segments(attnrl, groups)

    kept, dropped = rows(True), rows(False)
    assert len(kept) == 12 and len(dropped) == 10
    assert {name: kept[name] for name in dropped} == dropped


def test_a_difference_that_only_continuations_make_is_trained():
    def answers(item, k):
        return always(item.stage == CONTINUATION)(item, k)

    results, _ = run(method(), answers=answers)
    assert results[1].trained


def test_filtered_problems_leave_with_all_they_have():
    attnrl = method(filter=FilterRule.RELEASED)
    results, engine = run(attnrl, answers=always(True))
    # All influences are equal, so that none is above the mean.
    assert {end.reason for step in results for end in step.ended} == {EndReason.REJECTED}
    assert not any(item.stage == CONTINUATION for one in engine.rounds for item in one)
    metrics = step_metrics(attnrl)
    assert metrics["attnrl/filtered_frac"] == 1.0 and metrics["attnrl/all_correct_frac"] == 1.0
    assert metrics["attnrl/filtered_all_correct"] == metrics["attnrl/problems"] == 6
    assert metrics["attnrl/filtered_none_correct"] == 0


def test_the_filters_mean_does_not_depend_on_the_order_of_completion():
    def settled(seed):
        attnrl = method(filter=FilterRule.PAPER)
        scheduler, engine = Scheduler(attnrl, "pipelined"), ScriptedEngine(script, seed=seed)
        scheduler.start_step(1, problems(5))
        for output in engine.generate(scheduler.next_round(), SAMPLING):
            scheduler.absorb([output])
        for number, group in enumerate(scheduler.completed_stages()):
            for one in group.trajectories:
                annotate(attnrl, one, [0.0, *[0.1 * number**2] * 4])
        result = scheduler.finish_step()
        return attnrl.state_dict(), [end.problem_id for end in result.ended], result.waiting

    assert settled(1) == settled(2)
    assert settled(1)[1] == ["p0", "p1", "p2"], "those below the mean 0.48 of 0, 0.08, 0.32, 0.72, 1.28"


def test_responses_without_a_second_step_make_a_tree_of_their_own():
    def answers(item, k):
        return Reply(f"\\boxed{{{item.problem.ground_truth if k else 'no'}}}")

    results, _engine = run(method(), answers=answers, influence=[0.0])
    assert [len(step.trained) for step in results] == [2, 2, 2]
    assert {end.reason for step in results for end in step.ended} == {EndReason.NO_REQUESTS}


@pytest.mark.parametrize("criterion", list(BranchCriterion))
def test_every_criterion_runs(criterion):
    results, _ = run(method(criterion=criterion))
    assert results[1].trained


def test_repeated_points_have_more_continuations():
    def answers(item, k):
        return Reply("a\n\\boxed{x}" if item.prefix is None else "\\boxed{y}")

    attnrl = method(on_too_few=OnTooFew.REPEAT)
    _, engine = run(attnrl, answers=answers, influence=[0.0, 0.0], count=1, steps=2)
    continued = [item for item in engine.rounds[1] if item.stage == CONTINUATION]
    assert [item.n for item in continued] == [4] * 4


@pytest.mark.parametrize(
    ("criterion", "missing"),
    [
        (BranchCriterion.FCI, "Forward Context Influence was not"),
        (BranchCriterion.ENTROPY, "entropies were not"),
    ],
)
def test_a_missing_probe_is_an_error_that_names_the_trajectory(criterion, missing):
    attnrl = method(criterion=criterion)
    (probe,) = attnrl.probes(INITIAL)
    assert probe.entropies or criterion is BranchCriterion.FCI
    scheduler = Scheduler(attnrl, "pipelined")
    scheduler.start_step(1, problems(1))
    scheduler.absorb(ScriptedEngine(script).generate(scheduler.next_round(), SAMPLING))
    with pytest.raises(ValueError, match=f"p0/initial/0#0: its {missing} computed"):
        scheduler.finish_step()


def test_the_original_credit_of_treerl_is_another():
    results, _ = run(method(), count=1)
    usual = segments(method(), results[1].trained)
    other = segments(method(advantage_rule=AdvantageRule.TREERL_ORIGINAL), results[1].trained)
    assert set(usual) == set(other) and usual != other


def fail(one, way):
    """Leaves the trajectory as an engine or a grader that failed does."""
    if way == "request":
        one.finish = FinishReason.ERROR
    else:
        one.reward = RewardResult(0.0, error="timeout", graded=False)


@pytest.mark.parametrize("way", ["request", "grading"])
def test_a_failed_trajectory_is_no_leaf(way):
    attnrl = method()
    results, _ = run(attnrl, count=1)
    groups = results[1].trained
    whole = tree_metrics(groups)
    bad = next(group for group in groups if group.request.stage == CONTINUATION).trajectories[0]
    assert bad.value == 1.0
    fail(bad, way)
    found = tree_metrics(groups)
    assert found["attnrl/leaves_per_problem"] == whole["attnrl/leaves_per_problem"] - 1 == 19
    assert found["attnrl/root_value_mean"] == pytest.approx(9 / 19)
    assert bad.trajectory_id not in segments(attnrl, groups)


def test_failed_trajectories_make_no_difference_worth_training():
    attnrl = method()
    results, _ = run(attnrl, answers=always(True), count=1, steps=1)
    (group,) = results[0].completed
    fail(group.trajectories[0], "request")
    assert not is_trained(attnrl, [group], 1)


def test_trees_are_drawn_among_responses_that_can_branch():
    def answers(item, k):
        one = Reply(f"\\boxed{{{item.problem.ground_truth}}}")
        return one if item.stage == INITIAL and k < 3 else script(item, k)

    for seed in range(6):
        attnrl = method(seed=seed, expansion=ExpansionRounding.ROUND)
        results, _ = run(attnrl, answers=answers, count=1, steps=2)
        parents = {group.request.parent_id for group in results[1].trained} - {None}
        assert parents == {"p10/initial/0#3"}


def test_minority_first_chooses_the_wrong_responses_of_a_problem_that_is_mostly_right():
    def answers(item, k):
        return always(k != 2 or item.stage == CONTINUATION)(item, k)

    attnrl = method(expansion=ExpansionRounding.ROUND, tree_choice=TreeChoice.MINORITY)
    results, _ = run(attnrl, answers=answers, count=1)
    parents = {group.request.parent_id for group in results[1].trained} - {None}
    assert "p10/initial/0#2" in parents and len(parents) == 2  # exp(-3/4) * 4 = 1.89


def test_a_prompt_that_is_too_long_is_left_out():
    attnrl = method(limits={"solver": 0})
    assert attnrl.first_requests(problems(1)[0], 1) == []
    fits = method(limits={"solver": 1})
    assert len(fits.first_requests(problems(1)[0], 1)) == 1


def test_treerl_worked_out_by_hand():
    """Two responses, one cut in r0 (rewards 1, 0, and 0 for r1): leave-one-out 1, -1/2, -1/2. The beginning
    has sum 1/2 over 2 leaves: 0.5 / sqrt(2) / 2; the root's sum is 0."""
    paths = [Path("r0", 5, 1.0), Path("r1", 5, 0.0), Path("a", 5, 0.0, "r0", 2)]
    tree = build_tree(paths)
    by_node = treerl_advantages(tree)
    found = {
        (name, end): float(by_node[node])
        for at, name in enumerate(tree.names)
        for end, node in tree.segments_of(at)
    }
    shared = 0.5 / 2**0.5 / 2
    assert found[("r0", 2)] == pytest.approx(2 * shared)
    assert found[("r0", 5)] == pytest.approx(2 * 1 - shared)
    assert found[("r1", 5)] == pytest.approx(-1.0)
    equal = build_tree([Path(one.name, one.length, 1.0, one.parent, one.branch) for one in paths])
    assert treerl_advantages(equal) == pytest.approx(0.0)


def test_batches_have_a_stage_of_responses_and_one_of_continuations():
    stages = AttnRL.stages(Config())
    plan = BatchPlan(stages, 64, True, 10, 8, 1, None)
    assert [(one.groups_per_problem, one.group_size) for one in plan.stages] == [(1, 6), (12, 2)]
    assert plan.samples == plan.trained_rows == 64 * 30
    assert BatchPlan(stages, 64, True, 10, 8, 1, 100).samples == 64 * 6 + 36 * 2
