"""What a run looks out for: when a warning begins, when it is over, and what ends a run."""

from __future__ import annotations

import pytest
from evaluation_tools import trajectory

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation import watch as watching
from marsrl_verl.evaluation.watch import CollapsedError, RoleStep, StepFacts, Watch
from marsrl_verl.settings.watch import WatchConfig


def facts(*, trained: bool = True, could_train: bool = True, **roles: RoleStep) -> StepFacts:
    return StepFacts(roles, trained, could_train)


def looked(watch: Watch, *steps: StepFacts, first: int = 1) -> dict[int, list[str]]:
    """What is said, by step."""
    said = {number: watch.look(number, one) for number, one in enumerate(steps, first)}
    return {number: lines for number, lines in said.items() if lines}


def mixed(groups: int = 10, **figures: int) -> RoleStep:
    return RoleStep(groups=groups, samples=4 * groups, **figures)


def group(rewards: list[float], role: str = SOLVER, **more) -> Group:
    request = RolloutRequest("g", Problem("p", "1+1", "2"), role, role, (), len(rewards), inputs=more)
    return Group(request, [trajectory(f"g#{k}", reward=one, role=role) for k, one in enumerate(rewards)])


# --- what is counted ----------------------------------------------------------------------------


def test_groups_are_counted_by_what_their_rewards_have_in_common():
    failed, alone = group([0.0, 0.0, 1.0]), group([1.0, 1.0])
    failed.trajectories[2].finish = FinishReason.ERROR  # says nothing about its text
    failed.trajectories[2].detail = "HTTP 500\nmore"
    alone.trajectories[1] = trajectory("g#1", reward=0.0, error="no grade")
    paused = group([1.0])
    paused.trajectories.append(Trajectory("g#1", [], FinishReason.LENGTH))
    found = RoleStep.of([group([1.0, 1.0]), group([0.0, 1.0]), failed, alone, paused], MarsRL)
    assert (found.groups, found.right, found.wrong) == (3, 1, 1)
    assert (found.samples, found.failed, found.first_failure) == (11, 1, "HTTP 500 more")
    assert found.truncated == 1
    assert found.outcomes == {}


def test_a_verdict_is_counted_with_the_one_that_was_right():
    wrong, right = (group([1.0, 0.0], VERIFIER, solution="x", solution_reward=one) for one in (0.0, 1.0))
    for one in (wrong, right):
        one.trajectories[0] = trajectory("g#0", reward=1.0, verdict=Verdict.WRONG, role=VERIFIER)
        one.trajectories[1] = trajectory("g#1", reward=0.0, verdict=Verdict.INVALID, role=VERIFIER)
    found = RoleStep.of([wrong, right], MarsRL)
    assert found.outcomes == {"wrong": 2, "invalid": 2}
    assert found.due == {"wrong": 2, "correct": 2}


# --- nothing is trained -------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    """A few samples decide."""
    monkeypatch.setattr(watching, "LEAST_IDLE", 1)


def test_steps_without_a_trained_group_end_a_run(few):
    watch = Watch(WatchConfig(steps=3))
    idle = facts(trained=False, solver=mixed(wrong=10, truncated=7))
    said = looked(watch, facts(solver=mixed()), idle, facts(trained=False, could_train=False), idle)
    assert said == {}
    watch.check()
    *_, line = watch.look(5, idle)
    assert line.startswith("warning: steps 2 to 5: no group was trained: 30 of 30 groups have equal rewards")
    assert "30 all alike and not right" in line and "21 of 120 responses reach the token limit" in line
    assert "too high a learning rate" in line
    assert watch.metrics()["warning/nothing_trained"] == 1
    with pytest.raises(CollapsedError, match=r"no group was trained.*marsrl\.watch\.nothing_trained"):
        watch.check()


def test_a_trained_group_counts_anew():
    watch = Watch(WatchConfig(steps=2))
    idle = facts(trained=False, solver=mixed(wrong=10))
    looked(watch, idle, facts(solver=mixed()), idle)
    watch.check()


