from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_tools import build

from marsrl_verl.algos.marsrl.config import Config, train_role_issues
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import is_trained
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.settings.issues import ConfigError

PROBLEM = Problem("p", "1 + 1 = ?", "2")
LIMITS = {"solver": 10_000, "verifier": 10_000, "corrector": 10_000}


def marsrl(seed: int = 1, prompt_tokens=None, limits=LIMITS, **settings) -> MarsRL:
    measured = {"limits": limits, "tokens": prompt_tokens} if prompt_tokens else {}
    return build(MarsRL, MathPrompts(), seed=seed, **measured, **{"group_size": 4, **settings})


def answered(item: RolloutRequest, rewards: list[RewardResult], texts=None, reasons=None) -> Group:
    members = []
    for k, reward in enumerate(rewards):
        text = texts[k] if texts else f"text {item.group_id} {k}"
        sequence = Sequence(item.role, [1], [1], [0.0])
        finish = reasons[k] if reasons else FinishReason.STOP
        members.append(Trajectory(f"{item.group_id}#{k}", [sequence], finish, text, text, reward))
    return Group(item, members)


def solutions(method: MarsRL, rewards: list[float], **options) -> Group:
    [item] = method.first_requests(PROBLEM, 0)
    return answered(item, [RewardResult(reward) for reward in rewards], **options)


def judgement(verdict: Verdict, reward: float, **info) -> RewardResult:
    return RewardResult(reward, {"verdict": verdict.value, **info})


def flagged(reward: float, report: str | None = "a gap") -> RewardResult:
    return judgement(Verdict.WRONG, reward, **({} if report is None else {"report": report}))


PASSED = judgement(Verdict.CORRECT, 0.0, report="fine")
INVALID = judgement(Verdict.INVALID, 0.0, report="hm")


def test_a_solver_request_asks_the_problem():
    [item] = marsrl().first_requests(PROBLEM, step=7)
    assert item == RolloutRequest(
        group_id="p/solver/0",
        problem=PROBLEM,
        stage="solver",
        role="solver",
        messages=({"role": "user", "content": "1 + 1 = ?"},),
        n=4,
        created_step=7,
    )


def test_verifiers_judge_chosen_solutions_with_their_rewards():
    method = marsrl()
    requests = method.next_requests(PROBLEM, "solver", [solutions(method, [1.0, 0.0, 1.0, 0.0])], step=3)
    assert [item.group_id for item in requests] == ["p/verifier_1/0", "p/verifier_1/1"]
    assert {item.parent_id for item in requests} == {"p/solver/0#1", "p/solver/0#3"}
    for item in requests:
        assert item.inputs["solution"] == f"text p/solver/0 {item.parent_id[-1]}"
        assert item.inputs["solution"] in item.messages[1]["content"]
        assert (item.inputs["solution_reward"], item.role, item.created_step) == (0.0, "verifier", 3)


def test_correctors_get_the_judged_solution_and_the_report():
    method = marsrl(requests_per_stage=1)
    [judged] = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0, 1.0, 1.0, 1.0])], 0)
    verdicts = answered(judged, [PASSED, flagged(1.0, "step 2 is false"), INVALID, PASSED])
    [item] = method.next_requests(PROBLEM, "verifier_1", [verdicts], 0)
    assert item.stage == "corrector_1"
    assert item.parent_id == "p/verifier_1/0#1"
    assert item.inputs["solution"] == judged.inputs["solution"]
    assert item.inputs["solution_reward"] == 0.0
    assert [message["role"] for message in item.messages] == ["user", "assistant", "user"]
    assert item.messages[0]["content"] == "1 + 1 = ?"
    assert item.messages[1]["content"] == judged.inputs["solution"]
    assert item.messages[2]["content"].endswith("step 2 is false")


@pytest.mark.parametrize(("report", "shown"), [(None, True), ("", False)], ids=["not told", "lost"])
def test_a_verifier_whose_scorer_says_nothing_of_a_report_is_shown_whole(report, shown):
    """A report that the released rule lost stays lost."""
    method = marsrl(requests_per_stage=1)
    [judged] = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
    verdicts = answered(judged, [PASSED] * 3 + [flagged(1.0, report)], texts=["", "", "", "Wrong!"])
    [item] = method.next_requests(PROBLEM, "verifier_1", [verdicts], 0)
    assert item.messages[2]["content"].endswith("Wrong!") is shown


