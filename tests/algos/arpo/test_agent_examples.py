"""Worked examples of agents with tools."""

from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.core.request import Problem

PROBLEM = Problem("p", "2 + 2?", "4")
ADDITION = {"question": "1 + 1?", "answer": "2"}


def test_an_agents_example_stands_behind_what_explains_the_tools():
    prompts = AgentPrompts(tools=("python",), examples={"problem": [ADDITION]})
    assert [message["role"] for message in prompts.problem(PROBLEM)] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
