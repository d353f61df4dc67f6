"""Trees through the scheduler: every step is a process of its own, and that changes nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from agent_scripts import LIMITS, UNSURE, AgentClient, FakeTools, Tokenizer, call
from equal_sequences import equal_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_methods import Trained, train
from scheduler_tools import build
from tree_groups import config, runner_settings

from marsrl_verl.algos.arpo.method import ARPO
from marsrl_verl.core.prompts import ProblemPrompts


def says(k: int, turn: int) -> str:
    head = "ok. " if turn == 0 else f"{UNSURE}{k}{UNSURE}{UNSURE} "
    return head + (call("python", "x" * (k + 1)) if turn < 1 + k % 3 else "it is.</s>")


def trained(segment: int | None, attribution: str = "soft", seed: int | None = None) -> list[Trained]:
    one = config(group_size=6, attribution=attribution, branching={"roots": 3})
    limits = {"solver": replace(LIMITS, max_prompt_tokens=200, segment_tokens=segment)}
    return train(
        lambda: build(ARPO, ProblemPrompts(), one),
        lambda _: AgentClient(tokenizer=Tokenizer(), says=says, seed=seed),
        limits,
        **runner_settings(one, FakeTools(seed=seed or 0)),
    )


@lru_cache
def without_segments(attribution: str) -> Trained:
    (one,) = trained(None, attribution)
    return one


def test_what_is_trained():
    """So that the property below is about something."""
    one = without_segments("soft")
    assert len(one.groups) == 3 and len(one.rows) == 18
    assert any(member.fork for group in one.groups for member in group.trajectories)
    assert not np.allclose(one.advantages, without_segments("hard").advantages)


@given(st.integers(5, 60), st.sampled_from(["soft", "hard", "sibling"]), st.integers(0, 1000))
@settings(max_examples=8)
def test_segments_processes_and_the_order_of_answers_change_nothing(segment, attribution, seed):
    steps, expected = trained(segment, attribution, seed), without_segments(attribution)
    found = {group.group_id: group for step in steps for group in step.groups}
    assert len(found) == sum(len(step.groups) for step in steps) == 3, "every group is trained once"
    worth: dict[str, np.ndarray] = {}
    for step in steps:
        for row in range(len(step.rows)):
            name = step.rows.trajectory(row).trajectory_id
            assert name not in worth, "no trajectory is trained twice"
            worth[name] = step.advantages[step.rows.slice(row)]
    for row in range(len(expected.rows)):
        name = expected.rows.trajectory(row).trajectory_id
        assert worth.pop(name) == pytest.approx(expected.advantages[expected.rows.slice(row)], abs=1e-6)
    assert not worth, "nothing else is trained"
    for group in expected.groups:
        for one, other in zip(found[group.group_id].trajectories, group.trajectories, strict=True):
            assert (one.text, one.finish, one.fork) == (other.text, other.finish, other.fork)
            mine = replace(one.sequence, versions=())
            assert equal_sequences(mine, replace(other.sequence, versions=()))
