"""The seam for ARPO: a tree of tool calls, forks, pauses at every token, advantages of shared tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from arpo_like import CLOSE, OPEN
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_methods import Trained, train
from scripted_client import CharacterTokenizer, ScriptedClient

from marsrl_verl.core.advantages import comparable_rows, group_relative
from marsrl_verl.core.method import Method, Stage, StagePlan
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.sequence import TURN, equal_sequences
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.core.tree import Path, build_tree, leaf_counts, values
from marsrl_verl.rollout.generation import TopLogProbs

LIMITS = Sampling(max_new_tokens=150, max_prompt_tokens=50)
BUDGET = 7
PROGRAM = "arpo_like:Tree"
SETTINGS = SimpleNamespace(algo=SimpleNamespace(roots=2, probe_tokens=4, most_calls=2))


class Agent(Method):
    """Soft advantages: GRPO over the leaves."""

    stages = (Stage("agent", "agent"),)
    roles = ("agent",)
    rollouts = (PROGRAM,)

    @classmethod
    def plan(cls, config):
        return (StagePlan("agent", "agent", 1, True, BUDGET),)

    def first_requests(self, problem, step):
        messages = ({"role": "user", "content": problem.question},)
        name = f"{problem.problem_id}/agent/0"
        return [RolloutRequest(name, problem, "agent", "agent", messages, BUDGET, PROGRAM, created_step=step)]

    def trains(self, groups):
        return any(len(set(group.rewards)) > 1 for group in groups)

    def select(self, groups, step):
        return comparable_rows(groups)

    def advantages(self, rows):
        return rows.spread(group_relative(rows).astype(np.float32))


def says(prompt: str, k: int) -> str:
    """What trajectory k writes: `?` where it is not sure."""
    turn = prompt.rpartition("<assistant>")[2]
    before, _, run = turn.rpartition("</result>")
    calls = before.count("<result>")
    sure = "!" if k == 3 else "???"
    more = calls < (1, 2, 2, 1, 2, 3, 1)[k]
    text = f"{k}{sure * bool(calls)} {OPEN}{'x' * (k + 1)}{CLOSE} and on" if more else f"{k}{sure} it is.</s>"
    assert text.startswith(run), (text, run)
    return text[len(run) :]


class Branching(ScriptedClient):
    """Tells the two likeliest tokens: `?` could have been something else."""

    async def generate(self, policy, prompt_ids, decoding, *, name, **more):
        k = int(name.rpartition("#")[2])
        inner = ScriptedClient(lambda prompt: says(prompt, k), self.tokenizer, self.version)
        found = await inner.generate(policy, prompt_ids, decoding, name=name, **more)
        return [replace(one, top=self._top(one, decoding.top_log_probs)) for one in found]

    def _top(self, one, count):
        if not count:
            return None
        unsure = ["?" in self.tokenizer.decode([token]) for token in one.token_ids.tolist()]
        likeliest = np.where(unsure, 0.5, 0.99)[:, None]
        log_probs = np.log(np.concatenate([likeliest, 0.99 - likeliest + 1e-9], axis=1))
        return TopLogProbs(np.zeros(log_probs.shape, np.int32), log_probs.astype(np.float32))


def trained(segment: int | None, size: int = 1) -> list[Trained]:
    sampling = {"agent": replace(LIMITS, segment_tokens=segment)}
    tokenizer = CharacterTokenizer(size)
    return train(Agent, lambda _: Branching(lambda _: "", tokenizer), sampling, settings=SETTINGS)


@lru_cache
def whole(size: int = 1) -> Trained:
    (one,) = trained(None, size)
    return one


def test_what_the_tree_is():
    """So that the property below is about something."""
    group = whole().groups[0]
    assert [one.number for one in group.trajectories] == list(range(BUDGET)), "exactly the budget"
    forks = {
        one.number: (one.fork.trajectory_id[-1], one.fork.token) for one in group.trajectories if one.fork
    }
    assert {k: parent for k, (parent, _) in forks.items()} == {2: "0", 3: "1", 4: "1", 5: "2"}, (
        "6 is a new root"
    )
    ends = {one.number: one.finish for one in group.trajectories}
    assert ends == {**dict.fromkeys(range(BUDGET), FinishReason.STOP), 5: FinishReason.LIMIT}
    for one in group.trajectories:
        sequence = one.sequence
        decoded = "".join(map(chr, sequence.response_ids[sequence.response_mask == 0]))
        assert decoded == "".join(f"<result>{event['result']}</result>" for event in one.events)
        assert (sequence.annotations[TURN] >= 0).tolist() == sequence.response_mask.astype(bool).tolist()
        if one.fork:
            (parent,) = (
                other for other in group.trajectories if other.trajectory_id == one.fork.trajectory_id
            )
            at = one.fork.token
            assert equal_sequences(
                replace(sequence.truncate(at), versions=()),
                replace(parent.sequence.truncate(at), versions=()),
            )
            assert sequence.response_ids[at] != parent.sequence.response_ids[at], "each goes its own way"


@given(st.integers(1, 40), st.sampled_from([1, 3]))
@settings(max_examples=12, deadline=None)
def test_pauses_and_new_processes_change_nothing(segment, size):
    steps = trained(segment, size)
    found = {group.group_id: group for step in steps for group in step.groups}
    assert len(found) == sum(len(step.groups) for step in steps) == 3, "every group is trained once"
    for expected in whole(size).groups:
        members = found[expected.group_id].trajectories
        for one, other in zip(members, expected.trajectories, strict=True):
            assert (one.text, one.finish, one.fork, one.events, one.value) == (
                other.text, other.finish, other.fork, other.events, other.value,
            )  # fmt: skip
            assert equal_sequences(replace(one.sequence, versions=()), replace(other.sequence, versions=()))
    assert sum(len(step.rows) for step in steps) == len(whole(size).rows)
    total = sum(float(step.advantages.sum()) for step in steps)
    assert total == pytest.approx(float(whole(size).advantages.sum()), abs=1e-4)


def test_a_shared_token_counts_once_for_every_leaf_below_it():
    """Soft advantages: a token before a fork is in a row of each leaf; together they are worth the number of
    the leaves times the mean of theirs (which the hard advantage gives it once)."""
    one = whole()
    by_name: dict[str, np.ndarray] = {}
    for row in range(len(one.rows)):
        by_name[one.rows.trajectory(row).trajectory_id] = one.advantages[one.rows.slice(row)]
    for group in one.groups:
        members = group.trajectories
        tree = build_tree(
            [Path(t.trajectory_id, t.tokens, float(by_name[t.trajectory_id][0]), *_left(t)) for t in members]
        )
        hard, leaves = values(tree), leaf_counts(tree)
        assert leaves.max() == BUDGET and (leaves[1:] > 1).any()
        soft = np.zeros(len(tree.parent))
        for place, member in enumerate(members):
            for end, node in tree.segments_of(place):
                soft[node] += by_name[member.trajectory_id][end - 1]
        np.testing.assert_allclose(soft[1:], (hard * leaves)[1:], atol=1e-5)


def _left(one):
    return (one.fork.trajectory_id, one.fork.token) if one.fork else (None, 0)
