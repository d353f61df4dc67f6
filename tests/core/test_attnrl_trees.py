"""AttnRL on the scheduler with scripted answers: which responses continue, from where, and what they earn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnrl_tools import SAMPLING, always, method, run, script
from scheduler_tools import problems

from marsrl_verl.algos.attnrl.adaptive_sampling import (
    FilterRule,
    TreeChoice,
)
from marsrl_verl.algos.attnrl.branch_points import BranchCriterion, BranchRule, Shortfall
from marsrl_verl.algos.attnrl.method import (
    CONTINUATION,
    INITIAL,
    Expansion,
)
from marsrl_verl.algos.attnrl.response_trees import TreeCredit, by_problem, problem_tree, tree_metrics
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scheduler_state import EndReason
from marsrl_verl.core.scripted import Reply, ScriptedEngine
from marsrl_verl.core.types import FinishReason, Marks, Outcome


def test_a_problem_is_one_tree_trained_in_the_step_of_its_continuations():
    results, engine = run(method())
    assert [len(step.trained) for step in results] == [0, 2 * 9, 2 * 9]  # 1 + 4 responses x 2 points
    trained = by_problem(results[1].trained)
    assert list(trained) == ["p10", "p11"]
    for groups in trained.values():
        assert [group.input.stage for group in groups] == [INITIAL] + [CONTINUATION] * 8
    assert [len(rounds) for rounds in engine.rounds] == [2, 2 + 16, 2 + 16], "one round a step"


def test_sequential_and_pipelined_train_the_same_trees():
    def trees(mode):
        results, engine = run(method(), mode)
        found = {
            (name, sample.sample_id): (tuple(sample.response_ids), sample.reward)
            for step in results
            for name, groups in by_problem(step.trained).items()
            for group in groups
            for sample in group.samples
        }
        return found, engine.rounds

    sequential, rounds = trees("sequential")
    pipelined, _ = trees("pipelined")
    assert len(rounds) == 6 and sequential
    assert pipelined == {key: value for key, value in sequential.items() if key[0] < "p30"}


def test_a_continuation_keeps_the_beginning_its_versions_and_its_log_probs():
    results, _ = run(method())
    groups = [group for group in results[1].trained if group.input.stage == CONTINUATION]
    samples = {sample.sample_id: sample for group in results[1].trained for sample in group.samples}
    for group in groups:
        parent, kept = samples[group.input.parent_id], len(group.input.prefix.response_ids)
        assert bytes(parent.response_ids[:kept]).decode() in ("first line\n", "first line\nsecond line\n")
        for sample in group.samples:
            assert sample.response_ids[:kept] == parent.response_ids[:kept]
            assert sample.prompt_ids == parent.prompt_ids
            assert sample.trainer_log_probs == [-0.5] * kept
            assert sample.token_versions == [0] * kept + [1] * (len(sample.response_ids) - kept)
            assert sample.new_tokens == len(sample.response_ids) - kept


def test_influence_chooses_the_steps():
    # Of five values the top fifth is the largest alone; the earliest other step fills up.
    results, _ = run(method(), influence=[0.0, 0.1, 0.2, 0.9, 0.3], count=1)
    kept = {
        len(group.input.prefix.response_ids) for group in results[1].trained if group.input.prefix is not None
    }
    assert kept == {len("first line\n"), len("first line\nsecond line\nthird line\n")}


def test_advantages_are_the_trees_by_segment():
    algorithm = method()
    results, _ = run(algorithm, count=1)
    groups = results[1].trained
    credit = algorithm.credit(groups)
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
    algorithm = method()
    results, _ = run(algorithm)
    samples = {sample.sample_id: sample for group in results[1].trained for sample in group.samples}
    credit = algorithm.credit(results[1].trained)
    assert set(credit) == set(samples)
    assert all(parts[-1][0] == len(samples[name].response_ids) for name, parts in credit.items())


def test_unexpanded_responses_are_trained_or_dropped_and_count_in_the_root_either_way():
    def rows(keep):
        expansion = Expansion(filter=FilterRule.NONE, keep_unbranched=keep)
        algorithm = method(expansion=expansion)
        results, _ = run(algorithm, count=1)
        groups = results[1].trained
        _tree, samples = problem_tree(groups)
        assert len(samples) == 4 + 2 * 4  # exp(-1/2) * 4 = 2.43: two are expanded
        return algorithm.credit(groups)

    kept, dropped = rows(True), rows(False)
    assert len(kept) == 12 and len(dropped) == 10
    assert {name: kept[name] for name in dropped} == dropped


@pytest.mark.parametrize("right", [True, False])
def test_problems_without_a_difference_are_not_trained(right):
    results, _ = run(method(), answers=always(right))
    assert not any(step.trained for step in results)
    assert {end.reason for step in results for end in step.ended} == {EndReason.FINISHED}


def test_a_difference_that_only_continuations_make_is_trained():
    def answers(item, k):
        return always(item.stage == CONTINUATION)(item, k)

    results, _ = run(method(), answers=answers)
    assert results[1].trained


def test_filtered_problems_leave_with_all_they_have():
    algorithm = method(expansion=Expansion(filter=FilterRule.RELEASED))
    results, engine = run(algorithm, answers=always(True))
    # All influences are equal, so that none is above the mean.
    assert {end.reason for step in results for end in step.ended} == {EndReason.REJECTED}
    assert not any(item.stage == CONTINUATION for one in engine.rounds for item in one)
    metrics = algorithm.observe_step([], 0, 0)
    assert metrics["attnrl/filtered_share"] == 1.0 and metrics["attnrl/all_correct_share"] == 1.0
    assert metrics["attnrl/filtered_all_correct"] == metrics["attnrl/problems"] == 6
    assert metrics["attnrl/filtered_none_correct"] == 0


def test_the_filters_mean_does_not_depend_on_the_order_of_completion():
    def settled(seed):
        algorithm = method(expansion=Expansion(filter=FilterRule.PAPER))
        scheduler, engine = Scheduler(algorithm, "pipelined"), ScriptedEngine(script, seed=seed)
        scheduler.start_step(1, problems(5))
        for sample in engine.generate(scheduler.next_round(), SAMPLING):
            scheduler.absorb([sample])
        for number, group in enumerate(scheduler.unsettled()):
            for sample in group.samples:
                values = [0.0, *[0.1 * number] * 4]
                sample.marks = Marks(algorithm.cut(sample.response_ids), (), tuple(values))
        result = scheduler.finish_step()
        return algorithm.state_dict(), [end.problem_id for end in result.ended], result.waiting

    assert settled(1) == settled(2)
    assert settled(1)[1] == ["p0", "p1"], "those below the mean 0.16 of 0, 0.08, 0.16, 0.24, 0.32"


def test_responses_without_a_second_step_make_a_tree_of_their_own():
    def answers(item, k):
        return Reply(f"\\boxed{{{item.problem.ground_truth if k else 'no'}}}")

    results, _engine = run(method(), answers=answers, influence=[0.0])
    assert [len(step.trained) for step in results] == [2, 2, 2]
    assert {end.reason for step in results for end in step.ended} == {EndReason.NO_INPUTS}


@pytest.mark.parametrize("criterion", list(BranchCriterion))
def test_every_criterion_runs(criterion):
    results, _ = run(method(branching=BranchRule(criterion)))
    assert results[1].trained


def test_repeated_points_have_more_continuations():
    rule = BranchRule(count=2, shortfall=Shortfall.REPEAT)

    def answers(item, k):
        return Reply("a\n\\boxed{x}" if item.prefix is None else "\\boxed{y}")

    algorithm = method(branching=rule)
    _, engine = run(algorithm, answers=answers, influence=[0.0, 0.0], count=1, steps=2)
    continued = [item for item in engine.rounds[1] if item.stage == CONTINUATION]
    assert [item.n for item in continued] == [4] * 4


def test_missing_marks_are_an_error_that_names_the_sample():
    algorithm = method()
    scheduler = Scheduler(algorithm, "pipelined")
    scheduler.start_step(1, problems(1))
    scheduler.absorb(ScriptedEngine(script).generate(scheduler.next_round(), SAMPLING))
    with pytest.raises(ValueError, match="p0/initial/0#0: its Forward Context Influence was not computed"):
        scheduler.finish_step()


def test_missing_entropies_are_an_error_that_names_the_sample():
    algorithm = method(branching=BranchRule(BranchCriterion.ENTROPY))
    assert algorithm.marks_entropies() and not method(record_log_probs=False).marks_entropies()
    scheduler = Scheduler(algorithm, "pipelined")
    scheduler.start_step(1, problems(1))
    scheduler.absorb(ScriptedEngine(script).generate(scheduler.next_round(), SAMPLING))
    with pytest.raises(ValueError, match="p0/initial/0#0: its entropies were not computed"):
        scheduler.finish_step()


def test_the_original_credit_of_treerl_is_another():
    results, _ = run(method(), count=1)
    usual = method().credit(results[1].trained)
    other = method(tree_credit=TreeCredit.TREERL_ORIGINAL).credit(results[1].trained)
    assert set(usual) == set(other) and usual != other


def failed(sample, way):
    """The sample as an engine or a grader that failed leaves it."""
    if way == "request":
        return replace(sample, finish_reason=FinishReason.ERROR)
    return replace(sample, outcome=Outcome(0.0, error="timeout", graded=False))


@pytest.mark.parametrize("way", ["request", "grading"])
def test_a_failed_sample_is_no_leaf(way):
    algorithm = method()
    results, _ = run(algorithm, count=1)
    groups = results[1].trained
    whole = tree_metrics(groups)
    index = next(i for i, group in enumerate(groups) if group.input.stage == CONTINUATION)
    bad = groups[index].samples[0]
    groups[index] = replace(groups[index], samples=[failed(bad, way), *groups[index].samples[1:]])
    assert bad.reward == 1.0
    found = tree_metrics(groups)
    assert found["attnrl/leaves_per_problem"] == whole["attnrl/leaves_per_problem"] - 1 == 19
    assert found["attnrl/root_value_mean"] == pytest.approx(9 / 19)
    assert bad.sample_id not in algorithm.credit(groups)


def test_failed_samples_make_no_difference_worth_training():
    algorithm = method()
    results, _ = run(algorithm, answers=always(True), count=1, steps=1)
    (group,) = results[0].completed
    group.samples[0] = failed(group.samples[0], "request")
    assert not algorithm.problem_trains([group])


def test_trees_are_drawn_among_responses_that_can_branch():
    def answers(item, k):
        one = Reply(f"\\boxed{{{item.problem.ground_truth}}}")
        return one if item.stage == INITIAL and k < 3 else script(item, k)

    expansion = Expansion(filter=FilterRule.NONE)
    for seed in range(6):
        results, _ = run(method(seed=seed, expansion=expansion), answers=answers, count=1, steps=2)
        parents = {group.input.parent_id for group in results[1].trained} - {None}
        assert parents == {"p10/initial/0#3"}


def test_minority_first_chooses_the_wrong_responses_of_a_problem_that_is_mostly_right():
    def answers(item, k):
        return always(k != 2 or item.stage == CONTINUATION)(item, k)

    expansion = Expansion(filter=FilterRule.NONE, choice=TreeChoice.MINORITY)
    results, _ = run(method(expansion=expansion), answers=answers, count=1)
    parents = {group.input.parent_id for group in results[1].trained} - {None}
    assert "p10/initial/0#2" in parents and len(parents) == 2  # exp(-3/4) * 4 = 1.89


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size"),
        ({"delta": 0}, "delta"),
        ({"branching": BranchRule(count=0)}, "num_branch_points"),
        ({"expansion": Expansion(continuations=0)}, "num_continuations"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)


def test_a_prompt_that_is_too_long_is_left_out():
    algorithm = method(prompt_tokens=len, max_prompt_tokens=0)
    assert algorithm.first_inputs(problems(1)[0], 1) == []
    fits = method(prompt_tokens=len, max_prompt_tokens=1)
    assert len(fits.first_inputs(problems(1)[0], 1)) == 1
