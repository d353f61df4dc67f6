"""The single-turn method: what an epoch asks, what it is worth, what is trained."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rema_script import TwoAgents
from scheduler_tools import build, drive, saved, single_call
from scripted_engine import ScriptedEngine, score_by_box

from marsrl_verl.algos.rema.leak import LOOK_FOR_VALUES
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import Config
from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts
from marsrl_verl.algos.rema.single_turn.method import GREEDY, ReMASingleTurn
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import is_trained, trained_rows
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.schedule import StepView
from marsrl_verl.core.scheduler import Mode, Scheduler
from marsrl_verl.core.stage import EndReason
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

PROBLEMS = [Problem(f"p{i}", f"{i} + 1 = ?", str(i + 1), row=f"row{i}") for i in range(6)]


def method(**changes) -> ReMASingleTurn:
    return build(ReMASingleTurn, MathPlanPrompts(), Config.model_validate(changes))


def in_pass(number: int, **changes) -> ReMASingleTurn:
    one = method(**changes)
    for _ in range(number):
        one.schedule.epoch_ended(1)
    return one


def scored(item: RolloutRequest, text: str, graded: float = 0.0, k: int = 0, **info) -> Trajectory:
    """A trajectory as its reward worker leaves it."""
    found = single_call(f"{item.group_id}#{k}", reward=graded, role=item.role, text=text, final_text=text)
    found.reward = RewardResult(graded, info)
    return found


def characters(messages) -> int:
    return sum(len(message["content"]) for message in messages)


LOW_FILTER, LOW, HIGH_FILTER, HIGH = 0, 1, 5, 6


# --- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "plans", "greedy_plan", "solutions", "greedy_solution"),
    [
        (LOW_FILTER, 1, True, 10, False),
        (LOW, 4, False, 4, False),
        (HIGH_FILTER, 10, False, 1, True),
        (HIGH, 4, False, 1, True),
    ],
)
def test_plans_and_solutions_of_each_pass(number, plans, greedy_plan, solutions, greedy_solution):
    one = in_pass(number)
    one.schedule.filter.note("row0#", 5, 10)
    (first,) = one.first_requests(PROBLEMS[0], 3)
    assert (first.stage, first.role, first.n, first.created_step) == ("plan", META_THINKING, plans, 3)
    assert first.sampling == ({META_THINKING: GREEDY} if greedy_plan else {})
    members = [scored(first, f"Do it like {k}.", k=k) for k in range(plans)]
    found = one.next_requests(PROBLEMS[0], "plan", [Group(first, members)], 3)
    assert [item.n for item in found] == [solutions] * plans
    assert [item.parent_id for item in found] == [each.trajectory_id for each in members]
    assert {item.role for item in found} == {REASONING} and {item.stage for item in found} == {"solution"}
    expected = {REASONING: GREEDY} if greedy_solution else {}
    assert all(item.sampling == expected for item in found)
    assert "Do it like 0." in found[0].messages[-1]["content"]
    assert len({item.group_id for item in found}) == plans


def test_several_solutions_of_a_plan_are_sampled():
    one = in_pass(HIGH, solutions_per_plan=3)
    (first,) = one.first_requests(PROBLEMS[0], 1)
    (item, *_) = one.next_requests(PROBLEMS[0], "plan", [Group(first, [scored(first, "x")])], 1)
    assert (item.n, item.sampling) == (3, {})


@pytest.mark.parametrize(
    ("text", "finish"),
    [
        ("", FinishReason.STOP),
        ("  \n", FinishReason.STOP),
        ("cut", FinishReason.LENGTH),
        ("", FinishReason.ERROR),
    ],
)
def test_a_plan_that_nobody_can_follow_has_no_solution(text, finish):
    one = in_pass(HIGH)
    (first,) = one.first_requests(PROBLEMS[0], 1)
    plan = scored(first, text)
    plan.finish = finish
    assert one.next_requests(PROBLEMS[0], "plan", [Group(first, [plan])], 1) == []
    reward = one.deferred_rewards([Group(first, [plan])])[plan.trajectory_id]
    assert reward.value == 0.0


def test_a_prompt_that_is_too_long_is_not_asked():
    limits = {META_THINKING: 10_000, REASONING: 2_000}
    one = build(ReMASingleTurn, MathPlanPrompts(), limits=limits, tokens=characters)
    (first,) = one.first_requests(PROBLEMS[0], 1)
    members = [scored(first, "y" * (3_000 * k + 1), k=k) for k in range(2)]
    (item,) = one.next_requests(PROBLEMS[0], "plan", [Group(first, members)], 1)
    assert item.parent_id == members[0].trajectory_id
    for of_the_one, of_the_other in ((10, 10_000), (10_000, 10)):
        short = {META_THINKING: of_the_one, REASONING: of_the_other}
        one = build(ReMASingleTurn, MathPlanPrompts(), limits=short, tokens=characters)
        assert one.first_requests(PROBLEMS[0], 1) == []


def test_a_pair_without_room_for_a_plan_is_skipped_and_counted():
    """It is the data's fault: no plan of it earns 0."""

    prompts = JudgePrompts()
    limits = {META_THINKING: 10_000, REASONING: 2_000}
    one = build(ReMASingleTurn, prompts, limits=limits, tokens=characters)
    fits, too_long = (
        Problem(f"{size}", "Which?", "A", extra_info={"answer_a": "x" * size, "answer_b": "y"})
        for size in (10, 2_000)
    )
    assert one.first_requests(fits, 1)
    scheduler = Scheduler(one, Mode.SEQUENTIAL)
    scheduler.start_step(1, [too_long])
    assert scheduler.next_round() == []
    (ended,) = scheduler.finish_step().ended
    assert (ended.problem_id, ended.reason) == ("2000", EndReason.SKIPPED)
    for process in ("vrp", "mrp"):
        alone = build(ReMASingleTurn, prompts, process=process, limits=limits, tokens=characters)
        assert alone.first_requests(fits, 1) and not alone.first_requests(too_long, 1)


