"""Worked examples of MarsRL's roles."""

import pytest

from marsrl_verl.algos.marsrl.prompts import CORRECTOR_REQUEST, MathPrompts
from marsrl_verl.core.request import Problem

PROBLEM = Problem("p", "2 + 2?", "4")
ADDITION = {"question": "1 + 1?", "answer": "2"}


def texts(chat):
    return [(message["role"], message["content"]) for message in chat]


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


@pytest.mark.parametrize("example", [ADDITION, {**ADDITION, "solution": "3", "report": "x"}])
def test_an_example_shows_what_the_prompt_shows(example):
    with pytest.raises(ValueError, match=r"examples.verifier\[0\] has .*, expected \['question', 'solution'"):
        MathPrompts(examples={"verifier": [example]})
