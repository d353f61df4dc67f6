"""The seam for ReMA: two agents with two policies, trained in turn, with pauses at every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from equal_sequences import equal_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_methods import Trained as Found
from paper_methods import train
from rema_like import FINISH, META, REASONING
from scheduler_tools import build
from scripted_client import PieceTokenizer

from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.policy import Policy, PolicySet
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.schedule import Schedule, Trained
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.testing.client import END, ScriptedClient

LIMITS = Sampling(max_new_tokens=220, max_prompt_tokens=120)
GROUP = 5
EVERY = 3


class Turns(Schedule):
    """The agents' policies are trained `EVERY` steps each."""

    def trained(self, step):
        return Trained(policies=frozenset({("meta", "reason")[(step - 1) // EVERY % 2]}))


class TakingTurns(Method):
    """GRPO over the dialogues."""

    Schedule = Turns
    roles: ClassVar[Mapping[str, Role]] = {META: Role(), REASONING: Role()}

    @classmethod
    def stages(cls, config):
        return (Stage("dialogue", META, GROUP, rollout="rema_like:Dialogue", writers=(META, REASONING)),)

    @classmethod
    def opening_prompts(cls, config, prompts, problem):
        return {META: ({"role": "user", "content": problem.question},)}


def policies() -> PolicySet:
    return PolicySet((Policy("meta"), Policy("reason")), {META: "meta", REASONING: "reason"})


class TwoPolicies(ScriptedClient):
    """Each trajectory goes its own way; every answer has its policy's version."""

    def __init__(self, weights: PolicySet, size: int) -> None:
        super().__init__(lambda _: "", PieceTokenizer(size))
        self.weights = weights

    async def generate(self, policy, prompt_ids, decoding, *, name, **more):
        k = int(name.partition("#")[2].partition("/")[0])
        says = meta if policy == "meta" else reasons
        inner = ScriptedClient(lambda prompt: says(prompt, k), self.tokenizer, self.weights.version(policy))
        return await inner.generate(policy, prompt_ids, decoding, name=name, **more)


def meta(prompt: str, k: int) -> str:
    text = f"Do {prompt.count('<assistant>')}, agent {k}.</s>"
    if prompt.count("<assistant>") > k:
        text = f"Enough. {FINISH} not this"
    if k == 3 and "Do" in prompt.rpartition("<assistant>")[0]:
        text = "I could go on for ever, and so I do"
    return _rest(text, prompt)


def reasons(prompt: str, k: int) -> str:
    done = FINISH in prompt
    text = f"It is {k}.</s>" if done else f"Step {prompt.count('<assistant>')}.</s>"
    return _rest(text, prompt)


def _rest(text: str, prompt: str) -> str:
    run = prompt.rpartition("<assistant>")[2]
    assert text.startswith(run), (text, run)
    return text[len(run) :]


def trained(segment: int | None, size: int = 1, **algo) -> list[Found]:
    sampling = dict.fromkeys((META, REASONING), replace(LIMITS, segment_tokens=segment))
    more = SimpleNamespace(algo=SimpleNamespace(turns=3, message_tokens=22, **algo))
    return train(
        lambda: build(TakingTurns, None),
        lambda weights: TwoPolicies(weights, size),
        sampling,
        policies,
        settings=more,
    )


@lru_cache
def without_segments(size: int = 1) -> Found:
    (one,) = trained(None, size)
    return one


def shown(one) -> list[str]:
    return [PieceTokenizer().decode(sequence.input_ids().tolist()) for sequence in one.sequences]


def test_what_the_dialogues_are():
    """So that the property below is about something."""
    members = without_segments().groups[0].trajectories
    ends = {one.number: (one.finish, one.detail) for one in members}
    limit = FinishReason.LIMIT
    assert ends == {
        0: (FinishReason.STOP, None), 1: (FinishReason.STOP, None), 2: (FinishReason.STOP, None),
        3: (limit, "message_limit"), 4: (limit, "turn_limit"),
    }  # fmt: skip
    said, did = shown(members[1])
    assert said == f"<user>0+1<assistant>Do 1, agent 1.</s><user>Step 1.<assistant>Enough. {FINISH}"
    instruction = "<user>Question: 0+1 Instruction: Do 1, agent 1."
    assert did == f"{instruction}<assistant>Step 1.</s><user>Enough. {FINISH}<assistant>It is 1.</s>"
    for one in members:
        assert [(s.role, s.policy) for s in one.sequences] == [(META, "meta"), (REASONING, "reason")]
        for sequence in one.sequences:
            turns = sequence.annotations[TURN]
            assert (turns >= 0).tolist() == sequence.response_mask.astype(bool).tolist()
    meta_turns = members[1].sequences[0]
    spoken = "".join(map(chr, meta_turns.response_ids[meta_turns.annotations[TURN] == 1]))
    assert spoken == f"Enough. {FINISH}"


def test_each_line_of_the_log_has_its_own_agents_texts():
    (group,) = [group for group in without_segments().groups if group.request.problem.problem_id == "p0"]
    lines = step_lines(1, [group], lambda request, one: {})
    meta_line, reasoning_line = [line for line in lines if line["trajectory"].endswith("#1")]
    assert (meta_line["role"], meta_line["policy"]) == (META, "meta")
    assert (reasoning_line["role"], reasoning_line["policy"]) == (REASONING, "reason")
    assert meta_line["prompt"] == "<user>0+1<assistant>"
    assert meta_line["response"].startswith("Do 1, agent 1.") and meta_line["response"].endswith(FINISH)
    assert reasoning_line["prompt"] == "<user>Question: 0+1 Instruction: Do 1, agent 1.<assistant>"
    assert reasoning_line["response"].startswith("Step 1.")
    assert reasoning_line["response"].endswith("It is 1.")


def test_each_role_has_metrics_of_its_own_sequences():
    (group,) = [group for group in without_segments().groups if group.request.problem.problem_id == "p0"]
    found = training_metrics([group], TakingTurns)
    for at, role in enumerate((META, REASONING)):
        lengths = [int(one.sequences[at].response_mask.sum()) for one in group.trajectories]
        assert found[f"role/{role}/samples"] == GROUP
        assert found[f"role/{role}/response_length_mean"] == np.mean(lengths)
        assert found[f"role/{role}/response_length_max"] == max(lengths)
    both = [sum(int(s.response_mask.sum()) for s in one.sequences) for one in group.trajectories]
    assert found["stage/dialogue/response_length_mean"] == np.mean(both)


@given(st.integers(1, 45), st.sampled_from([1, 2]))
@settings(max_examples=12, deadline=None)
def test_pauses_and_new_processes_change_nothing(segment, size):
    steps = trained(segment, size)
    found = {group.group_id: group for step in steps for group in step.groups}
    assert len(found) == sum(len(step.groups) for step in steps) == 3, "every group is trained once"
    for expected in without_segments(size).groups:
        for one, other in zip(found[expected.group_id].trajectories, expected.trajectories, strict=True):
            assert (one.text, one.finish, one.detail, one.value) == (
                other.text, other.finish, other.detail, other.value,
            )  # fmt: skip
            for sequence, same in zip(one.sequences, other.sequences, strict=True):
                assert equal_sequences(replace(sequence, versions=()), replace(same, versions=()))


@pytest.mark.parametrize("segment", [None, 5, 9])
def test_each_agent_is_trained_in_its_turn_on_its_own_tokens(segment):
    steps = trained(segment)
    for step in steps:
        due = ("meta", "reason")[(step.step - 1) // EVERY % 2]
        assert {step.rows.sequence(row).policy for row in range(len(step.rows))} <= {due}
        sums = step.rows.row_sums(step.rows.columns["response_mask"] * step.advantages)
        assert not len(step.rows) or sums.any()
    last = steps[-1]
    begun = last.groups[0].trajectories[2]
    for sequence in begun.sequences:
        turn_of = {"meta": 0, "reason": 1}[sequence.policy]
        rounds = [
            max([step for step in range(1, at) if (step - 1) // EVERY % 2 == turn_of], default=0)
            for at in range(1, len(steps) + 1)
        ]
        assert set(sequence.token_versions().tolist()) <= set(rounds), "versions are those of its own policy"
        if segment == 5:
            assert len(set(sequence.token_versions().tolist())) > 1


def test_an_action_is_one_json_object_and_forced_tokens_are_not_trained():
    class Actions(TwoPolicies):
        async def generate(self, policy, prompt_ids, decoding, *, name, **more):
            assert (policy == "meta") == (decoding.structured is not None)
            if policy == "reason":
                return await super().generate(policy, prompt_ids, decoding, name=name, **more)
            assert decoding.max_tokens == 22, "a segment does not split it"
            k = int(name.partition("#")[2])
            text = '{"a":"EMPTY"}</s>' if k else '{"a":"DECOMPOSE it into very many parts"}</s>'
            inner = ScriptedClient(lambda _: text, self.tokenizer, self.weights.version(policy))
            return await inner.generate(policy, prompt_ids, decoding, name=name, **more)

    sampling = dict.fromkeys((META, REASONING), replace(LIMITS, segment_tokens=4))
    more = SimpleNamespace(algo=SimpleNamespace(turns=1, message_tokens=22, structured=True))
    steps = train(
        lambda: build(TakingTurns, None),
        lambda weights: Actions(weights, 1),
        sampling,
        policies,
        settings=more,
    )
    for group in (group for step in steps for group in step.groups):
        cut, *others = group.trajectories
        assert (cut.detail, len(cut.sequences)) == ("message_limit", 1), "what was cut is no action"
        for one in others:
            action = one.sequences[0]
            own = "".join(map(chr, action.response_ids[action.response_mask == 1]))
            assert own == f"a:EMPTY{chr(END)}", "what the grammar forces is read, not trained"
            assert 'Instruction: {"a":"EMPTY"}<assistant>Step 1.' in shown(one)[1]
