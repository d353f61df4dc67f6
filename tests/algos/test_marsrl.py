from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.algos.marsrl.method import MarsRL, PromptLimits
from marsrl_verl.algos.prompts import MathPrompts
from marsrl_verl.core.types import FinishReason, Group, Outcome, Problem, Sample, StageInput, Verdict

PROBLEM = Problem("p", "1 + 1 = ?", "2")
LIMITS = {"solver": 10_000, "verifier": 10_000, "corrector": 10_000}


def build(seed: int = 1, prompt_tokens=None, limits=LIMITS, **settings) -> MarsRL:
    longest = PromptLimits(prompt_tokens, limits) if prompt_tokens else None
    return MarsRL(MathPrompts(), seed=seed, limits=longest, **{"group_size": 4, **settings})


def answered(item: StageInput, outcomes: list[Outcome], texts=None, reasons=None) -> Group:
    samples = []
    for k, outcome in enumerate(outcomes):
        text = texts[k] if texts else f"text {item.group_id} {k}"
        reason = reasons[k] if reasons else FinishReason.STOP
        sample_id = f"{item.group_id}#{k}"
        samples.append(Sample(sample_id, item.group_id, [1], [1], [0.0], reason, text, text, outcome=outcome))
    return Group(item, samples)


def solutions(algorithm: MarsRL, rewards: list[float], **options) -> Group:
    [item] = algorithm.first_inputs(PROBLEM, 0)
    return answered(item, [Outcome(reward) for reward in rewards], **options)


def flagged(reward: float, report: str | None = "a gap") -> Outcome:
    return Outcome(reward, verdict=Verdict.WRONG, report=report)


PASSED = Outcome(0.0, verdict=Verdict.CORRECT, report="fine")
INVALID = Outcome(0.0, verdict=Verdict.INVALID, report="hm")


def test_the_chain_of_the_paper():
    algorithm = build()
    assert [(stage.name, stage.role) for stage in algorithm.stages] == [
        ("solver", "solver"),
        ("verifier_1", "verifier"),
        ("corrector_1", "corrector"),
        ("verifier_2", "verifier"),
        ("corrector_2", "corrector"),
    ]


def test_a_solver_input_asks_the_problem():
    [item] = build().first_inputs(PROBLEM, step=7)
    assert item == StageInput(
        group_id="p/solver/0",
        problem=PROBLEM,
        stage="solver",
        stage_index=0,
        role="solver",
        messages=({"role": "user", "content": "1 + 1 = ?"},),
        n=4,
        created_step=7,
    )


def test_verifiers_judge_chosen_solutions_with_their_rewards():
    algorithm = build()
    inputs = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [1.0, 0.0, 1.0, 0.0])], step=3)
    assert [item.group_id for item in inputs] == ["p/verifier_1/0", "p/verifier_1/1"]
    assert {item.parent_id for item in inputs} == {"p/solver/0#1", "p/solver/0#3"}
    for item in inputs:
        assert item.solution == f"text p/solver/0 {item.parent_id[-1]}"
        assert item.solution in item.messages[1]["content"]
        assert (item.solution_reward, item.stage_index, item.role, item.created_step) == (
            0.0,
            1,
            "verifier",
            3,
        )


def test_correctors_get_the_judged_solution_and_the_report():
    algorithm = build(inputs_per_stage=1)
    [judged] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0, 1.0, 1.0, 1.0])], 0)
    verdicts = answered(judged, [PASSED, flagged(1.0, "step 2 is false"), INVALID, PASSED])
    [item] = algorithm.next_inputs(PROBLEM, 1, [verdicts], 0)
    assert item.stage == "corrector_1"
    assert item.parent_id == "p/verifier_1/0#1"
    assert item.solution == judged.solution
    assert item.solution_reward == 0.0
    assert [message["role"] for message in item.messages] == ["user", "assistant", "user"]
    assert item.messages[0]["content"] == "1 + 1 = ?"
    assert item.messages[1]["content"] == judged.solution
    assert item.messages[2]["content"].endswith("step 2 is false")