@pytest.mark.parametrize(("process", "word"), [("vrp", "Reason step by step"), ("mrp", "write down a plan")])
def test_one_agent_alone(process, word):
    one = method(process=process, filter={"enabled": False})
    assert [stage.name for stage in one.stages(one.config)] == ["solution"]
    (item,) = one.first_requests(PROBLEMS[0], 1)
    assert (item.role, item.n, item.stage) == (REASONING, 4, "solution")
    assert word in item.messages[0]["content"]
    assert not one.schedule.phases.filtering and one.schedule.admits(PROBLEMS[1])


def test_fewer_problems_where_each_has_several_prompts():
    passes = (LOW_FILTER, LOW, HIGH_FILTER, HIGH)
    assert [in_pass(number).schedule.problems_per_step(30) for number in passes] == [30, 7, 30, 30]
    assert method(process="vrp").schedule.problems_per_step(30) == 30


# --- passes ---------------------------------------------------------------------------------------


def test_a_phase_asks_what_its_agent_solves_now_and_then():
    one = method()
    for problem, successes in zip(PROBLEMS, (0, 2, 5, 8, 9), strict=False):
        assert one.schedule.admits(problem)
        one.schedule.filter.note(f"{problem.row}#", successes, 10)
    one.schedule.epoch_ended(2)
    assert [one.schedule.admits(problem) for problem in PROBLEMS] == [False, True, True, True, False, False]
    for _ in range(4):
        one.schedule.epoch_ended(3)
    assert one.schedule.phases.role == META_THINKING and all(map(one.schedule.admits, PROBLEMS)), (
        "counted anew"
    )
    one.schedule.epoch_ended(4)
    assert not any(map(one.schedule.admits, PROBLEMS))


def test_it_ends_with_its_last_iteration():
    one = method(iterations=1, episodes=1)
    left = []
    for _ in range(4):
        one.schedule.epoch_ended(1)
        left.append(one.schedule.epochs_left())
    assert left == [2, 1, 0, 0]
    assert not one.schedule.admits(PROBLEMS[0])
    assert method().schedule.epochs_left() is None


