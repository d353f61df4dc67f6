"""Plans that give the answer away, and plans that only look like it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.claims import claims, spelled, values
from marsrl_verl.algos.rema.leak import LOOK_FOR_VALUES, PlanReward
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import ScoreRequest

pytestmark = pytest.mark.slow

QUESTION = "A box has 12 red and 5 blue balls, and x = 3. How many balls are there?"
VALUES = {"inputs": {LOOK_FOR_VALUES: True}}
PLANS = yaml.safe_load(Path(__file__).with_name("leaks.yaml").read_text(encoding="utf-8"))
EXACT = PlanReward(grader="marsrl_verl.rewards.exact:ExactAnswerReward")


def leak(plan: str, truth: str, question: str = QUESTION, reward: PlanReward = EXACT, **more) -> dict:
    problem = Problem("p", question, truth)
    request = ScoreRequest("g#0", "meta_thinking", "plan", problem, plan, plan, FinishReason.STOP, **more)
    found = reward.score(request)
    assert found.value == 0.0, "its solutions say what a plan is worth"
    return dict(found.info)


@pytest.mark.parametrize("plan", PLANS["leaks"])
def test_a_plan_that_claims_the_answer_leaks_it(plan):
    assert leak(plan, "17")["leak"]


@pytest.mark.parametrize("plan", PLANS["no_leaks"])
def test_a_plan_that_claims_something_else_or_only_uses_the_number_does_not(plan):
    assert not leak(plan, "17")["leak"]


def test_what_the_question_states_is_no_secret():
    assert not leak("Use x = 3 and go on from there.", "3")["leak"]
    assert leak("So the answer is 3.", "3", question="What is 1 + 2?")["leak"]


def test_the_claim_is_told():
    assert leak("The answer is 17.", "17") == {"leak": True, "leaked": "17"}


def test_of_an_action_its_output_counts():
    text = '{"action": "DECOMPOSE", "output": "The answer is 17."}'
    assert leak(text, "17", inputs={"form": "json"})["leak"]
    assert not leak('{"action": "EMPTY", "output": ""}', "17", inputs={"form": "json"})["leak"]


def test_several_references_and_none():
    assert leak("The answer is 17.", '["16", "17"]')["leak"]
    assert not leak("The answer is 17.", "")["leak"]


def test_it_can_be_left_out():
    reward = PlanReward(look=False)
    assert leak("The answer is A.", "A", reward=reward) == {}
    assert reward.longest_s(3) is None
    reward.close()


def test_equivalence_beyond_wording_is_the_grader_s():
    reward = PlanReward()
    try:
        assert leak(r"The answer is $2\sqrt{2}$.", r"\sqrt{8}", reward=reward)["leak"]
        assert not leak(r"The answer is $3\sqrt{2}$.", r"\sqrt{8}", reward=reward)["leak"]
        assert reward.longest_s(2) > 0
    finally:
        reward.close()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"a \boxed{\frac{1}{2}} b", [r"\frac{1}{2}"]),
        ("a = b = c", ["b", "c"]),
        ("x == y, a != b, c >= d", []),
        (r"\boxed{1 and no end", []),
        ("no claim at all", []),
        ("Make sure you arrive at 17", ["17"]),
        ("You end up with twenty-five apples.", ["twenty-five apples", "25"]),
        ("It leaves 3 red balls, so x should be 1/2.", ["3 red balls", "3", "1/2"]),
        ("You get the sum of 3 and 4", []),
    ],
)
def test_claims(text, found):
    assert claims(text) == found


@given(st.text(alphabet="=\\boxed{} answer is12.\n$", max_size=300))
def test_any_text_has_few_claims_and_no_accident(text):
    assert len(claims(text)) <= 24
    assert isinstance(leak(text, "12")["leak"], bool)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("seventeen", 17),
        ("twenty", 20),
        ("ninety-nine", 99),
        ("one hundred", 100),
        ("two hundred and five", 205),
        ("nine hundred ninety-nine", 999),
        ("zero", 0),
        ("five six", None),
        ("twenty eleven", None),
        ("hundred", None),
        ("and five", None),
        ("apple", None),
    ],
)
def test_numbers_in_words(words, number):
    assert spelled(words) == number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Add 12 and 5; 17 ways are open.", ["12", "5", "17"]),
        ("1. Count.\n2) Add.\nStep 3: check 4.5.", ["4.5"]),
        (r"Use $2\sqrt{2}$ or \(x+1\) or \frac{1}{2}", [r"2\sqrt{2}", "x+1", r"\frac{1}{2}"]),
        ("There are two bags with thirteen balls in one of them.", ["13"]),
        ("1,234 and -7 and 50% of 3/4", ["1,234", "-7", "50%", "50", "1/2", "3/4"]),
        ("x2 and v1.2.3", []),
        ("Use n(n-3)/2, 1/2 · base and 2x, with 60 minutes in an hour.", []),
        ("That makes eight, minus four, two thirds or a dozen", ["8", "-4", "2/3", "12", "eight"]),
        ("(1) Add. (2) Divide. Part 3 is the check.", []),
        ("It costs $20 less than $40.", ["20", "40"]),
        ("nothing", []),
    ],
)
def test_values(text, found):
    assert values(text) == found


@pytest.mark.parametrize(
    ("plan", "truth", "found"),
    [
        ("There are 17 ways to be confused; do not be.", "17", True),
        ("So use 17 as a bound, and make a list.", "17", True),
        ("Think of seventeen balls in a row.", "17", True),
        ("Note that 34/2 is whole.", "17", True),
        ("You get 17.", "17", True),
        ("Add 12 and 5.", "17", False),
        ("Add 12 and 5.", "12", False),  # the question holds it
        ("1. Count.\n2. Add.", "2", False),
        ("There are two steps.", "2", False),
        ("Look at $2\\sqrt{2}$.", "2\\sqrt{2}", True),
    ],
)
def test_the_strict_rule_finds_every_value_that_the_question_does_not_hold(plan, truth, found):
    assert leak(plan, truth, **VALUES)["value_leak"] is found


def test_values_are_looked_for_where_that_is_asked():
    assert "value_leak" not in leak("Look at 17 ways of it.", "17")
    told = leak("Look at 17 ways of it.", "17", **VALUES)
    assert told == {"leak": False, "value_leak": True, "leaked": "17"}


@given(
    n=st.integers(18, 998),
    lead=st.sampled_from(["Note", "There may be", "Consider all", "It's", "Output", "You end up with"]),
    end=st.sampled_from(["", ".", " of them.", " balls", ", then stop"]),
)
def test_a_number_that_the_question_does_not_hold_never_passes_the_strict_rule(n, lead, end):
    for plan in (f"{lead} {n}{end}", f"{lead} ${n}${end}", f"{lead} {2 * n}/2{end}", f"{lead} {n}.0{end}"):
        assert leak(plan, str(n), **VALUES)["value_leak"], plan
    assert not leak(f"{lead} {n}{end}", str(n + 1), **VALUES)["value_leak"]


@given(st.text(alphabet="=\\boxed{}$ it's17.\n/,-twenty", max_size=200))
def test_what_claims_the_answer_holds_it(text):
    found = leak(text, "17", **VALUES)
    assert found["value_leak"] >= found["leak"]


def test_plans_written_by_somebody_who_did_not_know_the_rules():
    """Two catalogues of leaks and of plans that look like them; the rules were mended on them afterwards."""
    path = Path(__file__).with_name("unseen_leaks.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = {True: [0, 0], False: [0, 0]}
    reward = PlanReward()
    for row in rows:
        info = leak(row["plan"], row["answer"], row["question"], reward=reward, **VALUES)
        for rule, found in enumerate((info["leak"], info["value_leak"])):
            told[row["leak"]][rule] += found
    reward.close()
    assert sum(row["leak"] for row in rows) == 422 and len(rows) == 834
    equivalence, value = told[True]
    assert value >= 380 and equivalence >= 235
    equivalence, value = told[False]
    assert value <= 7 and equivalence <= 5


HOSTILE = (
    r"\boxed{", "= ", "the answer is ", " ", "so ", "you get 1 ", "1 is the ", "1", "0", "1 ", "$", "twenty ",
    "17 apples ", "1,", "1,111,", "step 1 ", "dividing by ", "1 a ", "√1", "$20 ",
)  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_plans_take_no_time(unit):
    """Time grows with the length alone."""
    plan = "answer" + (unit * 20_000)[:20_000] + "is 4"
    began = time.process_time()
    leak(plan, "17", **VALUES)
    assert time.process_time() - began < 2.0