def test_a_verifier_whose_scorer_says_nothing_of_a_report_is_shown_whole():
    algorithm = build(inputs_per_stage=1)
    [judged] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    verdicts = answered(judged, [PASSED, PASSED, PASSED, flagged(1.0, None)], texts=["", "", "", "Wrong!"])
    [item] = algorithm.next_inputs(PROBLEM, 1, [verdicts], 0)
    assert item.messages[2]["content"].endswith("Wrong!")


def test_a_report_that_the_released_rule_lost_stays_lost():
    algorithm = build(inputs_per_stage=1)
    [judged] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    verdicts = answered(judged, [PASSED, PASSED, PASSED, flagged(1.0, "")], texts=["", "", "", "Wrong!"])
    [item] = algorithm.next_inputs(PROBLEM, 1, [verdicts], 0)
    assert "Wrong!" not in item.messages[2]["content"]


def test_the_second_verifier_judges_the_corrector():
    algorithm = build(inputs_per_stage=1)
    [first] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    [second] = algorithm.next_inputs(PROBLEM, 1, [answered(first, [flagged(1.0)] * 4)], 0)
    corrections = answered(second, [Outcome(1.0)] * 4)
    [third] = algorithm.next_inputs(PROBLEM, 2, [corrections], 0)
    assert (third.stage, third.solution_reward) == ("verifier_2", 1.0)
    assert third.solution.startswith("text p/corrector_1/0")


# --- eligibility -----------------------------------------------------------------------------------


def test_cut_off_and_empty_solutions_are_not_passed_on():
    algorithm = build()
    group = solutions(
        algorithm,
        [0.0, 0.0, 1.0, 0.0],
        texts=["cut off", "", "good", "aborted"],
        reasons=[FinishReason.LENGTH, FinishReason.STOP, FinishReason.STOP, FinishReason.ABORTED],
    )
    [item] = algorithm.next_inputs(PROBLEM, 0, [group], 0)
    assert item.solution == "good"


def test_a_solution_that_could_not_be_graded_is_not_judged():
    algorithm = build()
    group = solutions(algorithm, [0, 0, 1, 1])
    for sample in group.samples[:2]:
        sample.outcome = Outcome(0.0, error="the grader took longer than 10 s", graded=False)
    inputs = algorithm.next_inputs(group.input.problem, 0, [group], 1)
    assert {item.parent_id for item in inputs} == {sample.sample_id for sample in group.samples[2:]}


def test_a_garbled_answer_is_judged_like_any_wrong_one():
    algorithm = build()
    group = solutions(algorithm, [0, 1, 1, 1])
    group.samples[0].outcome = Outcome(0.0, error="parsing failed")
    inputs = algorithm.next_inputs(group.input.problem, 0, [group], 1)
    assert group.samples[0].sample_id in {item.parent_id for item in inputs}


def test_only_readable_wrong_verdicts_of_finished_answers_lead_to_a_corrector():
    algorithm = build()
    [judged, _] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    outcomes = [PASSED, INVALID, flagged(1.0), Outcome(0.0, error="grader failed")]
    reasons = [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP]
    assert algorithm.next_inputs(PROBLEM, 1, [answered(judged, outcomes, reasons=reasons)], 0) == []


def test_a_prompt_that_is_too_long_gives_way_to_the_next_candidate():
    def tokens(messages) -> int:
        return 10_001 if "long" in messages[-1]["content"] else 10_000

    algorithm = build(prompt_tokens=tokens, inputs_per_stage=2)
    group = solutions(algorithm, [0.0, 0.0, 0.0, 1.0], texts=["long a", "long b", "c", "d"])
    inputs = algorithm.next_inputs(PROBLEM, 0, [group], 0)
    assert [item.solution for item in inputs] == ["c", "d"]