def test_the_counts_and_the_pass_are_its_state():
    one = in_pass(HIGH)
    one.schedule.filter.note("row1#", 3, 10)
    other = method()
    other.schedule.load_state_dict(saved(one.schedule.state_dict()))
    assert other.schedule.state_dict() == one.schedule.state_dict()
    assert (
        other.schedule.phases.role == META_THINKING
        and other.schedule.admits(PROBLEMS[1])
        and not other.schedule.admits(PROBLEMS[2])
    )


@pytest.mark.parametrize(
    ("number", "due"), [(LOW_FILTER, set()), (LOW, {"r"}), (HIGH_FILTER, set()), (HIGH, {"m"})]
)
def test_one_policy_learns_at_a_time(number, due):
    one = build(ReMASingleTurn, MathPlanPrompts(), policies={META_THINKING: "m", REASONING: "r"})
    shared = dict.fromkeys((META_THINKING, REASONING), "shared")
    other = build(ReMASingleTurn, MathPlanPrompts(), policies=shared)
    for each in (one, other):
        each.schedule.load_state_dict(in_pass(number).schedule.state_dict())
    assert one.schedule.trained(1).policies == due
    assert other.schedule.trained(1).policies == ({"shared"} if due else set())
    assert len(other.schedule.trained(1).roles or ()) == len(due), "its responses alone"


# --- rewards --------------------------------------------------------------------------------------


def problem_groups(one: ReMASingleTurn, plans: list[str], graded: list[list[float]], **info) -> list[Group]:
    """A problem's plans, and the solutions of each."""
    (first,) = one.first_requests(PROBLEMS[0], 1)
    members = [scored(first, text, k=k, **info) for k, text in enumerate(plans)]
    groups = [Group(first, members)]
    for item, values in zip(one.next_requests(PROBLEMS[0], "plan", groups, 1), graded, strict=True):
        solutions = [
            scored(item, rf"\boxed{{{k}}}", value, k, answer=str(k) if value < 1 else "7")
            for k, value in enumerate(values)
        ]
        groups.append(Group(item, solutions))
    return groups


def rewarded(one: ReMASingleTurn, groups: list[Group]) -> list[float]:
    """The plans' rewards."""
    found = one.deferred_rewards(groups)
    for group in groups:
        for each in group.trajectories:
            each.reward = found[each.trajectory_id]
    return [each.value for each in groups[0].trajectories]


