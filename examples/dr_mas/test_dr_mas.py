"""Advantages of Dr.MAS and AT-GRPO worked out by hand: pytest examples/dr_mas."""

import pytest
from dr_mas import DrMAS

from marsrl_verl.testing import run_method

# Dialogues: right; wrong, accepted; wrong, rejected, corrected; cut before the verifier speaks (reward 0).
SAID = {"solver": ("{}", "0", "0", "x" * 400), "verifier": ("RIGHT", "RIGHT", "WRONG", "WRONG")}


def run(says=SAID, **settings):
    def script(turn):
        right = turn.request.problem.ground_truth
        return right if turn.role == "solver" and turn.number else says[turn.role][turn.k].format(right)

    settings |= {"problems": 1, "group_size": 4, "max_new_tokens": 300}
    (whole,), (cut,) = (run_method(DrMAS, script, segment_tokens=at, **settings) for at in (None, 7))
    assert whole.advantages.tolist() == cut.advantages.tolist()  # a pause changes nothing
    return whole


def test_all_messages_of_an_agent_are_compared():
    worth = run().advantages_of
    # Five messages with R = 1 0 1 1 0: mean 0.6, variance (3 * 0.16 + 2 * 0.36) / 4 = 0.3.
    assert worth("solver") == pytest.approx([x / 0.3**0.5 for x in (0.4, -0.6, 0.4, -0.6)], abs=1e-4)
    # Three messages with R = 1 0 1: mean 2/3, variance (1/9 + 4/9 + 1/9) / 2 = 1/3.
    assert worth("verifier") == pytest.approx([x / 3**0.5 for x in (1, -2, 1)], abs=1e-4)


def test_candidates_of_one_turn_are_compared():
    step = run(grouping="agent_turn", team_weight=0.5)
    # A right answer earns 0.5 + 1, is gone on with, and to accept it earns 0.5 + 1.
    assert [group.rewards for group in step.groups] == [[1.5, 0, 0, 0], [1.5, 1.5, 0, 0]]
    # Mean 3/8, variance (81 + 3 * 9) / 64 / 3 = 9/16; mean 3/4, variance 4 * 9/16 / 3 = 3/4.
    assert step.advantages_of("solver") == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    assert step.advantages_of("verifier") == pytest.approx([x * 0.75**0.5 for x in (1, 1, -1, -1)], abs=1e-4)
    # Where all answers are wrong, to reject earns 1, and the next turn's candidates are a group of their own.
    step = run({**SAID, "solver": "0000"}, grouping="agent_turn")
    assert sorted(group.rewards for group in step.groups) == [[0] * 4, [0, 0, 1, 1], [2] * 4]
