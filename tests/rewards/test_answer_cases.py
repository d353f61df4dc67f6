"""The graders on a catalogue of answers, whose verdicts were written down by hand."""

import functools
from pathlib import Path

import pytest
from reward_tools import request

from marsrl_verl.rewards.base import AnswerReward
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.hybrid import HybridReward
from marsrl_verl.rewards.math_verify import MathVerifyReward

pytestmark = pytest.mark.slow

Cases = list[tuple[bool, str, str]]


def lines_of(name: str) -> list[str]:
    return (Path(__file__).parent / name).read_text().splitlines()


def read_cases(name: str) -> tuple[Cases, Cases]:
    """The cases, and those of them that hold with reference and answer exchanged, so exchanged. The verdict
    is the grader's: of disputed cases not the one that is written there."""
    cases, exchanged, both = [], [], True
    for line in lines_of(name):
        if line.startswith("# ---"):
            both = "one direction" not in line
        if not line.strip() or line.startswith("#"):
            continue
        verdict, reference, response = (part.strip() for part in line.split(" | "))
        is_disputed = verdict.startswith("disputed ")
        verdict = verdict.removeprefix("disputed ")
        right = {"right": True, "wrong": False}[verdict.removeprefix("unboxed ")] is not is_disputed
        is_text = verdict.startswith("unboxed ") or r"\boxed{" in response
        cases.append((right, reference, response if is_text else rf"\boxed{{{response}}}"))
        if both and not is_text and r"\boxed{" not in reference:
            exchanged.append((right, response, rf"\boxed{{{reference}}}"))
    return cases, exchanged


CASES, EXCHANGED = read_cases("answer_cases.txt")
HACKS, ORDINARY = read_cases("hack_cases.txt")[0], read_cases("ordinary_cases.txt")[0]
UNSEEN = [*read_cases("unseen_hacks.txt")[0], *read_cases("unseen_ordinary.txt")[0]]


@pytest.fixture(scope="module")
def graders():
    """They ask the same processes, and about the same answer once: their verdicts differ before that."""
    made = [MathVerifyReward(require_box=False), HybridReward(require_box=False)]
    ask = made[0].pool.call
    asked_once = functools.cache(lambda text, references: ask(text, list(references)))
    for one in made:
        one.pool.call = lambda text, references: asked_once(text, tuple(references))
    yield made
    made[0].close()


def is_right(reward: AnswerReward, reference: str, text: str) -> bool:
    result = reward.score(request(text, reference))
    assert result.graded
    return result.value == 1.0


@pytest.mark.parametrize(("right", "reference", "text"), [*CASES, *EXCHANGED, *HACKS, *ORDINARY])
def test_a_case(graders, right, reference, text):
    assert [is_right(one, reference, text) for one in graders] == [right, right]


@pytest.mark.parametrize("number", range(8))
def test_the_unseen_cases(graders, number):
    """A few hundred at a time: they are many."""
    cases = [(right, case, one) for right, *case in UNSEEN[number::8] for one in graders]
    assert [(case, one) for right, case, one in cases if is_right(one, *case) is not right] == []


@pytest.mark.parametrize(("reference", "text"), [case[1:] for case in CASES if not case[0]])
def test_text_alone_accepts_no_wrong_answer(reference, text):
    assert not is_right(ExactAnswerReward(), reference, text)


@pytest.mark.parametrize("reference", sorted({reference for _, reference, _ in CASES}))
def test_every_reference_answers_itself(graders, reference):
    text = reference if r"\boxed{" in reference else rf"\boxed{{{reference}}}"
    assert all(is_right(one, reference, text) for one in (*graders, ExactAnswerReward()))


@pytest.mark.parametrize(
    ("cases", "right", "wrong"), [(CASES, 170, 170), (HACKS, 140, 440)], ids=["answers", "hacks"]
)
def test_a_catalogue_is_large_and_has_both_verdicts(cases, right, wrong):
    assert len(cases) == len(set(cases))
    assert sum(one for one, *_ in cases) >= right and sum(not one for one, *_ in cases) >= wrong


@pytest.mark.parametrize(("name", "most"), [("unseen_hacks.txt", 20), ("unseen_ordinary.txt", 10)])
def test_few_of_the_unseen_cases_are_disputed(name, most):
    lines = lines_of(name)
    assert len(lines) > 800 and sum(line.startswith("disputed ") for line in lines) <= most


@pytest.mark.parametrize("kind", [MathVerifyReward, HybridReward])
def test_without_a_box_there_is_no_answer_unless_that_is_asked_for(kind):
    strict = kind()
    assert not is_right(strict, "5", "The answer is 5.")
    assert is_right(strict, "5", r"The answer is \boxed{5}.")
    strict.close()