def test_a_plan_earns_the_share_of_its_correct_solutions():
    one = in_pass(HIGH, solutions_per_plan=4)
    groups = problem_groups(one, ["a", "b"], [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    assert rewarded(one, groups) == [0.5, 0.25]
    assert [each.value for each in groups[1].trajectories] == [1.0, -0.5, -0.5, 1.0]
    assert groups[0].trajectories[0].scored.info["correctness"] == 0.5


def test_consistency_counts_answers_whatever_is_right():
    one = in_pass(HIGH, solutions_per_plan=4, plan_reward="consistency")
    groups = problem_groups(one, ["a"], [[0.0, 1.0, 1.0, 1.0]])
    assert rewarded(one, groups) == [0.75]


@pytest.mark.parametrize(
    ("changes", "info", "text", "value"),
    [
        ({}, {"leak": True}, "the answer is 1", -1.0),
        ({}, {"leak": False}, r"put it into \boxed{5}", 1.0),
        ({"leak_rule": "format"}, {"leak": False}, r"put it into \boxed{5}", -1.0),
        ({"leak_rule": "format"}, {"leak": True}, "the answer is 1", 1.0),
        ({"leak_rule": "either"}, {"leak": True}, "the answer is 1", -1.0),
        ({"leak_rule": "none"}, {"leak": True}, r"\boxed{1}", 1.0),
        ({}, {"leak": False, "value_leak": True}, "there are 1 ways", -1.0),
        ({}, {"leak": False, "value_leak": False}, "there are ways", 1.0),
        ({"leak_rule": "equivalence"}, {"leak": False, "value_leak": True}, "there are 1 ways", 1.0),
        ({"penalty": -0.25}, {"leak": True}, "the answer is 1", -0.25),
        ({"penalty_mode": "add"}, {"leak": True}, "the answer is 1", 0.0),
    ],
)
def test_a_plan_that_gives_the_answer_away_is_punished(changes, info, text, value):
    one = in_pass(HIGH, **changes)
    assert rewarded(one, problem_groups(one, [text], [[1.0]], **info)) == [value]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_rule_of_values_asks_that_plans_be_looked_through_for_them(form):
    (plain,) = in_pass(HIGH, plan_form=form, leak_rule="equivalence").first_requests(PROBLEMS[0], 1)
    (strict,) = in_pass(HIGH, plan_form=form).first_requests(PROBLEMS[0], 1)
    assert LOOK_FOR_VALUES not in plain.inputs
    assert strict.inputs == {**plain.inputs, LOOK_FOR_VALUES: True}


def test_an_action_is_followed_or_punished():
    one = in_pass(HIGH, plan_form="json")
    (first,) = one.first_requests(PROBLEMS[0], 1)
    assert first.rollout.endswith(":ActionCall")
    assert first.inputs == {"form": "json", LOOK_FOR_VALUES: True}
    texts = ['{"action": "EMPTY", "output": "x"}', '{"action": "DECOMPOSE", "output": "in parts"}', "no JSON"]
    groups = problem_groups(one, texts, [[1.0], [0.0]])
    assert rewarded(one, groups) == [1.0, 0.0, -1.0]
    assert [item.request.inputs["plan"] for item in groups[1:]] == ["", "in parts"]
    figures = one.group_metrics(groups)
    shares = [figures[f"action_frac/{name}"] for name in ("empty", "decompose", "rewrite", "invalid")]
    assert shares == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3])
    assert figures["not_followed_frac"] == pytest.approx(1 / 3)


def test_a_plan_whose_solutions_all_failed_says_nothing():
    one = in_pass(HIGH)
    groups = problem_groups(one, ["a"], [[0.0]])
    groups[1].trajectories[0].finish = FinishReason.ERROR
    rewarded(one, groups)
    assert not groups[0].trajectories[0].comparable
    assert not is_trained(one, groups, 1)


