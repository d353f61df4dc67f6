"""Plans as JSON: what is one, what it tells, and what is trained of it."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ByteTokenizer

from marsrl_verl.algos.rema.json_actions import GRAMMAR, Action, ActionKind, parse_action
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.rollout.runner import RolloutRunner


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
