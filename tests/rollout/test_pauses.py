"""Pauses at any token change nothing of what programs write."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from equal_sequences import equal_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_client import PieceTokenizer, request, run_rounds, runner
from scripted_workflows import Dialogue, Forking, ToolLoop

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.testing.client import ScriptedClient

LIMITS = Sampling(max_new_tokens=400, max_prompt_tokens=200)
PROMPT = "<user>1+1<assistant>"


def agent(prompt: str) -> str:
    """Calls a tool twice and goes on without waiting for it, unless it is stopped."""
    turn = prompt.rpartition("<assistant>")[2]
    head, _, run = turn.rpartition("</result>")
    number = head.count("<result>")
    text = f"Ask <call>{number}</call> or </calling>, I go on." if number < 2 else "It is so.</s>"
    return _rest(text, run)


def branches(prompt: str) -> str:
    """Writes a beginning; told its number, it goes on in its own way."""
    turn = prompt.rpartition("<assistant>")[2]
    if "[" not in turn:
        return _rest("Once upon a time there was", turn)
    number, _, run = turn.rpartition("[")[2].partition("]")
    head, _, after = run.rpartition("</result>")
    if head:
        return _rest(f"ends {number}</s>", after)
    return _rest(f"branch {number} <call>x</call> on", run)


def speakers(prompt: str) -> str:
    turn = prompt.rpartition("<assistant>")[2]
    number = prompt.count("<assistant>")
    text = f"Turn {number}: do it. [OVER] and more" if number % 2 else f"As you say, {number}.</s>"
    return _rest(text, turn)


def _rest(text: str, written: str) -> str:
    assert text.startswith(written), (text, written)
    return text[len(written) :]


PROGRAMS = {"loop": (ToolLoop, agent), "fork": (Forking, branches), "dialogue": (Dialogue, speakers)}


def ran(kind: str, segment: int | None, size: int) -> tuple[list[Trajectory], ScriptedClient]:
    program, policy = PROGRAMS[kind]
    client = ScriptedClient(policy, PieceTokenizer(size))
    sampling = replace(LIMITS, segment_tokens=segment)
    roles = dict.fromkeys(("agent", "planner", "worker"), sampling)
    item = replace(request(n=3 if kind == "fork" else 2), role="agent", rollout=kind)
    members, _ = run_rounds(client, item, roles, workflows={kind: program})
    return members, client


def _plain(one: Sequence) -> Sequence:
    return replace(one, versions=((len(one), one.version),))


@pytest.mark.parametrize("kind", PROGRAMS)
@given(st.integers(1, 70), st.integers(1, 4))
@settings(max_examples=25)
def test_pauses_at_any_token_change_no_trajectory(kind, segment, size):
    whole, _ = ran(kind, None, size)
    paused, _ = ran(kind, segment, size)
    assert [one.trajectory_id for one in paused] == [one.trajectory_id for one in whole]
    for one, other in zip(paused, whole, strict=True):
        for name in ("text", "finish", "detail", "fork"):
            assert getattr(one, name) == getattr(other, name)
        assert len(one.sequences) == len(other.sequences)
        for found, expected in zip(one.sequences, other.sequences, strict=True):
            assert equal_sequences(_plain(found), _plain(expected))


def test_what_the_programs_wrote():
    """So that the property above is about something."""
    (loop, _), _ = ran("loop", None, 1)
    assert loop.text == "Ask <call>0</call><result>11</result>Ask <call>1</call><result>22</result>It is so."
    ids, own = loop.sequence.response_ids, loop.sequence.response_mask
    masked = "".join(map(chr, ids[own == 0]))
    assert masked == "<result>11</result><result>22</result>"
    assert set(loop.sequence.annotations[TURN].tolist()) == {-1, 0, 1, 2}
    forked, _ = ran("fork", None, 1)
    assert [one.text for one in forked] == [
        "Once upon a [0]branch 0 <call>x</call><result>11</result>ends 0",
        "Onc[1]branch 1 <call>x</call><result>11</result>ends 1",
        "Once upon a [2]branch 2 <call>x</call><result>11</result>ends 2",
    ]
    (talk, _), client = ran("dialogue", None, 1)
    planner, worker = (PieceTokenizer().decode(one.input_ids()) for one in talk.sequences)
    first = "Turn 1: do it. [OVER]"
    assert planner.startswith(f"{PROMPT}{first}</s><user>{first}<assistant>As you say, 2.</s>")
    assert worker.startswith(f"<user>{first}<assistant>{first}</s><user>As you say, 2.<assistant>")
    assert [one.role for one in talk.sequences] == ["planner", "worker"]
    assert {one["session"] for one in client.requests} == {"p1/solver.0"}


@pytest.mark.parametrize("kind", ["loop", "dialogue"])
def test_a_round_samples_no_more_than_a_segment_of_each_trajectory(kind):
    program, policy = PROGRAMS[kind]
    client, segment = ScriptedClient(policy), 9
    sampling = dict.fromkeys(("agent", "planner", "worker"), replace(LIMITS, segment_tokens=segment))
    made, item = runner(client, workflows={kind: program}), replace(request(n=2), role="agent", rollout=kind)
    output = asyncio.run(made.run(item, sampling))
    for _ in range(3):
        sampled = [sum(one.trained_tokens for one in member.sequences) for member in output.trajectories]
        output = asyncio.run(made.run(item.resumed(output), sampling))
        again = [sum(one.trained_tokens for one in member.sequences) for member in output.trajectories]
        assert [after - before for before, after in zip(sampled, again, strict=True)] == [segment, segment]