def test_only_the_prompts_of_chosen_inputs_are_measured():
    measured = []

    def tokens(messages) -> int:
        measured.append(messages)
        return 1

    algorithm = build(prompt_tokens=tokens, inputs_per_stage=2, group_size=8)
    group = solutions(algorithm, [0.0] * 8)
    measured.clear()
    assert len(algorithm.next_inputs(PROBLEM, 0, [group], 0)) == 2
    assert len(measured) == 2


def test_a_problem_that_is_too_long_for_the_solver_has_no_input():
    algorithm = build(prompt_tokens=lambda messages: 11, limits={**LIMITS, "solver": 10})
    assert algorithm.first_inputs(PROBLEM, 0) == []


# --- choice ----------------------------------------------------------------------------------------


def verifier_classes(rewards: list[float], **settings) -> list[float]:
    algorithm = build(**settings)
    inputs = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, rewards)], 0)
    return sorted(item.solution_reward for item in inputs)


def test_what_verifiers_are_given():
    assert verifier_classes([1, 1, 0, 0], selection="adaptive") == [0, 0]
    assert verifier_classes([1, 1, 1, 0], selection="adaptive") == [0, 1]
    assert verifier_classes([1, 1, 1, 1], selection="adaptive") == [1, 1]
    assert verifier_classes([1, 1, 0, 0], selection="balanced") == [0, 1]
    assert verifier_classes([0, 0, 0, 0], selection="balanced") == [0, 0]
    means = [sum(verifier_classes([1, 1, 0, 0], selection="random", seed=seed)) for seed in range(300)]
    assert 0.85 < sum(means) / len(means) < 1.15


def corrector_classes(rewards: list[float], **settings) -> list[float]:
    algorithm = build(**settings)
    [judged, _] = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    verdicts = answered(judged, [flagged(reward) for reward in rewards])
    by_id = {sample.sample_id: sample.reward for sample in verdicts.samples}
    inputs = algorithm.next_inputs(PROBLEM, 1, [verdicts], 0)
    return sorted(by_id[item.parent_id] for item in inputs)


def test_what_correctors_are_given():
    assert corrector_classes([1, 1, 0, 0], selection="adaptive") == [1, 1]
    assert corrector_classes([1, 0, 0, 0], selection="adaptive") == [0, 1]
    assert corrector_classes([0, 0, 0, 0], selection="adaptive") == [0, 0]
    assert corrector_classes([1, 1, 0, 0], selection="balanced") == [0, 1]


def test_random_corrector_inputs_are_uniform_over_both_verifier_groups():
    """Eight false alarms about one solution, one error found in the other: both inputs are false alarms in
    C(8, 2) / C(9, 2) of the seeds."""
    shares = []
    for seed in range(600):
        algorithm = build(seed, selection="random", group_size=8)
        first, second = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [1, 0, *[0] * 6])], 1)
        groups = [
            answered(first, [flagged(0.0)] * 8),
            answered(second, [flagged(1.0)] + [PASSED] * 7),
        ]
        inputs = algorithm.next_inputs(PROBLEM, 1, groups, 2)
        shares.append(all(item.parent_id.startswith(first.group_id) for item in inputs))
    assert sum(shares) / len(shares) == pytest.approx(28 / 36, abs=0.06)  # standard error 0.017


def test_inputs_are_counted_per_problem_or_per_group():
    for scope, expected in (("problem", 2), ("group", 4)):
        algorithm = build(select_scope=scope)
        judged = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
        groups = [answered(item, [flagged(1.0)] * 4) for item in judged]
        inputs = algorithm.next_inputs(PROBLEM, 1, groups, 0)
        assert len(inputs) == expected
        assert [item.group_id for item in inputs] == [f"p/corrector_1/{slot}" for slot in range(expected)]
        # Both Verifier groups contribute in either scope.
        assert {item.parent_id.split("#")[0] for item in inputs} == {"p/verifier_1/0", "p/verifier_1/1"}


