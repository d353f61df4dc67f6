"""Worked examples as earlier turns."""

import pytest

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


def test_a_call_changes_no_later_one():
    prompts = ProblemPrompts(examples={"problem": [ADDITION]})
    prompts.problem(PROBLEM)[0]["content"] = "changed"
    for later in (prompts, ProblemPrompts(examples={"problem": [ADDITION]})):
        assert texts(later.problem(PROBLEM))[0] == ("user", "1 + 1?")


def test_an_example_of_no_prompt_is_refused():
    with pytest.raises(ValueError, match="examples of 'judge': expected those of problem"):
        ProblemPrompts(examples={"judge": [ADDITION]})


@pytest.mark.parametrize("example", [{"question": "1 + 1?"}, {**ADDITION, "report": "x"}])
def test_an_example_shows_what_the_prompt_shows(example):
    with pytest.raises(ValueError, match=r"examples.problem\[1\] has .*, expected \['question', 'answer'"):
        ProblemPrompts(examples={"problem": [ADDITION, example]})