def test_the_second_verifier_judges_the_corrector():
    method = marsrl(requests_per_stage=1)
    [first] = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
    [second] = method.next_requests(PROBLEM, "verifier_1", [answered(first, [flagged(1.0)] * 4)], 0)
    corrections = answered(second, [RewardResult(1.0)] * 4)
    [third] = method.next_requests(PROBLEM, "corrector_1", [corrections], 0)
    assert (third.stage, third.inputs["solution_reward"]) == ("verifier_2", 1.0)
    assert third.inputs["solution"].startswith("text p/corrector_1/0")


# --- eligibility -----------------------------------------------------------------------------------


UNGRADED = RewardResult(0.0, error="the grader took longer than 10 s", graded=False)
GARBLED = RewardResult(0.0, error="parsing failed")


@pytest.mark.parametrize(
    ("reward", "text", "finish", "judged"),
    [
        pytest.param(RewardResult(0.0), "wrong", FinishReason.STOP, True, id="wrong"),
        pytest.param(RewardResult(0.0), "cut off", FinishReason.LENGTH, False, id="cut off"),
        pytest.param(RewardResult(0.0), "", FinishReason.STOP, False, id="empty"),
        pytest.param(RewardResult(0.0), "aborted", FinishReason.ABORTED, False, id="aborted"),
        pytest.param(UNGRADED, "x", FinishReason.STOP, False, id="not graded"),
        pytest.param(GARBLED, "x", FinishReason.STOP, True, id="garbled"),
    ],
)
def test_which_solutions_are_judged(reward, text, finish, judged):
    method = marsrl()
    [item] = method.first_requests(PROBLEM, 0)
    group = answered(item, [RewardResult(1.0), reward], ["right", text], [FinishReason.STOP, finish])
    shown = [one.inputs["solution"] for one in method.next_requests(PROBLEM, "solver", [group], 0)]
    assert sorted(shown) == sorted(["right", text] if judged else ["right"])


def test_only_readable_wrong_verdicts_of_finished_answers_lead_to_a_corrector():
    method = marsrl()
    [judged, _] = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
    outcomes = [PASSED, INVALID, flagged(1.0), RewardResult(0.0, error="grader failed")]
    reasons = [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP]
    assert method.next_requests(PROBLEM, "verifier_1", [answered(judged, outcomes, reasons=reasons)], 0) == []


def test_a_prompt_that_is_too_long_gives_way_to_the_next_candidate():
    def tokens(messages) -> int:
        return 10_001 if "long" in messages[-1]["content"] else 10_000

    method = marsrl(prompt_tokens=tokens, requests_per_stage=2)
    group = solutions(method, [0.0, 0.0, 0.0, 1.0], texts=["long a", "long b", "c", "d"])
    requests = method.next_requests(PROBLEM, "solver", [group], 0)
    assert [item.inputs["solution"] for item in requests] == ["c", "d"]


def test_only_the_prompts_of_chosen_requests_are_measured():
    measured = []

    def tokens(messages) -> int:
        measured.append(messages)
        return 1

    method = marsrl(prompt_tokens=tokens, requests_per_stage=2, group_size=8)
    group = solutions(method, [0.0] * 8)
    measured.clear()
    assert len(method.next_requests(PROBLEM, "solver", [group], 0)) == 2
    assert len(measured) == 2


def test_a_problem_that_is_too_long_for_the_solver_has_no_request():
    method = marsrl(prompt_tokens=lambda messages: 11, limits={**LIMITS, "solver": 10})
    assert method.first_requests(PROBLEM, 0) == []


# --- choice ----------------------------------------------------------------------------------------


def verifier_classes(rewards: list[float], **settings) -> list[float]:
    method = marsrl(**settings)
    requests = method.next_requests(PROBLEM, "solver", [solutions(method, rewards)], 0)
    return sorted(item.inputs["solution_reward"] for item in requests)


