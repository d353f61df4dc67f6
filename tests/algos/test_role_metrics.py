import pytest
from evaluation_tools import trajectory

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd, SystemRun
from marsrl_verl.algos.marsrl.evaluation.role_metrics import (
    EFFORT_METRICS,
    EVALUATION_METRICS,
    ROLE_METRICS,
    effort,
    f1_estimates,
    role_observations,
    system_observations,
)
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.estimators import estimates
from marsrl_verl.evaluation.runs import Call, Runs
from marsrl_verl.evaluation.single_role import answer_metrics
from marsrl_verl.evaluation.training_metrics import role_metric, training_metrics

YES, NO, ODD = Verdict.CORRECT, Verdict.WRONG, Verdict.INVALID


def sample(group, k=0, reward=0.0, verdict=None, tokens=3, end=FinishReason.STOP, **rest):
    return trajectory(f"{group}#{k}", reward=reward, verdict=verdict, finish=end, ids=range(tokens), **rest)


def request(group, role, truth=None, stage=None, problem="p", n=1):
    inputs = {"solution": "s", "solution_reward": truth}
    return RolloutRequest(group, Problem(problem, "q", "a"), stage or role, role, (), n, inputs=inputs)


def call(role, truth=None, problem="p", stage=None, **kwargs):
    group = f"{problem}/{role}"
    return Call(request(group, role, truth, stage, problem), sample(group, **kwargs))


def judged(truth, verdict, problem="p", **kwargs):
    return call(VERIFIER, truth, problem, reward=0.0, verdict=verdict, **kwargs)


CONFUSION = [
    # 4 incorrect solutions: 2 found, 1 passed, 1 without verdict; 3 correct ones: 1 alarm, 1 pass, 1 without
    judged(0.0, NO, "a"),
    judged(0.0, NO, "b"),
    judged(0.0, YES, "c"),
    judged(0.0, ODD, "d"),
    judged(1.0, NO, "e"),
    judged(1.0, YES, "f"),
    judged(1.0, ODD, "g"),
]


def test_verifier_by_hand():
    found = {name: (o.mean, o.n) for name, o in role_observations(CONFUSION).items() if o.n}
    assert found == {
        "verifier_accuracy": (3 / 7, 7),
        "verifier_recall": (2 / 4, 4),
        "verifier_precision": (2 / 3, 3),
        "verifier_false_alarm_rate": (1 / 3, 3),
    }


def test_f1_by_hand():
    # TP 2, FP 1, FN 2: F1 = 4 / 7 = harmonic mean of 2/3 and 1/2
    found = f1_estimates(role_observations(CONFUSION))["verifier_f1"]
    assert found.mean == pytest.approx(4 / 7)
    assert found.low < found.mean < found.high
    assert found.n == 5
    assert f1_estimates(role_observations([]))["verifier_f1"].mean is None


def test_f1_is_derived_from_kept_observations():
    kept = role_observations(CONFUSION)
    greedy = {f"{name}_greedy": items for name, items in role_observations(CONFUSION[:4]).items()}
    found = f1_estimates(kept | greedy, confidence=0.8)
    assert found == {
        "verifier_f1": f1_estimates(kept, 0.8)["verifier_f1"],
        "verifier_f1_greedy": f1_estimates(role_observations(CONFUSION[:4]), 0.8)["verifier_f1"],
    }
    assert found["verifier_f1_greedy"].mean == pytest.approx(2 / 3)  # TP 2, FN 2
    assert f1_estimates({"solver_accuracy": kept["solver_accuracy"]}) == {}


def test_what_a_cut_off_answer_says_is_the_scorers_word():
    read, unread = judged(0.0, NO, end=FinishReason.LENGTH), judged(0.0, ODD, end=FinishReason.LENGTH)
    assert role_observations([read, unread])["verifier_accuracy"].outcomes == (True, False)


@pytest.mark.parametrize("end", [FinishReason.ERROR, FinishReason.PROMPT_TOO_LONG])
def test_a_verdict_without_an_answer_is_none(end):
    observations = role_observations([judged(0.0, NO, end=end)])
    assert observations["verifier_accuracy"].outcomes == (False,)
    assert observations["verifier_recall"].outcomes == (False,)
    assert observations["verifier_precision"].n == 0


def test_solver_and_corrector_by_hand():
    calls = [
        call(SOLVER, reward=1.0),
        call(SOLVER, reward=0.0),
        call(SOLVER, reward=1.0, end=FinishReason.LENGTH),  # an unfinished answer is incorrect
        call(SOLVER, reward=1.0, text=" "),  # so is an empty one
        call(CORRECTOR, 0.0, reward=1.0),
        call(CORRECTOR, 0.0, reward=0.0),
        call(CORRECTOR, 0.0, reward=0.0),
        call(CORRECTOR, 1.0, reward=1.0),
        call(CORRECTOR, 1.0, reward=1.0, end=FinishReason.LENGTH),
    ]
    found = {name: (o.mean, o.n) for name, o in role_observations(calls).items() if o.n}
    assert found == {
        "solver_accuracy": (1 / 4, 4),
        "corrector_fix_rate": (1 / 3, 3),
        "corrector_break_rate": (1 / 2, 2),
    }


