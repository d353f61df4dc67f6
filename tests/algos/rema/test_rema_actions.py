"""Actions: the command that shows which ones a run chose, and plans as JSON."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ByteTokenizer

from marsrl_verl.algos.rema.actions import Chosen, main, mean_levels, read_actions, shares_by_level, table
from marsrl_verl.algos.rema.json_actions import GRAMMAR, Action, ActionKind, parse_action
from marsrl_verl.algos.rema.single_turn.plans import difficulty_of
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.rollout.runner import RolloutRunner


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


# --- plans as JSON: what is one, and what is trained of it -----------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "output", "instruction"),
    [
        ('{"action": "DECOMPOSE", "output": "first a"}', ActionKind.DECOMPOSE, "first a", "first a"),
        (' {"output":" simpler ","action":"REWRITE"}\n', ActionKind.REWRITE, " simpler ", "simpler"),
        ('{"action": "EMPTY", "output": ""}', ActionKind.EMPTY, "", ""),
        ('{"action": "EMPTY", "output": "said all the same"}', ActionKind.EMPTY, "said all the same", ""),
    ],
)
def test_an_action_and_what_it_tells(text, kind, output, instruction):
    action = parse_action(text)
    assert (action, action.instruction) == (Action(kind, output), instruction)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DECOMPOSE",
        '{"action": "DECOMPOSE", "output": "cut',
        '{"action": "SOLVE", "output": "x"}',
        '{"action": "REWRITE", "output": "  "}',
        '{"action": "REWRITE", "output": 3}',
        '{"action": "REWRITE"}',
        '{"action": "REWRITE", "output": "x", "answer": 3}',
        '[{"action": "REWRITE", "output": "x"}]',
        'Sure: {"action": "REWRITE", "output": "x"}',
        '{"action": ["REWRITE"], "output": "x"}',
        "[" * 100_000,
    ],
)
def test_what_is_none_is_data(text):
    assert parse_action(text) is None


@given(kind=st.sampled_from(list(ActionKind)), output=st.text(max_size=50))
def test_what_the_grammar_allows_is_read_back(kind, output):
    action = parse_action(json.dumps({"action": kind.value, "output": output}))
    assert action is None or action == Action(kind, output)
    assert (action is None) == (kind is not ActionKind.EMPTY and not output.strip())


class GrammarClient:
    """Answers with an action, and which of its tokens the grammar forced."""

    def __init__(self) -> None:
        self.requests = []

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        self.requests.append((n, decoding.structured))
        ids = b'{"action": "REWRITE", "output": "x"}'
        forced = np.ones(len(ids), dtype=np.bool_)
        forced[[12, 33]] = False  # what was chosen: R of REWRITE, and x
        log_probs = np.full(len(ids), -0.5, dtype=np.float32)
        found = Completion(token_ids(list(ids)), log_probs, FinishReason.STOP, forced=forced)
        return [found] * n


def test_forced_tokens_are_not_trained():
    client = GrammarClient()

    async def score(request, trajectories):
        return [RewardResult(0.0) for _ in trajectories]

    runner = RolloutRunner(client, ChatTokenizer(ByteTokenizer()), score)
    messages = ({"role": "user", "content": "?"},)
    request = RolloutRequest(
        "p/plan/0", Problem("p", "?", "1"), "plan", "meta_thinking", messages, 3,
        rollout="marsrl_verl.algos.rema.json_actions:ActionCall",
    )  # fmt: skip
    output = asyncio.run(runner.run(request, {"meta_thinking": Sampling(100, 100)}))
    assert client.requests == [(3, GRAMMAR)]
    for one in output.trajectories:
        assert np.flatnonzero(one.sequence.response_mask).tolist() == [12, 33]
        assert parse_action(one.final_text) == Action(ActionKind.REWRITE, "x")
