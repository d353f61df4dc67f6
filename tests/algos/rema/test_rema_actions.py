"""The command that shows which actions a run chose."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.algos.rema.actions import Chosen, main, mean_levels, read_actions, shares_by_level, table
from marsrl_verl.algos.rema.single_turn.plans import difficulty_of
from marsrl_verl.core.request import Problem


def write_run(folder, plans):
    rollouts = folder / "rollouts"
    rollouts.mkdir(parents=True)
    for step, action, level, correctness in plans:
        line = {"step": step, "stage": "plan", "action": action, "level": level, "correctness": correctness}
        other = {"step": step, "stage": "solution", "answer": "3", "level": level}
        with (rollouts / f"step_{step}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n" + json.dumps(other) + "\n")
    return folder


PLANS = [
    (2, "EMPTY", 1, 1.0),
    (2, "DECOMPOSE", 5, 0.5),
    (10, "DECOMPOSE", 5, 1.0),
    (10, "EMPTY", 5, 0.0),
    (10, "INVALID", None, None),
]


def test_the_plans_of_a_run_in_the_order_of_steps(tmp_path):
    found = read_actions(write_run(tmp_path, PLANS))
    assert found == [Chosen(*one) for one in PLANS]


def test_plans_of_passes_that_count_or_train_solutions_are_left_out(tmp_path):
    run = write_run(tmp_path, PLANS)
    line = {"step": 2, "stage": "plan", "action": "REWRITE", "level": 1, "pass_trains_plans": False}
    with (run / "rollouts" / "step_2.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n" + json.dumps({**line, "pass_trains_plans": True}) + "\n")
    assert [one.action for one in read_actions(run)].count("REWRITE") == 1


def test_shares_by_difficulty():
    shares = shares_by_level([Chosen(*one) for one in PLANS])
    assert list(shares) == [1, 5, None]
    assert shares[1]["EMPTY"] == 1.0 and shares[None]["INVALID"] == 1.0
    assert shares[5]["DECOMPOSE"] == pytest.approx(2 / 3)
    assert all(sum(one.values()) == pytest.approx(1.0) for one in shares.values())


def test_mean_difficulty_over_training():
    found = [Chosen(*one) for one in PLANS]
    assert mean_levels(found, parts=2) == {"EMPTY": [(2, 1.0), (10, 5.0)], "DECOMPOSE": [(2, 5.0), (10, 5.0)]}
    assert mean_levels(found, parts=1)["EMPTY"] == [(6, 3.0)]


def test_the_table_says_what_the_plans_led_to():
    lines = [line.split() for line in table([Chosen(*one) for one in PLANS]).splitlines()]
    assert lines[-1] == ["correct", "5", "0.750", "-", "0.500", "-"]
    # Of steps 2 and 10 one is the first half.
    assert lines[-3:-1] == [
        ["step", "2-2", "2", "0.500", "0.000", "0.500", "0.000"],
        ["step", "10-10", "3", "0.333", "0.000", "0.333", "0.333"],
    ]


def test_the_command_prints_and_draws(tmp_path, capsys):
    run = write_run(tmp_path / "run", PLANS)
    assert main([str(run)]) == 0
    assert "DECOMPOSE" in capsys.readouterr().out
    assert (run / "actions.png").read_bytes().startswith(b"\x89PNG")
    assert main([str(run), "--output", str(tmp_path / "new" / "other.png")]) == 0
    assert (tmp_path / "new" / "other.png").is_file()


def test_a_run_without_actions_is_told(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no plan with an action" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "level"),
    [
        ({"level": "Level 4"}, 4.0),
        ({"difficulty": 2.5}, 2.5),
        ({"source": '{"level": "Level 3"}', "level": None}, 3.0),
        ({"source": '{"level": 3}', "level": 1}, 1.0),
        ({"source": "AMC 12"}, None),
        ({"source": "[1]"}, None),
        ({"source": 7}, None),
        ({}, None),
    ],
)
def test_difficulties_are_those_of_the_row_or_of_its_source(extra, level):
    """`source` is what `prepare_data` writes, or another field of this name."""
    assert difficulty_of(Problem("p", "q", "a", extra_info=extra)) == level
