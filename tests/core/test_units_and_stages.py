"""What the first methods have not: late rewards, stages that branch, members that begin in a later round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scheduler_tools import (
    TwoStages,
    absorb_round,
    answers,
    back,
    drive,
    frozen,
    ids,
    next_step,
    paused,
    problems,
    restarted,
    saved,
    single_call,
    started,
)

from marsrl_verl.core.schedule import Schedule, Unit
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.stage import Ended, EndReason, Stage
from marsrl_verl.core.trajectory import Fork, RewardResult, RolloutOutput
from marsrl_verl.reporting.rollout_log import step_lines


def unscored(item) -> RolloutOutput:
    output = answers(item)
    for one in output.trajectories:
        one.reward = None
    return output


def absorb_unscored(scheduler: Scheduler) -> None:
    scheduler.absorb([unscored(item) for item in scheduler.next_round()])


# --- late rewards --------------------------------------------------------------------------------


class Problems(Schedule):
    unit = Unit.PROBLEM


def deferred_reward(name):
    """The two stages, one of them with late rewards."""
    return tuple(replace(one, deferred_reward=one.name == name) for one in TwoStages.stages(None))


class PlanAndSolve(TwoStages):
    """A plan (stage a) earns the mean reward of the solutions that follow it."""

    Schedule = Problems

    @classmethod
    def stages(cls, config):
        return deferred_reward("a")

    def __init__(self, *, pays: bool = True, **settings) -> None:
        super().__init__(**settings)
        self.pays = pays
        self.observed: list[list[str]] = []

    def next_requests(self, problem, stage, groups, step):
        return self.requests(problem, "b", self.fan[1], step, groups[0].trajectories[0].trajectory_id)

    def deferred_rewards(self, groups):
        plans = [one for group in groups if group.request.stage == "a" for one in group.trajectories]
        solved = [value for group in groups if group.request.stage == "b" for value in group.rewards]
        if not self.pays or not solved:
            return {}
        return {one.trajectory_id: RewardResult(float(np.mean(solved)) + k) for k, one in enumerate(plans)}

    def observe_problem(self, groups):
        self.observed.append(ids(groups))


@pytest.mark.parametrize("new_process", [False, True])
def test_a_problem_is_rewarded_when_it_ends_and_then_trained_whole(new_process):
    method = PlanAndSolve()
    scheduler = started(method)
    absorb_unscored(scheduler)
    first = scheduler.finish_step()
    assert first.trained == first.completed == [], "a plan is reported with its reward"
    if new_process:
        scheduler = restarted(scheduler)
    scheduler.start_step(1, [])
    absorb_round(scheduler)
    second = scheduler.finish_step()
    assert ids(second.trained) == ["p0/a/0", "p0/b/0", "p0/b/1"]
    assert ids(second.completed) == ["p0/a/0", "p0/b/0", "p0/b/1"]
    assert second.completed[0].rewards == second.trained[0].rewards == [0.5, 1.5]
    assert second.request_ages == {"b": 1.0}
    assert method.observed == [["p0/a/0", "p0/b/0", "p0/b/1"]]


def test_a_unit_that_is_a_group_is_rewarded_when_it_completes():
    class Ranked(TwoStages):
        @classmethod
        def stages(cls, config):
            return deferred_reward("a")

        def deferred_rewards(self, groups):
            (group,) = groups
            members = group.trajectories if group.request.stage == "a" else []
            return {one.trajectory_id: RewardResult(float(k)) for k, one in enumerate(members)}

    scheduler = started(Ranked())
    absorb_unscored(scheduler)
    result = scheduler.finish_step()
    assert [group.rewards for group in result.trained] == [[0.0, 1.0]]
    assert result.waiting["b"] == 2, "the next stage is chosen by the late rewards"


def test_a_deferred_reward_replaces_the_first_one():
    class Halved(TwoStages):
        def deferred_rewards(self, groups):
            members = [one for group in groups for one in group.trajectories]
            return {one.trajectory_id: RewardResult(one.value / 2) for one in members}

    run = drive(Halved(), "sequential", [problems(1)])
    assert {row[2] for row in run.completed["p0/a/0"]} <= {0.0, 0.5}


def test_a_missing_late_reward_is_an_error_that_names_trajectory_and_method():
    scheduler = started(PlanAndSolve(pays=False), mode="sequential")
    absorb_unscored(scheduler)
    absorb_round(scheduler)
    with pytest.raises(ValueError, match=r"p0/a/0#0 has no reward.*PlanAndSolve.deferred_rewards must give"):
        scheduler.finish_step()


def test_a_deferred_reward_of_a_stranger_is_refused():
    class Astray(TwoStages):
        def deferred_rewards(self, groups):
            return {"p9/a/0#0": RewardResult(1.0)}

    scheduler = started(Astray(), mode="sequential")
    with pytest.raises(ValueError, match="Astray rewards p9/a/0#0, which is not of its unit"):
        absorb_round(scheduler)


@pytest.mark.parametrize("solved", [0, 1])
def test_a_dropped_problem_is_trained_where_its_rewards_are_known(solved):
    """Of two solutions the second one waits when the data end."""
    method = PlanAndSolve()
    scheduler = started(method, step_prompt_budget=1)
    absorb_unscored(scheduler)
    next_step(scheduler)
    if solved:
        absorb_round(scheduler)
        next_step(scheduler)
    dropped = ids(scheduler.drop_waiting())
    assert dropped == ["p0/b/0", "p0/b/1"][solved:]
    result = scheduler.finish_step(last=True)
    assert result.ended == [Ended("p0", "b", EndReason.DROPPED)]
    assert ids(result.trained) == (["p0/a/0", "p0/b/0"] if solved else [])
    assert len(method.observed) == solved, "a plan without a reward says nothing"


@pytest.mark.parametrize("reason", [EndReason.REJECTED, EndReason.DROPPED])
def test_what_ended_early_without_a_reward_is_logged_without_the_methods_part(reason):
    class Records(PlanAndSolve):
        def next_requests(self, problem, stage, groups, step):
            rejected = reason is EndReason.REJECTED
            return None if rejected else super().next_requests(problem, stage, groups, step)

        def record(self, request, trajectory):
            return {"answer": trajectory.scored.info.get("answer")}

    method = Records()
    scheduler = started(method)
    absorb_unscored(scheduler)
    result = scheduler.finish_step()
    if reason is EndReason.DROPPED:
        scheduler.drop_waiting()
        scheduler.start_step(1, [])
        result = scheduler.finish_step()
    assert [end.reason for end in result.ended] == [reason]
    lines = step_lines(1, result.completed, method.record)
    assert [(line["trajectory"], line["reward"]) for line in lines] == [
        (f"p0/a/0#{k}", None) for k in range(2)
    ]
    assert not any("answer" in line for line in lines)


class Late(TwoStages):
    @classmethod
    def stages(cls, config):
        return deferred_reward("b")


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (Late, {"min_group": 2}, "is 2, but Late rewards complete groups only, at the stages b"),
        (PlanAndSolve, {"min_group": 2}, "is 2, but PlanAndSolve trains whole problems: set it to null"),
        (PlanAndSolve, {"max_request_staleness": 1}, "is 1, but PlanAndSolve trains whole problems"),
    ],
)
def test_settings_of_groups_are_refused_where_units_are_trained_whole(method, setting, message):
    (name,) = setting
    with pytest.raises(ValueError, match=f"{name} {message}"):
        Scheduler(method(), "pipelined", **setting)


# --- stages that branch --------------------------------------------------------------------------


class Branching(TwoStages):
    """From a a problem goes to b or c: even ones to c; problems of the second phase begin at c."""

    @classmethod
    def stages(cls, config):
        return (Stage("a", "a", 2, next=("b", "c")), Stage("b", "b", 2), Stage("c", "b", 2, next=("b",)))

    def __init__(self, begins: str = "a", **settings) -> None:
        super().__init__(**settings)
        self.begins = begins

    def first_requests(self, problem, step):
        return self.requests(problem, self.begins, self.fan[0], step)

    def next_requests(self, problem, stage, groups, step):
        if stage == "c":
            return self.requests(problem, "b", 1, step)
        return self.requests(problem, "c" if int(problem.problem_id[1:]) % 2 == 0 else "b", 1, step)


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_stage_leads_to_one_of_several(mode, checkpoint):
    run = drive(Branching(), mode, [problems(2)], checkpoint=checkpoint)
    assert sorted(run.decoded) == ["p0/a/0", "p0/b/0", "p0/c/0", "p1/a/0", "p1/b/0"]
    assert run.ended == {"p0": ("b", EndReason.FINISHED), "p1": ("b", EndReason.FINISHED)}
    assert set(run.results[0].waiting) == {"a", "b", "c"}


def test_a_problem_may_begin_at_another_stage_and_counts_as_new_there():
    method = Branching(begins="c")
    scheduler = started(method, count=2, max_request_staleness=1, step_prompt_budget=1)
    assert scheduler.waiting_problems() == 2
    absorb_round(scheduler)
    assert scheduler.finish_step().waiting == {"a": 0, "b": 1, "c": 1}
    scheduler = started(method, count=2, max_request_staleness=1, step_prompt_budget=1)
    scheduler.finish_step()
    state = saved(scheduler.state_dict())
    scheduler.load_state_dict(state)
    scheduler.start_step(9, [])
    assert ids(scheduler.next_round()) == ["p0/c/0"], "a problem does not age"
    assert scheduler.waiting_problems() == 1 and scheduler.finish_step().stale == 0


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("bc", "request p0/c/0: found stage c and n=2, expected stage b"),
        ("a", "request p0/a/0: found stage a, expected one of: b, c"),
    ],
)
def test_requests_of_two_stages_at_once_or_of_one_that_does_not_follow_are_refused(stages, message):
    class Asks(Branching):
        def next_requests(self, problem, stage, groups, step):
            return [one for name in stages for one in self.requests(problem, name, 1, step)]

    scheduler = started(Asks(), mode="sequential")
    absorb_round(scheduler)
    with pytest.raises(ValueError, match=message):
        scheduler.next_round()


def both_paused(name: str) -> RolloutOutput:
    return back(*[paused(f"{name}#{k}", [1]) for k in range(2)], group=name)


@pytest.mark.parametrize("first", [0, 1])
def test_dropped_problems_are_observed_in_the_order_of_their_arrival(first):
    class Observing(TwoStages):
        Schedule = Problems
        observed: tuple[str, ...] = ()

        def observe_problem(self, groups):
            self.observed += (groups[0].request.problem.problem_id,)

    method = Observing(fan=(3, 0))
    scheduler = started(method, count=2)
    asked = {item.group_id: item for item in scheduler.next_round()}
    for name in ("p0", "p1"):
        scheduler.absorb([answers(asked[f"{name}/a/0"])])
        scheduler.absorb([both_paused(f"{name}/a/1")])
    assert len(scheduler.drop_waiting()) == 2
    for number in (first, 1 - first):
        scheduler.absorb([both_paused(f"p{number}/a/2")])
    assert len(scheduler.finish_step(last=True).ended) == 2 and scheduler.idle()
    assert method.observed == ("p0", "p1")


# --- members that begin in a later round -----------------------------------------------------------


class TreeEngine:
    """Two roots in the first round, forks of them in later ones, as far as the budget in the group's state
    goes; one root takes two rounds."""

    def __init__(self) -> None:
        self.policy_version = 0
        self.seen: list[tuple] = []

    def generate(self, requests, sampling):
        return [self._answer(item) for item in requests]

    def _answer(self, item) -> RolloutOutput:
        name = item.group_id
        before = item.resume
        self.seen.append((name, None if before is None else frozen(before)))
        if before is None:
            waiting = paused(f"{name}#1", [7], state={"calls": 1})
            return RolloutOutput(name, [single_call(f"{name}#0", [1, 2, 3]), waiting], {"left": item.n - 2})
        members = []
        for one in before.trajectories:
            if one.paused:
                assert one.state == {"calls": 1}, "its own state comes back"
                members.append(single_call(one.trajectory_id, [7, 8], 0.0))
        count = len(before.trajectories)
        fork = single_call(f"{name}#{count}", [1, 2, count], float(count % 2), fork=Fork(f"{name}#0", 2))
        left = before.state["left"] - 1
        return RolloutOutput(name, [*members, fork], {"left": left} if left else None)


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_a_group_is_complete_when_its_program_says_so(mode):
    engine = TreeEngine()
    run = drive(TwoStages(fan=(1, 1), n=4), mode, [problems(1)], engine=engine)
    assert [name for name, _ in engine.seen] == ["p0/a/0"] * 3 + ["p0/b/0"] * 3
    steps = {name: at for at, result in enumerate(run.results) for name in ids(result.completed)}
    assert steps == ({"p0/a/0": 0, "p0/b/0": 0} if mode == "sequential" else {"p0/a/0": 2, "p0/b/0": 5})
    group = next(group for result in run.results for group in result.completed)
    assert [one.trajectory_id for one in group.trajectories] == [f"p0/a/0#{k}" for k in range(4)]
    assert [one.fork for one in group.trajectories] == [None, None, Fork("p0/a/0#0", 2), Fork("p0/a/0#0", 2)]
    assert [one.sequence.response_ids.tolist() for one in group.trajectories] == [
        [1, 2, 3], [7, 8], [1, 2, 2], [1, 2, 3],
    ]  # fmt: skip


def test_a_program_sees_the_same_with_and_without_restarts():
    plain, restarted = TreeEngine(), TreeEngine()
    method = TwoStages(fan=(1, 1), n=4)
    first = drive(method, "pipelined", [problems(2)], engine=plain)
    second = drive(method, "pipelined", [problems(2)], engine=restarted, checkpoint=True)
    assert plain.seen == restarted.seen
    assert frozen(first.results) == frozen(second.results)


def test_a_group_with_a_state_goes_on_though_nobody_is_paused():
    scheduler = started(TwoStages(n=3))
    scheduler.next_round()
    scheduler.absorb([back(single_call("p0/a/0#0"), single_call("p0/a/0#1", [1]), state={"left": 1})])
    first = next_step(scheduler)
    assert (first.in_flight, first.paused, first.completed) == (1, 0, [])
    (item,) = scheduler.next_round()
    assert item.resume.state == {"left": 1} and [one.number for one in item.resume.trajectories] == [0, 1]
    scheduler.absorb([back(single_call("p0/a/0#2", [2], 0.0))])
    (group,) = scheduler.finish_step().trained
    assert group.rewards == [1.0, 1.0, 0.0]


def test_no_part_of_a_group_that_grows_is_trained():
    scheduler = started(TwoStages(n=4), min_group=2)
    scheduler.next_round()
    grows = back(single_call("p0/a/0#0"), single_call("p0/a/0#1", [1], 0.0), state={"left": 2})
    with pytest.raises(ValueError, match=r"p0/a/0 grows from round to round, and min_group is 2"):
        scheduler.absorb([grows])


def test_of_what_has_ended_a_program_is_given_no_tokens():
    scheduler = Scheduler(TwoStages(fan=(1, 0)), "sequential")
    scheduler.start_step(1, problems(1))
    scheduler.next_round()
    ended = single_call("p0/a/0#0", [1, 2], text="long", events=[{"tool": "python"}])
    going = paused("p0/a/0#1", [7])
    scheduler.absorb([back(ended, going)])
    (item,) = scheduler.next_round()
    light, whole = item.resume.trajectories
    assert (light.trajectory_id, light.finish, light.value, light.events) == (
        "p0/a/0#0", ended.finish, 1.0, ended.events,
    )  # fmt: skip
    assert (light.sequences, light.text) == ([], "") and whole is going
    scheduler.absorb([back(single_call("p0/a/0#1", [7, 8], 0.0))])
    (group,) = scheduler.finish_step().completed
    assert group.trajectories[0].sequence.response_ids.tolist() == [1, 2], "the scheduler keeps them"


def test_a_fork_begins_as_the_trajectory_that_it_left():
    scheduler = started(TwoStages(n=3), mode="sequential")
    scheduler.next_round()
    root = single_call("p0/a/0#0", [1, 2, 3])

    def absorb(fork: Fork, tokens) -> None:
        members = [root, single_call("p0/a/0#1", tokens, fork=fork), single_call("p0/a/0#2", [5])]
        scheduler.absorb([back(*members)])

    for fork, tokens, message in (
        (Fork("p0/a/0#0", 2), [1, 9], "after 2 tokens of sequence 0, and does not begin with them"),
        (Fork("p0/a/0#0", 4), [1, 2, 3, 4], "after 4 tokens of sequence 0, and does not begin"),
        (Fork("p0/a/0#0", 1, 1), [1], "after 1 tokens of sequence 1, and does not begin"),
        (Fork("p0/a/0#7", 1), [1], "unknown trajectory p0/a/0#7"),
    ):
        with pytest.raises(ValueError, match=f"p0/a/0#1.*{message}"):
            absorb(fork, tokens)
    absorb(Fork("p0/a/0#0", 2), [1, 2, 9])


def test_a_round_may_begin_nobody_and_leave_a_state_alone():
    scheduler = started(TwoStages(), mode="sequential")
    scheduler.next_round()
    scheduler.absorb([back(state={"searching": True})])
    (item,) = scheduler.next_round()
    assert item.resume is not None and item.resume.trajectories == []
    scheduler.absorb([answers(item, (0.0, 0.0))])
    assert scheduler.next_round() == [] and len(scheduler.finish_step().completed) == 1
