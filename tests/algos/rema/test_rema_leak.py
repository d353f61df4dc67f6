"""Plans that give the answer away, and plans that only look like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.leak import PlanReward, claims
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import ScoreRequest

QUESTION = "A box has 12 red and 5 blue balls, and x = 3. How many balls are there?"
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
    ):
        leak(plan, "17")