@given(st.permutations(range(3)))
def test_rewards_depend_on_no_order(order):
    one = in_pass(HIGH, solutions_per_plan=3, plan_reward="consistency")
    groups = problem_groups(one, ["a", "b"], [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    other = [Group(each.request, each.trajectories) for each in (groups[k] for k in order)]
    assert one.deferred_rewards(groups) == one.deferred_rewards(other)


# --- counting and training ------------------------------------------------------------------------


def test_the_first_pass_counts_and_trains_nothing():
    one = method()
    groups = problem_groups(one, ["a"], [[1.0] * 3 + [0.0] * 7])
    rewarded(one, groups)
    one.observe_problem(groups)
    assert one.schedule.filter.counts == {"row0#": [3, 10]}
    assert not is_trained(one, groups, 1)
    high = in_pass(HIGH_FILTER)
    groups = problem_groups(high, ["a", "b", "c", ""], [[1.0], [0.0], [1.0]])
    rewarded(high, groups)
    high.observe_problem(groups)
    assert high.schedule.filter.counts == {"row0#": [2, 4]}, "a plan that nobody can follow fails"
    metrics = high.observe_step(StepView(None, (), 0))
    assert metrics["phase/trains_plans"] == 1.0 and metrics["filter/kept"] == 1.0


def test_what_failed_is_no_sample():
    one = method()
    groups = problem_groups(one, ["a"], [[1.0] * 5 + [0.0] * 5])
    for each in groups[1].trajectories[:4]:
        each.finish = FinishReason.ABORTED
    rewarded(one, groups)
    one.observe_problem(groups)
    assert one.schedule.filter.counts == {"row0#": [1, 6]}


def test_a_training_pass_trains_its_agent_alone():
    for number, stage, count in ((LOW, "solution", 8), (HIGH, "plan", 2)):
        one = in_pass(number, plans_per_problem=2, group_size=4 if number == LOW else 2)
        values = [[1.0, 0.0, 0.0, 1.0]] * 2 if number == LOW else [[1.0], [0.0]]
        groups = problem_groups(one, ["a", "b"], values)
        rewarded(one, groups)
        assert is_trained(one, groups, 1)
        refs = trained_rows(one, groups, 1)
        assert len(refs) == count
        assert {groups[ref.group].request.stage for ref in refs} == {stage}


def test_relative_to_the_group_equal_rewards_are_not_trained():
    one = in_pass(LOW, estimator="group", plans_per_problem=2)
    groups = problem_groups(one, ["a", "b"], [[1.0] * 4, [1.0, 0.0, 0.0, 0.0]])
    rewarded(one, groups)
    refs = trained_rows(one, groups, 1)
    assert {ref.group for ref in refs} == {2}
    # Rewards 1, -0.5, -0.5, -0.5: mean -0.125, deviation 0.75.
    assert one.credit.advantages(Rows.of(groups, refs)) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert not is_trained(one, groups[:2], 1)


def most(**changes) -> list[tuple]:
    return [
        (one.name, one.groups_per_problem, one.group_size, one.trained)
        for one in ReMASingleTurn.stages(Config.model_validate(changes))
    ]


def test_the_most_that_a_step_holds():
    assert most() == [("plan", 1, 10, True), ("solution", 10, 1, True)]
    unfiltered = most(filter={"enabled": False}, solutions_per_plan=3)
    assert unfiltered == [("plan", 1, 4, True), ("solution", 4, 3, True)]
    low = most(train_roles=[REASONING], plans_per_problem=2, group_size=16)
    assert low == [("plan", 1, 1, False), ("solution", 1, 16, True)]
    assert most(train_roles=[META_THINKING])[1] == ("solution", 10, 1, False)
    assert most(process="mrp", filter={"enabled": False}) == [("solution", 1, 4, True)]


@given(
    problems=st.integers(1, 60),
    n=st.integers(2, 12),
    plans=st.integers(1, 6),
    k=st.integers(1, 4),
    samples=st.integers(1, 12),
    number=st.integers(0, 9),
)
def test_no_pass_holds_more(problems, n, plans, k, samples, number):
    if problems < plans:
        return  # refused
    more = {"solutions_per_plan": k, "filter": {"samples": samples}}
    one = in_pass(number, group_size=n, plans_per_problem=plans, **more)
    asked = one.schedule.problems_per_step(problems)
    (first,) = one.first_requests(PROBLEMS[0], 1)
    solutions, _ = one._solutions()
    held = {"plan": asked * first.n, "solution": asked * first.n * solutions}
    for stage in one.stages(one.config):
        assert held[stage.name] <= problems * stage.samples_per_problem


# --- with the scheduler ---------------------------------------------------------------------------


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 50), number=st.sampled_from([LOW, HIGH]), order=st.permutations(range(12)))
def test_the_order_of_completion_changes_nothing(seed, number, order):
    def deliver(outputs):
        return [[outputs[k]] for k in order if k < len(outputs)] + [[one] for one in outputs[12:]]

    def run(mode, engine_seed, portions):
        one = in_pass(number, filter={"lowest": 0.0, "highest": 1.0})
        for problem in PROBLEMS:
            one.schedule.filter.note(f"{problem.row}#", 5, 10)
        engine = ScriptedEngine(TwoAgents(seed), seed=engine_seed, scorer=score_by_box)
        found = drive(
            one, mode, [PROBLEMS[:3], PROBLEMS[3:]], engine=engine, deliver=portions, checkpoint=True
        )
        return found.trained, found.ended

    straight = run("sequential", None, lambda outputs: [outputs])
    assert run("pipelined", seed, deliver) == straight
    assert all(end[1] in (EndReason.FINISHED, EndReason.NO_REQUESTS) for end in straight[1].values())