def answers_shown(answers: list[str | None], **settings) -> list[str]:
    """The texts that Verifiers get of incorrect solutions with these answers."""
    algorithm = build(**settings)
    [item] = algorithm.first_inputs(PROBLEM, 0)
    group = answered(item, [Outcome(0.0, answer=answer) for answer in answers])
    return [one.solution for one in algorithm.next_inputs(PROBLEM, 0, [group], 0)]


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
    algorithm = build(distinct_answers=True)
    inputs = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, [0.0] * 4)], 0)
    assert len(inputs) == 1  # none of the four has a readable answer
    assert len(algorithm.next_inputs(PROBLEM, 1, [answered(inputs[0], [flagged(1.0)] * 4)], 0)) == 2


def test_distinct_answers_are_counted_over_the_groups_of_a_stage():
    for scope, expected in (("problem", 1), ("group", 2)):
        algorithm = build(distinct_answers=True, select_scope=scope)
        judged = algorithm.next_inputs(
            PROBLEM,
            0,
            [answered(algorithm.first_inputs(PROBLEM, 0)[0], [Outcome(0.0, answer=a) for a in "78"])],
            0,
        )
        flags = [answered(item, [flagged(1.0)]) for item in judged]
        repaired = [
            answered(item, [Outcome(1.0, answer="2")] * 2)
            for item in algorithm.next_inputs(PROBLEM, 1, flags, 0)
        ]
        assert len(repaired) == 2
        assert len(algorithm.next_inputs(PROBLEM, 2, repaired, 0)) == expected


def test_choices_differ_between_seeds_and_problems_and_not_between_steps():
    def parents(seed: int, name: str, step: int) -> tuple:
        algorithm = build(seed=seed, group_size=8)
        problem = replace(PROBLEM, problem_id=name)
        [item] = algorithm.first_inputs(problem, step)
        group = answered(item, [Outcome(0.0)] * 8)
        inputs = algorithm.next_inputs(problem, 0, [group], step)
        return tuple(item.parent_id.split("#")[1] for item in inputs)

    assert parents(1, "p", 0) == parents(1, "p", 9)
    assert len({parents(seed, "p", 0) for seed in range(20)}) > 5
    assert len({parents(1, f"p{i}", 0) for i in range(20)}) > 5


rewards_lists = st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4)


@given(
    rewards_lists, st.sampled_from(["random", "balanced", "adaptive"]), st.integers(1, 5), st.integers(0, 9)
)
@settings(deadline=None)
def test_every_input_has_its_own_parent(rewards, selection, k, seed):
    algorithm = build(seed=seed, selection=selection, inputs_per_stage=k)
    inputs = algorithm.next_inputs(PROBLEM, 0, [solutions(algorithm, rewards)], 0)
    assert len(inputs) == min(k, 4) == len({item.parent_id for item in inputs})
    for item in inputs:
        assert item.solution_reward == rewards[int(item.parent_id[-1])]


# --- training --------------------------------------------------------------------------------------


def test_equal_rewards_and_untrained_roles_are_not_trained():
    algorithm = build()
    assert algorithm.trains(solutions(algorithm, [1, 0, 0, 0]))
    assert not algorithm.trains(solutions(algorithm, [1, 1, 1, 1]))
    assert not algorithm.trains(solutions(algorithm, [0, 0, 0, 0]))
    followers = build(train_roles=["verifier", "corrector"])
    assert not followers.trains(solutions(followers, [1, 0, 0, 0]))
    assert len(followers.next_inputs(PROBLEM, 0, [solutions(followers, [1, 0, 0, 0])], 0)) == 2


@pytest.mark.parametrize(
    ("train_roles", "last"),
    [(["solver"], "solver"), (["verifier"], "verifier_2"), (["solver", "corrector"], "corrector_2")],
)
def test_the_chain_ends_at_the_last_trained_role(train_roles, last):
    assert build(train_roles=train_roles).stages[-1].name == last


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train_roles": ["judge"]}, r"algo.train_roles names \['judge'\], known roles: solver, verifier"),
        ({"train_roles": []}, "algo.train_roles is empty"),
        ({"correction_rounds": 0}, r"algo.train_roles has \['corrector', 'verifier'\]"),
    ],
)
def test_roles_without_a_stage_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        build(**setting)