def test_groups_that_are_all_right_ask_for_harder_problems_and_end_nothing():
    watch = Watch(WatchConfig(steps=1))
    *_, line = watch.look(1, facts(trained=False, solver=mixed(64, right=64)))
    assert "harder problems" in line and "no group was trained" in line
    watch.check()


def test_solved_problems_that_are_unsolved_again_end_the_run(few):
    watch = Watch(WatchConfig(steps=2))
    looked(watch, *[facts(trained=False, solver=mixed(right=10))] * 2)
    watch.check()
    looked(watch, *[facts(trained=False, solver=mixed(wrong=10))] * 2, first=3)
    with pytest.raises(CollapsedError, match="no group was trained"):
        watch.check()


@pytest.mark.parametrize(
    ("right", "wrong", "remedy"),
    [(8, 2, "harder problems"), (6, 4, "solved now and then"), (2, 8, "too hard")],
)
def test_the_advice_is_about_most_of_the_equal_groups(right, wrong, remedy):
    watch = Watch(WatchConfig(steps=1))
    (line,) = watch.look(1, facts(solver=mixed(right=right, wrong=wrong)))
    assert remedy in line


def test_a_few_small_steps_without_a_trained_group_end_nothing():
    watch = Watch(WatchConfig(steps=5))
    idle = facts(trained=False, solver=RoleStep(groups=1, samples=8, wrong=1))
    for step in range(1, 32):
        watch.look(step, idle)
        watch.check()
    watch.look(32, idle)
    with pytest.raises(CollapsedError):
        watch.check()


def test_a_run_that_is_warned_goes_on_and_hears_of_the_end_once(few):
    watch = Watch(WatchConfig(steps=2, nothing_trained="warn", zero_std_groups="warn"))
    idle, busy = facts(trained=False, solver=mixed(wrong=5)), facts(solver=mixed())
    said = looked(watch, idle, idle, idle, busy, busy)
    assert list(said) == [2, 4]
    assert said[4] == ["step 4: the warning of step 2 is over (marsrl.watch.nothing_trained)"]
    watch.check()
    assert [one.line[:24] for one in watch.warnings] == ["From step 2 until step 4"]


def test_a_run_that_was_ended_can_go_on_from_its_checkpoint(few):
    watch = Watch(WatchConfig(steps=2))
    idle = facts(trained=False, solver=mixed(wrong=5))
    looked(watch, idle, idle)
    resumed = Watch(WatchConfig(steps=2))
    resumed.load_state_dict(watch.state_dict())
    resumed.check()
    looked(resumed, idle, first=3)
    resumed.check()
    looked(resumed, idle, first=4)
    with pytest.raises(CollapsedError):
        resumed.check()


def test_a_resumed_run_says_what_it_would_have_said():
    settings = WatchConfig(steps=3)
    steps = [facts(solver=mixed(wrong=9)) for _ in range(4)] + [facts(solver=mixed()) for _ in range(3)]
    whole = looked(Watch(settings), *steps)
    assert whole
    for end in range(1, len(steps)):
        first, second = Watch(settings), Watch(settings)
        before = looked(first, *steps[:end])
        second.load_state_dict(first.state_dict())
        assert before | looked(second, *steps[end:], first=end + 1) == whole


# --- roles --------------------------------------------------------------------------------------


def test_a_role_with_equal_groups_is_warned_of_with_what_they_are():
    watch = Watch(WatchConfig(steps=2))
    said = looked(watch, *[facts(solver=mixed(32, right=28), verifier=mixed(32, right=5))] * 3)
    assert list(said) == [2]
    assert said[2][0].startswith(
        "warning: steps 1 to 2: 56 of 64 groups of the solver have equal rewards (56 all right)"
    )
    assert watch.metrics()["warning/zero_std_groups"] == 1
    # A little less is no end of it.
    assert looked(watch, facts(solver=mixed(32, right=26)), first=4) == {}
    ended = looked(watch, *[facts(solver=mixed(32, right=16))] * 2, first=5)
    assert list(ended) == [5] or list(ended) == [6]
    assert watch.metrics()["warning/zero_std_groups"] == 0


