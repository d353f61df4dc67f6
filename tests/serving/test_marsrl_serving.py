"""Solver, Verifier and Corrector behind the server: nobody knows the answer, and the verdicts decide."""

from __future__ import annotations

import asyncio

from evaluation_tools import system
from marsrl_script import ScriptedEngine
from scheduler_tools import ShortPrompts
from scripted_engine import Reply
from served import HeldAnswers, ask, make_service, served

from marsrl_verl.algos.marsrl.evaluation.loop_rules import Fallback
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, VERIFIER
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.exact import ExactAnswerReward


def score(item, one):
    """By the rewards of a run."""
    reward = VerdictReward() if item.role == VERIFIER else ExactAnswerReward()
    return reward.score(ScoreRequest.of(item, one))


def answered(script, **rules):
    answers = HeldAnswers()
    answers.engine = ScriptedEngine(script, scorer=score)

    async def play():
        async with served(make_service(answers, system(ShortPrompts(), **rules))) as address:
            return await ask(address)

    return asyncio.run(play())


def test_the_trail_has_the_verdicts_and_the_accepted_correction_is_the_solution():
    def script(item, k):
        if item.role == VERIFIER:
            right = "{4}" in item.inputs["solution"]
            return Reply(f"2+2 is 4.\n\n**Correctness**: {'Correct' if right else 'Wrong'}")
        return Reply("<think>hm</think>\\boxed{4}" if item.role == CORRECTOR else "\\boxed{5}")

    got = answered(script)
    assert got.choices[0].message.content == "\\boxed{4}" and got.run["end"] == "accepted"
    found = [(one["stage"], one.get("verdict"), one.get("answer")) for one in got.run["trail"]]
    assert found == [
        ("solver", None, "5"),
        ("verifier_1", "wrong", None),
        ("corrector_1", None, "4"),
        ("verifier_2", "correct", None),
    ]
    assert "solution_reward" not in str(got.run)  # nothing was graded
    assert sorted(got.run["usage"]) == ["corrector", "solver", "verifier"]
    assert got.usage.completion_tokens == sum(one["completion_tokens"] for one in got.run["usage"].values())


def test_answers_are_read_where_the_most_frequent_one_decides():
    texts = iter(["\\boxed{5}", "\\boxed{4}", "\\boxed{4}!"])

    def script(item, k):
        return Reply("No.\n\n**Correctness**: Wrong" if item.role == VERIFIER else next(texts))

    got = answered(script, fallback=Fallback.MAJORITY)
    assert got.run["end"] == "rounds_used"
    assert got.choices[0].message.content == "\\boxed{4}"  # by LAST it had the `!`, by PASSES the 5
