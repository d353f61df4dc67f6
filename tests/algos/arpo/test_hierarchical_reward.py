"""What an agent's response is paid."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace

import pytest
from reward_tools import request

from marsrl_verl.algos.arpo.released_reward import ReleasedReward
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


def scored(text: str = GOOD, events=(), *, own: str | None = None, reward=None, truth="2", **more):
    score_request = request(text, truth, final_text=text.rpartition("</think>")[2], **more)
    own = text.replace(" <result>\n2\n</result>", "") if own is None else own
    reward = reward or HierarchicalReward(EXACT)
    found = reward.score(replace(score_request, events=list(events), sampled_text=own))
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found):
    return await found


@pytest.mark.parametrize(
    ("text", "tools", "value"),
    [
        (GOOD, ("search",), 1.0),
        (GOOD, ("search", "python"), 1.1),
        (GOOD, ("search", "search"), 1.0),
        (GOOD.replace("boxed{2}", "boxed{3}"), ("search", "python"), 0.0),
        (GOOD.replace("\\boxed{2}", "2"), ("search", "python"), -1.0),
    ],
)
def test_right_wrong_and_ill_formed(text, tools, value):
    assert scored(text, ran(*tools)).value == value


def test_the_bonus_is_for_calls_that_ran():
    text = GOOD.replace("look", "look </python> </search>")
    assert scored(text, ran("search")).value == 1.0, "closing tags earn nothing"
    failed = [*ran("search"), *ran("python", outcome="error")]
    assert scored(GOOD, failed).value == 1.0
    refused = [*ran("search"), {"tool": "python", "outcome": "refused", "over_limit": True}]
    assert scored(GOOD, refused).value == 1.0


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
    assert scored(page, own=GOOD.replace(" <result>\n2\n</result>", "")).value == 1.0


def test_refused_calls_are_ill_formed_but_not_those_over_the_limit():
    assert scored(GOOD, [{"tool": "x", "outcome": "refused"}]).value == -1.0
    assert scored(GOOD, [{"tool": "x", "outcome": "refused", "over_limit": True}]).value == 1.0


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
    score_request = replace(
        request(text, truth, final_text=text.rpartition("</think>")[2]), sampled_text=None
    )
    score_request = replace(score_request, problem=replace(score_request.problem, ability=ability))
    score_request = replace(score_request, sampled_text=text.replace(" <result>\n2\n</result>", ""))
    found = reward.score(score_request)
    assert found.value == pytest.approx(value)
    assert reward.longest_s(4) > 0
    reward.close()


def test_a_failed_grade_fails_the_reward():
    runner = RewardRunner(HierarchicalReward({"target": "reward_tools:Raises"}))
    found = asyncio.run(
        runner.score(replace(request(GOOD), sampled_text=GOOD.replace(" <result>\n2\n</result>", "")))
    )
    assert not found.graded and "no such answer" in found.error
    runner.close()


def test_a_grader_is_a_class_and_its_arguments():
    with pytest.raises(ClassLoadError, match=r"expected \{target"):
        HierarchicalReward({"class": "x"})


def test_the_form_is_of_what_was_ended():
    assert form_problem(request("x", reason=FinishReason.ABORTED)) == "not ended"
