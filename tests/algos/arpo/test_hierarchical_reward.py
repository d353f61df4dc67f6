"""What an agent's response is paid."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace

import pytest
from reward_tools import request

from marsrl_verl.algos.arpo.released_reward import ReleasedReward, released_f1
from marsrl_verl.algos.arpo.rewards import HierarchicalReward, form_problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.rewards.running import RewardRunner

EXACT = {"target": "marsrl_verl.rewards.exact:ExactAnswerReward"}
CALLED = "<think>look</think><search>x</search> <result>\n2\n</result><think>so</think>"
GOOD = f"{CALLED}<answer>It is \\boxed{{2}}.</answer>"


class Half(RoleReward):
    """A grade between right and wrong, later."""

    def score(self, request):
        async def later():
            return RewardResult(0.5, {"answer": "half"})

        return later()


def ran(*tools: str, outcome: str = "ok") -> list[dict]:
    return [{"tool": name, "outcome": outcome, "executed": True, "by": 0} for name in tools]


def own_text(text: str) -> str:
    """What the policy wrote of it."""
    return text.replace(" <result>\n2\n</result>", "")


def scored(text: str = GOOD, events=(), *, own: str | None = None, reward=None, truth="2", **more):
    score_request = request(text, truth, final_text=text.rpartition("</think>")[2], **more)
    own = own_text(text) if own is None else own
    reward = reward or HierarchicalReward(EXACT)
    found = reward.score(replace(score_request, events=list(events), sampled_text=own))
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found):
    return await found


WRONG_ANSWER = GOOD.replace("boxed{2}", "boxed{3}")
NO_BOX = GOOD.replace("\\boxed{2}", "2")
CLOSING_TAGS = GOOD.replace("look", "look </python> </search>")
OVER_LIMIT = {"tool": "python", "outcome": "refused", "over_limit": True}


@pytest.mark.parametrize(
    ("text", "calls", "value"),
    [
        pytest.param(GOOD, ran("search"), 1.0, id="right"),
        pytest.param(GOOD, ran("search", "python"), 1.1, id="right with both tools"),
        pytest.param(GOOD, ran("search", "search"), 1.0, id="one tool twice"),
        pytest.param(WRONG_ANSWER, ran("search", "python"), 0.0, id="wrong"),
        pytest.param(NO_BOX, ran("search", "python"), -1.0, id="no box"),
        pytest.param(CLOSING_TAGS, ran("search"), 1.0, id="closing tags earn nothing"),
        pytest.param(GOOD, [*ran("search"), *ran("python", outcome="error")], 1.0, id="a call that failed"),
        pytest.param(GOOD, [*ran("search"), OVER_LIMIT], 1.0, id="a call over the limit"),
        pytest.param(GOOD, [{"tool": "x", "outcome": "refused"}], -1.0, id="a refused call is ill-formed"),
        pytest.param(GOOD, [OVER_LIMIT], 1.0, id="but not one over the limit"),
    ],
)
def test_what_a_response_is_paid(text, calls, value):
    assert scored(text, calls).value == value


def test_the_bonus_can_name_its_tools():
    reward = HierarchicalReward(EXACT, bonus=0.3, bonus_tools=("search", "browser"))
    assert scored(GOOD, ran("search", "python"), reward=reward).value == 1.0
    assert scored(GOOD, ran("search", "browser"), reward=reward).value == 1.3


def test_a_grade_between_has_no_bonus_unless_it_counts_as_right():
    half = {"target": "test_hierarchical_reward:Half"}
    both = ran("search", "python")
    found = scored(GOOD, both, reward=HierarchicalReward(half))
    assert found.value == 0.5 and found.info["answer"] == "half"
    assert scored(GOOD, both, reward=HierarchicalReward(half, right=0.5)).value == 0.6


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("<answer>\\boxed{2}</answer>", "reasoning not enclosed"),
        ("<think>a<answer>\\boxed{2}</answer>", "reasoning not enclosed"),
        ("<think>a</think></think><answer>\\boxed{2}</answer>", "reasoning not enclosed"),
        ("</think>a<think><answer>\\boxed{2}</answer>", "reasoning not enclosed"),
        ("<think>a</think>\\boxed{2}", "not one answer"),
        ("<think>a</think><answer>\\boxed{1}</answer><answer>\\boxed{2}</answer>", "not one answer"),
        ("<think>a</think></answer><answer>\\boxed{2}", "not one answer"),
        ("<think>a</think><answer><think>b</think>\\boxed{2}</answer>", "after the answer began"),
        ("<think>a</think><answer>\\boxed{2}</answer> so there", "text after"),
        ("<think>a</think><answer>2</answer>", "no box"),
        ("<think>\\boxed{2}</think><answer>2</answer>", "no box"),
        ("<think>a</think><result>2</result><answer>\\boxed{2}</answer>", "a result of its own"),
    ],
)
def test_ill_formed(own, says):
    found = scored(GOOD, own=own)
    assert found.value == -1.0 and says in found.info["form"]


def test_a_call_that_is_not_closed_is_none():
    """Unlike the released form, which wants each opening tag closed and answered."""
    text = "<think>a</think><python>print(2)<answer>\\boxed{2}</answer>"
    assert scored(text).value == 1.0
    assert ReleasedReward().score(request(text, "2")).value == -1.0


def test_a_template_may_have_opened_the_reasoning():
    assert scored("a</think><answer>\\boxed{2}</answer>").value == 1.0


def test_a_results_text_is_not_the_policys():
    """A page with tags in it costs nothing: what tools write is not looked at."""
    page = GOOD.replace("\n2\n", "\n[answer] <answer> </think>\n")
    assert scored(page, own=own_text(GOOD)).value == 1.0


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.LIMIT])
def test_what_was_not_ended_is_ill_formed(reason):
    runner = RewardRunner(HierarchicalReward(EXACT))
    found = asyncio.run(runner.score(replace(request(GOOD, reason=reason), sampled_text=GOOD)))
    assert found.value == -1.0
    runner.close()


def test_a_chat_needs_a_box_alone():
    assert scored("I looked: \\boxed{2}", own="I looked: \\boxed{2}", protocol="chat").value == 1.0
    assert scored("I looked: 2", own="I looked: 2", protocol="chat").value == -1.0


@pytest.mark.parametrize(
    ("ability", "truth", "answer", "value"),
    [("math", "1/2", "\\frac{1}{2}", 1.0), ("math", "3", "-3", 0.0), ("qa", '["Rio"]', "in Rio", 2 / 3)],
)
def test_graded_by_the_kind_of_the_problem(ability, truth, answer, value):
    reward = HierarchicalReward()
    text = GOOD.replace("\\boxed{2}", f"\\boxed{{{answer}}}")
    asked = request(text, truth, final_text=text.rpartition("</think>")[2])
    problem = replace(asked.problem, ability=ability)
    found = reward.score(replace(asked, problem=problem, sampled_text=own_text(text)))
    assert found.value == pytest.approx(value)
    assert reward.longest_s(4) > 0
    reward.close()


def test_a_failed_grade_fails_the_reward():
    runner = RewardRunner(HierarchicalReward({"target": "reward_tools:Raises"}))
    found = asyncio.run(runner.score(replace(request(GOOD), sampled_text=own_text(GOOD))))
    assert not found.graded and "no such answer" in found.error
    runner.close()


def test_a_grader_is_a_class_and_its_arguments():
    with pytest.raises(ClassLoadError, match=r"expected \{target"):
        HierarchicalReward({"class": "x"})


def test_the_form_is_of_what_was_ended():
    assert form_problem(request("x", reason=FinishReason.ABORTED)) == "not ended"


# --- the released formula, holes included (by hand from its rules) ---------------------------------

THOUGHT = "<think>a</think>"


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("3", "-3", 1.0),
        ("1.5", "15", 1.0),
        ("\\frac{12}{3}", "\\frac{1}{23}", 1.0),
        ("0.5", "\\frac{1}{2}", 0.0),
        ("A", "A", 0.0),
        ("3\\sqrt{3} - 6", "3\\sqrt{3}-6", 0.0),
        ("The Big Apple", "big apple", 1.0),
        ("no", "no doubt", 0.0),
        ("No.", "no", 1.0),
        ("red red blue", "red green", 2 / 5),
        ("", "x", 0.0),
    ],
)
def test_f1(answer, gold, value):
    assert released_f1(answer, gold) == pytest.approx(value)


def response(answer: str, middle: str = "", end: str = "") -> str:
    return f"{THOUGHT}{middle}<answer>\\boxed{{{answer}}}</answer>{end}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (response("red"), 1.0),
        (response("blue"), 0.0),
        (response("red blue"), 2 / 3),
        (response("red", "<search>x</search><result>y</result><python>1</python><result>1</result>"), 1.1),
        # Any common word earns the bonus, and so do closing tags without a call.
        (response("red blue", "</search></python>"), 2 / 3 + 0.1),
        (response("blue", "</search></python>"), 0.0),
        # One result may serve two calls.
        (response("red", "<search>x<python>1</python></search><result>1</result>"), 1.1),
        (response("red", "<search>x</search>"), -1.0),
        (response("red", "<search>x<result>1</result>"), -1.0),
        (response("red", end=" and more"), 1.0),
        ("</think><think><answer>\\boxed{red}</answer>", 1.0),
        ("<answer>\\boxed{red}</answer>", -1.0),
        (f"{THOUGHT}<answer>red</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed red}}</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed{{red</answer>", -1.0),
        (response("red", "<result><answer></result>"), -1.0),
        (f"{THOUGHT}<think><answer>\\boxed{{red}}</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed{{a}} \\boxed{{\\text{{red}}}}</answer>", 0.0),
    ],
)
def test_the_formula(text, value):
    assert ReleasedReward().score(request(text, "red")).value == pytest.approx(value)


def test_the_best_of_several_golds():
    assert ReleasedReward().score(request(response("red"), '["blue", "red"]')).value == 1.0


def test_a_response_that_was_cut_off_keeps_what_it_earns():
    assert ReleasedReward.pays_unfinished
