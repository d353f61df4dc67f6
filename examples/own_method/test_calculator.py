"""What the calculator writes, and what answers are worth: pytest examples/own_method."""

from calculator import Calculator

from marsrl_verl.core.request import Problem
from marsrl_verl.testing import run_method


def says(turn):  # with the calculator; right at once; wrong
    return ("3+4=7\n7", "7", "0")[turn.k]


def test_the_calculator_writes_and_the_shortest_right_answer_is_worth_most():
    (step,) = run_method(Calculator, says, group_size=3, problems=[Problem("p", "3+4=?", "7", row="p")])
    asked, *others = step.groups[0].trajectories
    assert asked.events == [{"tool": "calculator", "result": 7}] and not any(one.events for one in others)
    assert asked.sequence.response_mask.tolist() == [1, 1, 1, 1, 0, 0, 1, 1]  # "7\n" is read, not trained
    assert step.groups[0].rewards == [2 / 8, 1, 0]  # the shortest right answer has 2 tokens
    assert step.advantages_of("agent") == [1 / 4 - 1 / 2, 1 - 1 / 8, 0 - 5 / 8]  # minus the others' mean
