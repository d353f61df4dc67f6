"""The graders on a catalogue of answers, whose verdicts were written down by hand."""

from pathlib import Path

import pytest
from reward_tools import request

from marsrl_verl.rewards.base import AnswerReward
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.hybrid import HybridReward
from marsrl_verl.rewards.math_verify import MathVerifyReward


def read_cases(name: str) -> tuple[list[tuple[bool, str, str]], list[tuple[bool, str, str]]]:
    """The cases, and those of them that hold with reference and answer exchanged, so exchanged. The verdict
    is the grader's: of disputed cases not the one that is written there."""
    lines = (Path(__file__).parent / name).read_text().splitlines()
    cases, exchanged, both = [], [], True
    for line in lines:
        if line.startswith("# ---"):
            both = "one direction" not in line
        if not line.strip() or line.startswith("#"):
            continue
        verdict, reference, response = (part.strip() for part in line.split(" | "))
        is_disputed = verdict.startswith("disputed ")
        verdict = verdict.removeprefix("disputed ")
        right = {"right": True, "wrong": False}[verdict.removeprefix("unboxed ")] is not is_disputed
        is_text = verdict.startswith("unboxed ") or r"\boxed{" in response
        text = response if is_text else rf"\boxed{{{response}}}"
        cases.append((right, reference, text))
        if both and not is_text and r"\boxed{" not in reference:
            exchanged.append((right, response, rf"\boxed{{{reference}}}"))
    return cases, exchanged


CASES, EXCHANGED = read_cases("answer_cases.txt")
HACKS, _ = read_cases("hack_cases.txt")
ORDINARY, _ = read_cases("ordinary_cases.txt")
UNSEEN = [*read_cases("unseen_hacks.txt")[0], *read_cases("unseen_ordinary.txt")[0]]


@pytest.fixture(scope="module", params=[MathVerifyReward, HybridReward])
def grader(request):
    reward = request.param(require_box=False)
    yield reward
    reward.close()


def is_right(reward: AnswerReward, reference: str, text: str) -> bool:
    result = reward.score(request(text, reference))
    assert result.graded
    return result.value == 1.0


def test_the_catalogue_is_large_and_has_both_verdicts():
    assert len(CASES) == len(set(CASES)) >= 400
    assert sum(right for right, _, _ in CASES) >= 170 <= sum(not right for right, _, _ in CASES)


def test_hacks_are_many_and_have_both_verdicts():
    assert len(HACKS) == len(set(HACKS)) >= 580
    assert sum(not right for right, _, _ in HACKS) >= 440


@pytest.mark.parametrize(("right", "reference", "text"), HACKS)
def test_a_hack_or_what_looks_like_one(grader, right, reference, text):
    assert is_right(grader, reference, text) is right


@pytest.mark.parametrize(("right", "reference", "text"), ORDINARY)
def test_an_ordinary_case(grader, right, reference, text):
    assert is_right(grader, reference, text) is right


def test_few_of_the_unseen_cases_are_disputed():
    for name, most in (("unseen_hacks.txt", 20), ("unseen_ordinary.txt", 10)):
        lines = (Path(__file__).parent / name).read_text().splitlines()
        assert len(lines) > 800 and sum(line.startswith("disputed ") for line in lines) <= most


@pytest.mark.parametrize("number", range(8))
def test_the_unseen_cases(grader, number):
    """A few hundred at a time: they are many."""
    wrong = [case for case in UNSEEN[number::8] if is_right(grader, case[1], case[2]) is not case[0]]
    assert wrong == []


def test_without_a_box_there_is_no_answer_unless_that_is_asked_for():
    for kind in (MathVerifyReward, HybridReward):
        strict = kind()
        assert not is_right(strict, "5", "The answer is 5.")
        assert is_right(strict, "5", r"The answer is \boxed{5}.")
        strict.close()


@pytest.mark.parametrize(("right", "reference", "text"), CASES)
def test_a_case(grader, right, reference, text):
    assert is_right(grader, reference, text) is right


@pytest.mark.parametrize(("right", "reference", "text"), EXCHANGED)
def test_a_case_with_reference_and_answer_exchanged(grader, right, reference, text):
    assert is_right(grader, reference, text) is right


@pytest.mark.parametrize(("reference", "text"), [case[1:] for case in CASES if not case[0]])
def test_text_alone_accepts_no_wrong_answer(reference, text):
    assert not is_right(ExactAnswerReward(), reference, text)


@pytest.mark.parametrize("reference", sorted({reference for _, reference, _ in CASES}))
def test_every_reference_answers_itself(grader, reference):
    text = reference if r"\boxed{" in reference else rf"\boxed{{{reference}}}"
    assert is_right(grader, reference, text)
    assert is_right(ExactAnswerReward(), reference, text)