def test_graded_rewards_are_correct_above_one_half():
    calls = [call(SOLVER, reward=r) for r in (-1.0, 0.5, 0.51, 1.0)]
    assert role_observations(calls)["solver_accuracy"].outcomes == (False, False, True, True)


def test_a_judgement_needs_the_truth():
    with pytest.raises(ValueError, match="p/verifier of role verifier has no solution_reward"):
        role_observations([judged(None, YES)])


def test_system_accuracy_is_the_answer_at_the_end():
    problem, calls = Problem("p", "q", "a"), [call(SOLVER, reward=0.0)]
    runs = [SystemRun(problem, k, calls=calls, solver_reward=0.0, final_reward=1.0 - k) for k in range(2)]
    found = estimates(system_observations(Runs("t", runs)))
    assert list(found) == list(EVALUATION_METRICS)
    assert (found["solver_accuracy"].mean, found["system_accuracy"].mean) == (0.0, 0.5)
    assert found["verifier_accuracy"].mean is None


def test_effort_by_hand():
    def run(problem: str, end: RunEnd, *calls) -> SystemRun:
        made = [call(role, stage=f"{role}_{number}", tokens=tokens) for role, number, tokens in calls]
        return SystemRun(Problem(problem, "q", "a"), 0, calls=made, end=end)

    asked_again = [(SOLVER, 0, 5), (VERIFIER, 1, 2), (VERIFIER, 1, 3), (CORRECTOR, 2, 4), (VERIFIER, 3, 1)]
    runs = [
        run("a", RunEnd.NO_SOLUTION, (SOLVER, 0, 9)),
        run("b", RunEnd.ACCEPTED, *asked_again),
        run("c", RunEnd.ACCEPTED, (SOLVER, 0, 5), (VERIFIER, 1, 1)),
        run("d", RunEnd.REJECTED, (SOLVER, 0, 5), (VERIFIER, 1, 2), (CORRECTOR, 2, 4), (VERIFIER, 3, 1)),
    ]
    found = effort(Runs("t", runs))
    assert list(found) == list(EFFORT_METRICS)
    assert {name: (item.mean, item.n) for name, item in found.items()} == {
        "accepted_frac": (2 / 4, 4),
        "rejected_frac": (1 / 4, 4),
        "iterations": (5 / 4, 4),
        "calls": (3.0, 4),
        "tokens": (42 / 4, 4),
    }
    assert all(item.low < item.mean < item.high for item in found.values())


def group_of(name, role, samples, truth=None, stage=None):
    return Group(request(name, role, truth, stage, n=len(samples)), samples)


def test_training_metrics_by_hand():
    right = sample("s1", 0, 1.0, tokens=10, answer="7")
    cut = sample("s1", 1, 0.0, tokens=20, end=FinishReason.LENGTH)
    ungraded = sample("s2", 0, 0.0, tokens=30, error="grader timed out")
    too_long = sample("s2", 1, 0.0, tokens=0, end=FinishReason.PROMPT_TOO_LONG)
    groups = [
        group_of("s1", SOLVER, [right, cut]),
        group_of("s2", SOLVER, [ungraded, too_long]),
        group_of("v", VERIFIER, [sample("v", 0, 1.0, NO), sample("v", 1, 0.0, ODD)], 0.0, "verifier_1"),
    ]
    found = training_metrics(groups, MarsRL)
    solver = {name.rsplit("/", 1)[1]: v for name, v in found.items() if name.startswith("role/solver/")}
    assert solver == {
        "reward_mean": 0.25,
        "samples": 4,
        "groups": 2,
        "zero_std_groups": 1,
        "response_length_mean": 15,
        "response_length_p95": pytest.approx(28.5),
        "response_length_max": 30,
        "response_length_mean_right": 10,
        "response_length_mean_wrong": pytest.approx(50 / 3),
        "repetition_frac": 0,
        "distinct_4_frac": 1,
        "reflection_words": 0,
        "distinct_4_frac_right": 1,
        "reflection_words_right": 0,
        "repetition_frac_wrong": 0,
        "distinct_4_frac_wrong": 1,
        "reflection_words_wrong": 0,
        "truncation_frac": 0.25,
        "failed_frac": 0.25,
        "invalid_text_frac": 0,
        "grading_error_frac": 0.25,
        "missing_answer_frac": 0.75,
        "solver_accuracy": 0.25,
    }
    assert "repetition_frac_right" not in solver, "the right response has ten tokens, a 20-gram twenty"
    assert found[role_metric("verifier", "verifier_recall")] == 0.5
    assert found["stage/verifier_1/invalid_verdict_frac"] == 0.5
    assert found["stage/verifier_1/verifier_f1"] == pytest.approx(2 / 3)
    assert "stage/verifier_1/verifier_false_alarm_rate" not in found
    assert "role/corrector/reward_mean" not in found


