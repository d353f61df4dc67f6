"""Plans that give the answer away, and plans that only look like it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.claims import claims, spelled, values
from marsrl_verl.algos.rema.leak import LOOK_FOR_VALUES, PlanReward
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import ScoreRequest

QUESTION = "A box has 12 red and 5 blue balls, and x = 3. How many balls are there?"
VALUES = {"inputs": {LOOK_FOR_VALUES: True}}
EXACT = PlanReward(grader="marsrl_verl.rewards.exact:ExactAnswerReward")


def leak(plan: str, truth: str, question: str = QUESTION, reward: PlanReward = EXACT, **more) -> dict:
    problem = Problem("p", question, truth)
    request = ScoreRequest("g#0", "meta_thinking", "plan", problem, plan, plan, FinishReason.STOP, **more)
    found = reward.score(request)
    assert found.value == 0.0, "its solutions say what a plan is worth"
    return dict(found.info)


@pytest.mark.parametrize(
    "plan",
    [
        r"Add them; you get \boxed{17}.",
        "Add both numbers. The answer is 17.",
        "The total number of balls will be 17, so write that.",
        "First 12 + 5 = 17, then box it.",
        "12 + 5 = 10 + 7 = 17",
        "The answer is $\\frac{34}{2}$.",
        "**Answer:** 17.0",
        "Compute $12+5=17$ and check it.",
        "Final answer = 17",
        "The sum equals 17",
        r"The answer is \fbox{ 17 }",
        "The result is 17.\nNow explain why.",
        "17 is the answer.",
        "So $\\frac{34}{2}$ should be your final answer.",
        "You will get 17.",
        "We obtain 17, and that is it.",
        "This equals 17",
        "Add them: it comes out as 17.",
        "It works out to 17; box it.",
        "12 + 5 simplifies to 17.",
        r"Note that $12 + 5 \approx 17$.",
        "12 + 5 → 17",
        "12 + 5 => 17",
        r"$12 + 5 \Longrightarrow 17$",
        "Add the balls, so: 17.",
        "Add the balls, therefore 17.",
        "The probability that x > 0.5 is 17.",
        "You get the idea. You get 17.",
        "The answer is hidden. The answer is 17.",
        "You should end up with 17.",
        "That leaves 17.",
        "That leaves you with 17.",
        "x should be 17",
        "I think it's 17.",
        "I think it is 17, but check.",
        "Output 17",
        "Write 17 in a box.",
        "Put $17$ in \\boxed{}.",
        "Report 17 as the final answer.",
        "Verify that your result matches 17.",
        "Make sure you arrive at 17",
        "You must reach exactly 17!",
        "Conclude that 17.",
        "You will end up with 17 balls.",
        "This leaves us with 17 red balls.",
        "The answer is seventeen.",
        "You get seventeen balls.",
        "The two numbers add up to 17.",
    ],
)
def test_a_plan_that_claims_the_answer_leaks_it(plan):
    assert leak(plan, "17")["leak"], plan


@pytest.mark.parametrize(
    "plan",
    [
        "Add the red balls to the blue balls.",
        "Add 12 and 5, and put the sum in \\boxed{}.",
        "Write the number of balls in a box such as \\boxed{3}.",
        "There are 17 ways to be confused; do not be.",
        "Note that 12 - 5 = 7. Think about the sum instead.",
        "What is the answer? Count all of them.",
        "The answer must be larger than 12.",
        "To get 17 balls more you would have to buy some.",
        "So use 17 as a bound, and make a list.",
        "Check whether you get 17 or 18.",
        "If x <= 17 then go on.",
        "Make sure you use all 17 numbers of the list.",
        "That leaves the balls, 17 or not.",
        "Box what you find.",
        "It's best to list 17 cases first.",
        "Verify that your result matches the question.",
        "",
    ],
)
def test_a_plan_that_claims_something_else_does_not(plan):
    assert not leak(plan, "17")["leak"], plan


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


def test_a_hostile_plan_is_read_in_time():
    for plan in (
        r"\boxed{" * 20_000,
        "= " * 20_000,
        "the answer is " * 20_000,
        "answer" + " " * 50_000 + "is 4",
        "so " * 20_000 + "17",
        "you get 1 " * 20_000,
        "1 is the " * 20_000,
        "1" * 50_000,
        "1 " * 20_000,
        "$" * 20_000,
        "twenty " * 5_000,
        "17 apples " * 5_000,
    ):
        leak(plan, "17", **VALUES)


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


PLAINEST = [
    "17",
    "17.",
    "**17**",
    "It is 17",
    "I think 17 is right",
    "You should get 17 hens",
    "You should get 17",
    "We should end with 17",
    "Seventeen",
    "(17)",
    "Answer: 17",
    "17 hens",
    "There are 17 hens.",
    "There will be 17 hens left.",
    "She has 17 hens.",
    "She has 17 hens now.",
    "He now has 17.",
    "I believe it's 17.",
    "My guess: 17",
    "17 seems right.",
    "17 is correct.",
    "17 is what you want.",
    "That makes 17.",
    "Expect 17.",
    "You will find 17.",
    "Check that you get 17.",
    "Verify that it is 17.",
    "Make sure you get 17.",
    "It has to be 17.",
    "Think about it and say 17.",
    "Say 17.",
    "Tell them 17.",
    "The correct choice is 17.",
    "Your result: 17",
    "Final: 17",
    "= 17",
    "Ans 17",
    "ans = 17",
    "17 (the answer)",
    "The hens number 17.",
    "In total 17.",
    "Altogether 17 hens.",
    "Result 17",
]


@pytest.mark.parametrize("plan", PLAINEST)
def test_the_plainest_leaks_are_found(plan):
    assert leak(plan, "17")["leak"]


@pytest.mark.parametrize(
    "plan",
    [
        "Add 12 and 17, then subtract 5.",
        "First read the 17 lines of the question.",
        "There are 17 hens at first; then subtract.",
        "Multiply 17 by 3.",
        "Start from 17 and take 4 away.",
        "Step 17: check.",
        "She has 17 hens and sells 4. Work out what is left.",
        "Use x for the 17 boxes.",
        "17 boxes hold 5 each, so multiply.",
        "Subtract 4 from 17 to get the rest.",
    ],
)
def test_a_number_that_is_only_used_is_no_claim(plan):
    assert not leak(plan, "17")["leak"]


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


@pytest.mark.parametrize("unit", ["1", "0", "1,", "1,111,", "step 1 ", "dividing by ", "1 a ", "√1", "$20 "])
def test_hostile_plans_take_no_time(unit):
    """Time grows with the length alone."""
    plan = (unit * 20_000)[:20_000]
    began = time.process_time()
    values(plan)
    assert time.process_time() - began < 1.0