def test_roles_that_nobody_trains_may_have_equal_groups():
    watch = Watch(WatchConfig(steps=1), frozenset({"solver"}))
    assert looked(watch, facts(solver=mixed(wrong=10))) == {}


def verdicts(given: dict[str, int], due: dict[str, int]) -> RoleStep:
    return mixed(outcomes=given, due=due)


@pytest.mark.parametrize(
    ("given", "due", "warned"),
    [
        ({"wrong": 40}, {"wrong": 30, "correct": 10}, True),
        ({"wrong": 40}, {"wrong": 38, "correct": 2}, False),  # nearly right
        ({"wrong": 30, "correct": 10}, {"wrong": 30, "correct": 10}, False),
        ({"wrong": 8}, {"wrong": 4, "correct": 4}, False),  # too few
        ({"invalid": 40}, {"wrong": 30, "correct": 10}, True),
        ({"EMPTY": 40}, {}, True),
        ({"EMPTY": 30, "REWRITE": 10}, {}, False),
    ],
)
def test_a_role_that_always_decides_alike_is_warned_of(given, due, warned):
    watch = Watch(WatchConfig(steps=2))
    said = looked(watch, *[facts(verifier=verdicts(given, due))] * 2)
    assert list(said) == ([2] if warned else [])
    if "invalid" in given:
        assert "another decision was right in 80: read its rollouts" in said[2][0]
    elif warned and due:
        assert (
            "the verifier decided 'wrong' in 80 of 80 cases, and another decision was right in 20"
            in said[2][0]
        )


def test_responses_that_are_all_cut_off_are_warned_of():
    watch = Watch(WatchConfig(steps=2))
    said = looked(watch, *[facts(solver=mixed(truncated=40))] * 2)
    assert "marsrl.roles.solver.max_new_tokens" in said[2][0]


def test_failed_requests_are_warned_of_in_their_step_and_once():
    watch = Watch(WatchConfig(steps=5))
    failing = facts(solver=mixed(failed=25, first_failure="HTTP 503 from http://x/v1"))
    said = looked(watch, failing, failing, facts(solver=mixed()))
    assert list(said) == [1, 3]
    assert said[1] == [
        "warning: step 1: 62% of the responses of the solver failed (25 of 40); the first: HTTP 503 from "
        "http://x/v1"
    ]
    assert watch.metrics()["warning/failed_requests"] == 0


@pytest.mark.parametrize("rule", ["zero_std_groups", "one_outcome", "truncated", "failed_requests"])
def test_every_warning_can_end_a_run(rule):
    watch = Watch(WatchConfig(steps=1, **{rule: "end"}))
    bad = mixed(wrong=10, truncated=40, failed=40, outcomes={"a": 40})
    looked(watch, facts(solver=bad))
    with pytest.raises(CollapsedError, match=f"marsrl.watch.{rule} = end"):
        watch.check()


def test_engine_and_trainer_that_differ_are_warned_of_until_they_agree():
    watch = Watch(WatchConfig())
    gaps = (0.049, 0.05, 0.046, None, 0.044)
    said = [watch.look_at_gap(step, gap, could_weigh=True) for step, gap in enumerate(gaps, 1)]
    assert said[0] == said[2] == said[3] == [] and "over" in said[4][0]
    assert said[1][0].startswith("warning: step 2: engine and trainer differ by 0.050 nats a token")
    assert "off_policy.mode=tis weighs" in said[1][0]
    assert "tis" not in Watch(WatchConfig()).look_at_gap(1, 0.2, could_weigh=False)[0]
    watch = Watch(WatchConfig(log_probs_diff="end"))
    watch.look_at_gap(1, 0.2, could_weigh=False)
    with pytest.raises(CollapsedError, match="log_probs_diff = end"):
        watch.check()


def test_what_was_found_elsewhere_is_said_once():
    watch = Watch(WatchConfig(not_finite="warn"))
    said = [
        watch.note("not_finite", step, text)
        for step, text in ((1, None), (2, "x = nan"), (3, "x = nan"), (4, None))
    ]
    assert said[0] == said[2] == [] and said[1] == ["warning: step 2: x = nan"] and "over" in said[3][0]
