"""Worked examples of agents that talk and plan."""

from marsrl_verl.algos.rema.prompts import MathDialogue
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.core.request import Problem

PROBLEM = Problem("p", "2 + 2?", "4")
ADDITION = {"question": "1 + 1?", "answer": "2"}


def test_agents_that_talk_and_agents_that_plan():
    dialogue = MathDialogue(examples={"reasoning": [{**ADDITION, "instruction": "Add."}]})
    assert len(dialogue.meta_thinking(PROBLEM)) == 2
    assert len(dialogue.reasoning(PROBLEM, "Add.")) == 4
    planned = MathPlanPrompts(examples={"direct": [ADDITION], "solution": [{**ADDITION, "plan": "Add."}]})
    assert len(planned.solution(PROBLEM, "Add.")) == 4
    assert planned.solution(PROBLEM, " ") == planned.direct(PROBLEM)
    assert len(planned.plan(PROBLEM)) == 2
