"""Worked examples as earlier turns."""

import pytest

from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.algos.marsrl.prompts import CORRECTOR_REQUEST, MathPrompts
from marsrl_verl.algos.rema.prompts import MathDialogue
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Problem

PROBLEM = Problem("p", "2 + 2?", "4")
ADDITION = {"question": "1 + 1?", "answer": "2"}


def texts(chat):
    return [(message["role"], message["content"]) for message in chat]


def test_an_example_stands_before_the_problem_and_is_worded_like_it():
    prompts = ProblemPrompts(solver_instruction="Box it.", examples={"problem": [ADDITION, ADDITION]})
    turn = [("user", "1 + 1?\n\nBox it."), ("assistant", "2")]
    assert texts(prompts.problem(PROBLEM)) == [*turn, *turn, ("user", "2 + 2?\n\nBox it.")]


def test_it_stands_behind_the_data_s_own_system_message():
    chat = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    asked = ProblemPrompts(examples={"problem": [ADDITION]}).problem(Problem("p", "q", "1", messages=chat))
    assert texts(asked) == [("system", "s"), ("user", "1 + 1?"), ("assistant", "2"), ("user", "u")]
    asked[1]["content"] = "changed"
    again = ProblemPrompts(examples={"problem": [ADDITION]}).problem(PROBLEM)
    assert texts(again)[0] == ("user", "1 + 1?")


def test_a_call_changes_no_later_one():
    prompts = ProblemPrompts(examples={"problem": [ADDITION]})
    prompts.problem(PROBLEM)[0]["content"] = "changed"
    assert texts(prompts.problem(PROBLEM))[0] == ("user", "1 + 1?")


def test_each_role_has_its_own():
    examples = {
        "verifier": [{**ADDITION, "solution": "3", "answer": "Correctness: Wrong"}],
        "corrector": [{**ADDITION, "solution": "3", "report": "It is 2."}],
    }
    prompts = MathPrompts(examples=examples)
    assert texts(prompts.solver(PROBLEM)) == [("user", "2 + 2?")]
    system, user, answer, asked = prompts.verifier(PROBLEM, "5")
    assert (system["role"], answer["content"]) == ("system", "Correctness: Wrong")
    assert user["content"] == MathPrompts().verifier(Problem("", "1 + 1?", ""), "3")[1]["content"]
    assert asked == MathPrompts().verifier(PROBLEM, "5")[1]
    assert texts(prompts.corrector(PROBLEM, "5", "No.")) == [
        ("user", "1 + 1?"), ("assistant", "3"), ("user", CORRECTOR_REQUEST.format(report="It is 2.")),
        ("assistant", "2"),
        ("user", "2 + 2?"), ("assistant", "5"), ("user", CORRECTOR_REQUEST.format(report="No.")),
    ]  # fmt: skip


def test_the_solvers_examples_are_not_the_correctors():
    prompts = MathPrompts(examples={"solver": [ADDITION]})
    assert len(prompts.solver(PROBLEM)) == 3
    assert prompts.corrector(PROBLEM, "5", "No.") == MathPrompts().corrector(PROBLEM, "5", "No.")


def test_an_agents_example_stands_behind_what_explains_the_tools():
    prompts = AgentPrompts(tools=("python",), examples={"problem": [ADDITION]})
    assert [message["role"] for message in prompts.problem(PROBLEM)] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_agents_that_talk_and_agents_that_plan():
    dialogue = MathDialogue(examples={"reasoning": [{**ADDITION, "instruction": "Add."}]})
    assert len(dialogue.meta_thinking(PROBLEM)) == 2
    assert len(dialogue.reasoning(PROBLEM, "Add.")) == 4
    planned = MathPlanPrompts(examples={"direct": [ADDITION], "solution": [{**ADDITION, "plan": "Add."}]})
    assert len(planned.solution(PROBLEM, "Add.")) == 4
    assert planned.solution(PROBLEM, " ") == planned.direct(PROBLEM)
    assert len(planned.plan(PROBLEM)) == 2


def test_an_example_of_no_prompt_is_refused():
    with pytest.raises(
        ValueError, match="examples of 'judge': expected those of solver, verifier, corrector"
    ):
        MathPrompts(examples={"judge": [ADDITION]})


@pytest.mark.parametrize("example", [ADDITION, {**ADDITION, "solution": "3", "report": "x"}])
def test_an_example_shows_what_the_prompt_shows(example):
    with pytest.raises(ValueError, match=r"examples.verifier\[0\] has .*, expected \['question', 'solution'"):
        MathPrompts(examples={"verifier": [example]})