def test_what_verifiers_are_given():
    assert verifier_classes([1, 1, 0, 0], selection="adaptive") == [0, 0]
    assert verifier_classes([1, 1, 1, 0], selection="adaptive") == [0, 1]
    assert verifier_classes([1, 1, 1, 1], selection="adaptive") == [1, 1]
    assert verifier_classes([1, 1, 0, 0], selection="balanced") == [0, 1]
    assert verifier_classes([0, 0, 0, 0], selection="balanced") == [0, 0]
    means = [sum(verifier_classes([1, 1, 0, 0], selection="random", seed=seed)) for seed in range(300)]
    assert 0.85 < sum(means) / len(means) < 1.15


def corrector_classes(rewards: list[float], **settings) -> list[float]:
    method = marsrl(**settings)
    [judged, _] = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
    verdicts = answered(judged, [flagged(reward) for reward in rewards])
    by_id = {one.trajectory_id: one.value for one in verdicts.trajectories}
    requests = method.next_requests(PROBLEM, "verifier_1", [verdicts], 0)
    return sorted(by_id[item.parent_id] for item in requests)


def test_what_correctors_are_given():
    assert corrector_classes([1, 1, 0, 0], selection="adaptive") == [1, 1]
    assert corrector_classes([1, 0, 0, 0], selection="adaptive") == [0, 1]
    assert corrector_classes([0, 0, 0, 0], selection="adaptive") == [0, 0]
    assert corrector_classes([1, 1, 0, 0], selection="balanced") == [0, 1]


def test_random_corrector_requests_are_drawn_from_both_verifier_groups_together():
    """Eight false alarms about one solution, one error found in the other: not one of each group."""
    shares = []
    for seed in range(40):
        method = marsrl(seed, selection="random", group_size=8)
        first, second = method.next_requests(PROBLEM, "solver", [solutions(method, [1, 0, *[0] * 6])], 1)
        groups = [answered(first, [flagged(0.0)] * 8), answered(second, [flagged(1.0)] + [PASSED] * 7)]
        requests = method.next_requests(PROBLEM, "verifier_1", groups, 2)
        shares.append(all(item.parent_id.startswith(first.group_id) for item in requests))
    assert 20 < sum(shares) < 40, "28 / 36 of them"


def test_requests_are_counted_per_problem_or_per_group():
    for scope, expected in (("problem", 2), ("group", 4)):
        method = marsrl(select_scope=scope)
        judged = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
        groups = [answered(item, [flagged(1.0)] * 4) for item in judged]
        requests = method.next_requests(PROBLEM, "verifier_1", groups, 0)
        assert len(requests) == expected
        assert [item.group_id for item in requests] == [f"p/corrector_1/{slot}" for slot in range(expected)]
        # Both Verifier groups contribute in either scope.
        assert {item.parent_id.split("#")[0] for item in requests} == {"p/verifier_1/0", "p/verifier_1/1"}


def answers_shown(answers: list[str | None], **settings) -> list[str]:
    """The texts that Verifiers get of incorrect solutions with these answers."""
    method = marsrl(**settings)
    [item] = method.first_requests(PROBLEM, 0)
    group = answered(item, [RewardResult(0.0, {"answer": answer}) for answer in answers])
    return [one.inputs["solution"] for one in method.next_requests(PROBLEM, "solver", [group], 0)]


def test_verifiers_get_distinct_answers():
    assert len(answers_shown(["7", "7", "7", "7"])) == 2
    assert len(answers_shown(["7", "7", "7", "7"], distinct_answers=True)) == 1
    for seed in range(20):
        shown = answers_shown(["7", "7", "7", None], distinct_answers=True, seed=seed)
        assert "text p/solver/0 3" in shown and len(shown) == 2


def test_a_solution_that_does_not_fit_gives_way_to_another_with_its_answer():
    def tokens(messages) -> int:
        return 10_001 if "solver/0 0" in messages[-1]["content"] else 10_000

    for seed in range(20):
        shown = answers_shown(["7", "7"], distinct_answers=True, seed=seed, prompt_tokens=tokens)
        assert shown == ["text p/solver/0 1"]