def test_every_metric_of_the_roles_is_there_and_finite():
    groups = [
        group_of("s", SOLVER, [sample("s", 0, 1.0, tokens=30), sample("s", 1, 0.0, tokens=30)]),
        group_of("v", VERIFIER, [sample("v", 0, 1.0, NO)], 0.0, "verifier_1"),
        group_of("w", VERIFIER, [sample("w", 0, 1.0, YES)], 1.0, "verifier_1"),
        group_of("c", CORRECTOR, [sample("c", 0, 1.0)], 0.0, "corrector_1"),
        group_of("d", CORRECTOR, [sample("d", 0, 1.0)], 1.0, "corrector_1"),
    ]
    found = training_metrics(groups, MarsRL)
    assert set(ROLE_METRICS) < {name.rsplit("/", 1)[1] for name in found}
    assert all(isinstance(value, float) and value == value for value in found.values())


def test_what_a_pass_that_trains_nobody_measures_has_names_of_its_own():
    groups = [group_of("s", SOLVER, [sample("s", 0, 1.0, tokens=30), sample("s", 1, 0.0, tokens=30)])]
    trained, counted = training_metrics(groups, MarsRL), training_metrics(groups, MarsRL, trains=False)
    assert counted["role/solver.counting/reward_mean"] == 0.5
    assert counted == {name.replace("/solver/", "/solver.counting/"): one for name, one in trained.items()}
    assert not counted.keys() & trained.keys()


def test_answers_are_counted_of_roles_that_answer():
    solved = group_of("s", SOLVER, [sample("s", 0, 1.0, answer="7"), sample("s", 1, 0.0)])
    verdicts = group_of("v", VERIFIER, [sample("v", 0, 1.0, NO)], 0.0)
    expected = {"solver_accuracy": 0.5, "missing_answer_frac": 0.5}
    assert answer_metrics([solved, verdicts], (SOLVER,)) == expected


def test_no_groups_no_metrics():
    assert training_metrics([], MarsRL) == {}


def test_text_figures_of_right_and_wrong_responses_are_told_apart():
    """The right response says one word of reflection, the wrong one three and repeats itself."""
    right = sample("s", 0, 1.0, tokens=30, text="wait")
    wrong = trajectory("s#1", reward=0.0, ids=[7] * 30, text="wait, hmm, however")
    found = training_metrics([group_of("s", SOLVER, [right, wrong])], MarsRL)
    assert found["role/solver/reflection_words"] == 2.0
    assert found["role/solver/reflection_words_right"] == 1.0
    assert found["role/solver/reflection_words_wrong"] == 3.0
    assert found["role/solver/repetition_frac_right"] == 0.0
    assert found["role/solver/repetition_frac_wrong"] == pytest.approx(10 / 11)
    assert found["role/solver/distinct_4_frac_right"] == 1.0
    assert found["role/solver/distinct_4_frac_wrong"] == pytest.approx(1 / 27)


def test_a_trajectory_counts_for_each_of_its_roles_with_that_roles_sequences():
    two = sample("s", 0, 1.0, tokens=10)
    two.sequences.append(
        Sequence("other", [1], [5, 6, 7], [0.0] * 3, [1, 0, 1], reward=0.25, figures={"distinct": 0.5})
    )
    found = training_metrics([group_of("s", SOLVER, [two, sample("s", 1, 0.0, tokens=4)])], MarsRL)
    assert (found["role/solver/response_length_max"], found["role/solver/samples"]) == (10, 2)
    assert (found["role/other/response_length_max"], found["role/other/samples"]) == (2, 1)
    assert (found["role/solver/reward_mean"], found["role/other/reward_mean"]) == (0.5, 0.25)
    assert found["stage/solver/response_length_max"] == 12
    assert found["role/other/distinct_4_frac"] == 0.5


def test_a_reward_that_is_still_to_come_is_in_no_figure_of_rewards():
    open_, done = sample("s", 0, None, tokens=10), sample("s", 1, 1.0, tokens=30, answer="7")
    found = training_metrics([group_of("s", SOLVER, [open_, done])], MarsRL)
    assert found["role/solver/samples"] == 2
    assert found["role/solver/reward_mean"] == 1.0
    assert found["role/solver/missing_answer_frac"] == 0.0
    assert found["role/solver/zero_std_groups"] == 0
    assert found["role/solver/response_length_mean"] == 20
    assert "role/solver/response_length_mean_wrong" not in found
    assert "role/solver/reward_mean" not in training_metrics([group_of("s", SOLVER, [open_])], MarsRL)


def test_figures_that_nobody_computed_are_absent():
    one = sample("s", 0, 1.0, tokens=30)
    one.figures = {}
    found = training_metrics([group_of("s", SOLVER, [one])], MarsRL)
    assert not [name for name in found if "share" in name and ("repetition" in name or "distinct" in name)]