def test_distinct_answers_concern_verifiers_only():
    method = marsrl(distinct_answers=True)
    requests = method.next_requests(PROBLEM, "solver", [solutions(method, [0.0] * 4)], 0)
    assert len(requests) == 1  # none of the four has a readable answer
    assert (
        len(method.next_requests(PROBLEM, "verifier_1", [answered(requests[0], [flagged(1.0)] * 4)], 0)) == 2
    )


def test_distinct_answers_are_counted_over_the_groups_of_a_stage():
    for scope, expected in (("problem", 1), ("group", 2)):
        method = marsrl(distinct_answers=True, select_scope=scope)
        [item] = method.first_requests(PROBLEM, 0)
        wrong = answered(item, [RewardResult(0.0, {"answer": answer}) for answer in "78"])
        judged = method.next_requests(PROBLEM, "solver", [wrong], 0)
        flags = [answered(item, [flagged(1.0)]) for item in judged]
        repaired = [
            answered(item, [RewardResult(1.0, {"answer": "2"})] * 2)
            for item in method.next_requests(PROBLEM, "verifier_1", flags, 0)
        ]
        assert len(repaired) == 2
        assert len(method.next_requests(PROBLEM, "corrector_1", repaired, 0)) == expected


def test_choices_differ_between_seeds_and_problems_and_not_between_steps():
    def parents(seed: int, name: str, step: int) -> tuple:
        method = marsrl(seed=seed, group_size=8)
        problem = replace(PROBLEM, problem_id=name)
        [item] = method.first_requests(problem, step)
        group = answered(item, [RewardResult(0.0)] * 8)
        requests = method.next_requests(problem, "solver", [group], step)
        return tuple(item.parent_id.split("#")[1] for item in requests)

    assert parents(1, "p", 0) == parents(1, "p", 9)
    assert len({parents(seed, "p", 0) for seed in range(20)}) > 5
    assert len({parents(1, f"p{i}", 0) for i in range(20)}) > 5


rewards_lists = st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4)


@given(
    rewards_lists, st.sampled_from(["random", "balanced", "adaptive"]), st.integers(1, 5), st.integers(0, 9)
)
@settings(deadline=None)
def test_every_request_has_its_own_parent(rewards, selection, k, seed):
    method = marsrl(seed=seed, selection=selection, requests_per_stage=k)
    requests = method.next_requests(PROBLEM, "solver", [solutions(method, rewards)], 0)
    assert len(requests) == min(k, 4) == len({item.parent_id for item in requests})
    for item in requests:
        assert item.inputs["solution_reward"] == rewards[int(item.parent_id[-1])]


# --- training --------------------------------------------------------------------------------------


def test_equal_rewards_and_untrained_roles_are_not_trained():
    method = marsrl()
    assert is_trained(method, [solutions(method, [1, 0, 0, 0])], 1)
    assert not is_trained(method, [solutions(method, [1, 1, 1, 1])], 1)
    assert not is_trained(method, [solutions(method, [0, 0, 0, 0])], 1)
    followers = marsrl(train_roles=["verifier", "corrector"])
    assert not is_trained(followers, [solutions(followers, [1, 0, 0, 0])], 1)
    assert len(followers.next_requests(PROBLEM, "solver", [solutions(followers, [1, 0, 0, 0])], 0)) == 2


@pytest.mark.parametrize(
    ("train_roles", "last"),
    [(["solver"], "solver"), (["verifier"], "verifier_2"), (["solver", "corrector"], "corrector_2")],
)
def test_the_chain_ends_at_the_last_trained_role(train_roles, last):
    chain = ["solver", "verifier_1", "corrector_1", "verifier_2", "corrector_2"]
    found = [stage.name for stage in MarsRL.stages(Config(train_roles=train_roles))]
    assert found == chain[: chain.index(last) + 1]


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train_roles": ["judge"]}, "algo.train_roles = judge"),
        ({"train_roles": []}, "No role is trained"),
        ({"correction_rounds": 0}, "verifier and corrector can't be trained"),
    ],
)
def test_roles_without_a_stage_are_named(setting, message):
    refused = ConfigError(list(train_role_issues(Config(**setting))))
    assert message in " ".join(str(refused).split())
