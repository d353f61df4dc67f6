"""The dialogue of two agents: what each reads, how it ends, what is trained, pauses."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from equal_sequences import equal_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from rema_dialogue_script import END, PROBLEM, ROOM, Talking, chosen, endless, hold, shown, talk, turns_of

from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING
from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.sequence import LABEL
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.generation import EngineUnavailableError

LIMIT = FinishReason.LIMIT


def test_two_lists_of_messages():
    (one,) = hold()
    said, did = shown(one)
    assert said == f"<user>1+1<assistant>Do 0.{END}<user>Step.<assistant>Enough. {FINISH}"
    assert did == (
        f"<user>Q 1+1 I Do 0.<assistant>Step. {FINISH} {END}<user>Enough. {FINISH}<assistant>=2{END}"
    )
    assert (one.finish, one.detail, one.final_text) == (FinishReason.STOP, None, "=2")
    assert [sequence.role for sequence in one.sequences] == [META_THINKING, REASONING]
    assert turns_of(one, 0) == {0: f"Do 0.{END}", 1: f"Enough. {FINISH}"}, "no end token that nobody sampled"
    assert turns_of(one, 1) == {0: f"Step. {FINISH} {END}", 1: f"=2{END}"}
    for number, sequence in enumerate(one.sequences):
        assert set(sequence.annotations[LABEL].tolist()) == {number}
        turns = sequence.annotations["turn"]
        assert (turns >= 0).tolist() == sequence.response_mask.astype(bool).tolist()
    assert [(event["turn"], event["role"]) for event in one.events[:-1]] == [
        (0, META_THINKING), (0, REASONING), (1, META_THINKING), (1, REASONING),
    ]  # fmt: skip
    assert one.events[-1] == {"end": "finished", "turns": 2}


def test_the_other_agents_finish_means_nothing_and_ends_its_message_where_asked():
    client = Talking(talk)
    (one,) = hold(client=client, finish_stops="both")
    assert turns_of(one, 1)[0] == f"Step. {FINISH}"
    assert shown(one)[0].count(FINISH) == 1 and one.events[-1]["turns"] == 2
    stops = {(sent["role"], sent["decoding"].stop) for sent in client.requests}
    assert stops == {(META_THINKING, (FINISH,)), (REASONING, (FINISH,))}
    client = Talking(talk)
    hold(client=client)
    stops = {(sent["role"], sent["decoding"].stop) for sent in client.requests}
    assert stops == {(META_THINKING, (FINISH,)), (REASONING, ())}


def long_winded(who: str, at: int = 0):
    """An agent that does not end its message of one turn."""

    def says(role: str, k: int, turn: int) -> str:
        if (role, turn) == (who, at):
            return "I could go on for ever, and so I do, and so I do"
        return f"Go on.{END}" if role == META_THINKING else f"=2{END}"

    return says


ENDS = {
    "finished": (talk, {}, (FinishReason.STOP, None), 2),
    "too many turns": (endless, {"max_turns": 3}, (LIMIT, "max_turns"), 3),
    "an instruction is cut": (
        long_winded(META_THINKING, 1), {"message_tokens": 20}, (FinishReason.LENGTH, "message_cut"), 1,
    ),
    "an answer is cut": (
        long_winded(REASONING), {"message_tokens": 20}, (FinishReason.LENGTH, "message_cut"), 1,
    ),
    "a cut message is passed on": (
        long_winded(REASONING), {"message_tokens": 20, "stop_when_truncated": False, "max_turns": 2},
        (LIMIT, "max_turns"), 2,
    ),
    "no room for an instruction": (
        endless, {"message_tokens": 20, "limits": {META_THINKING: replace(ROOM, max_new_tokens=60)}},
        (LIMIT, "list_full"), 2,
    ),
    "no room for an answer": (
        endless, {"message_tokens": 20, "limits": {REASONING: replace(ROOM, max_new_tokens=60)}},
        (LIMIT, "list_full"), 2,
    ),
    "a first instruction that is too long": (
        endless, {"limits": {REASONING: replace(ROOM, max_prompt_tokens=12)}, "message_tokens": 20},
        (LIMIT, "list_full"), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_every_ending_is_data(name):
    says, more, (finish, detail), turns = ENDS[name]
    (one,) = hold(says, **more)
    assert (one.finish, one.detail) == (finish, detail)
    assert one.events[-1] == {"end": detail or "finished", "turns": turns}
    assert one.value == (1.0 if name == "finished" else 0.0) and one.comparable
    said = {event["role"] for event in one.events[:-1]}
    assert {sequence.role for sequence in one.sequences if sequence.trained_tokens} == said
    for sequence in one.sequences:
        assert len(sequence) <= more.get("limits", {}).get(sequence.role, ROOM).max_new_tokens


def test_a_problem_that_is_too_long_asks_nothing():
    client = Talking(talk)
    (one,) = hold(client=client, limits={META_THINKING: replace(ROOM, max_prompt_tokens=3)})
    assert (one.finish, one.sequences[0].trained_tokens, client.requests) == (
        FinishReason.PROMPT_TOO_LONG, 0, [],
    )  # fmt: skip
    assert "takes 3" in one.detail and one.value == 0.0


def test_what_befalls_a_request_ends_its_dialogue_alone():
    client = Talking(talk)
    client.failing = {(REASONING, 1): ValueError("no")}
    (one,) = hold(client=client)
    assert (one.finish, one.comparable, len(one.sequences)) == (FinishReason.ERROR, False, 2)
    assert one.detail == "ValueError: no" and one.scored.value == 0.0
    client = Talking(talk)
    client.failing = {(META_THINKING, 1): FinishReason.ABORTED}
    (one,) = hold(client=client)
    assert one.finish is FinishReason.ABORTED and chosen(one, 0) == client.sampled[0, META_THINKING]
    client.failing = {(META_THINKING, 0): EngineUnavailableError("gone")}
    with pytest.raises(EngineUnavailableError):
        hold(client=client)


# --- guards -----------------------------------------------------------------------------------


def empty(role: str, k: int, turn: int) -> str:
    return f"Go on.{END}" if role == META_THINKING else END


def test_empty_messages_are_counted_and_can_end_a_dialogue():
    (one,) = hold(empty, max_turns=3)
    assert one.detail == "max_turns" and [e["empty"] for e in one.events[:-1]] == [False, True] * 3
    (one,) = hold(empty, max_turns=3, guards={"empty_messages": 2})
    assert (one.detail, one.events[-1]["turns"]) == ("empty_message", 2)


def test_an_agent_that_says_the_same_again_can_end_a_dialogue():
    (one,) = hold(long_winded("nobody"), max_turns=5)
    assert [e["same"] for e in one.events[:-1:2]] == [1, 2, 3, 4, 5]
    (one,) = hold(long_winded("nobody"), max_turns=5, guards={"same_messages": 3})
    assert (one.detail, one.events[-1]["turns"], one.events[-2]["role"]) == ("same_message", 2, META_THINKING)


def test_a_message_that_repeats_itself_can_end_a_dialogue():
    def says(role, k, turn):
        return f"Go {turn}.{END}" if role == META_THINKING else f"{'ab' * 40}{END}"

    (one,) = hold(says, max_turns=2, message_tokens=100)
    assert one.events[1]["repetition"] > 0.9 and one.events[0]["repetition"] is None, "one is too short"
    (one,) = hold(says, max_turns=2, guards={"repeated_frac": 0.9}, message_tokens=100)
    assert (one.detail, one.events[-1]["turns"]) == ("repetition", 1)


def test_the_last_answer_of_a_finished_dialogue_is_no_collapse():
    def says(role, k, turn):
        if role == META_THINKING:
            return f"Go.{END}" if turn == 0 else FINISH
        return f"=2{END}"

    (one,) = hold(says, guards={"same_messages": 2, "empty_messages": 1})
    assert one.finish is FinishReason.STOP and not one.events[2]["empty"], "[FINISH] alone says something"


# --- thinking, hostile texts --------------------------------------------------------------------


def test_thinking_is_trained_and_not_passed_on():
    def says(role, k, turn):
        if role == META_THINKING:
            plan = f"<think>I could say {FINISH} now</think>Do it.{END}"
            return plan if turn == 0 else f"<think>fine</think>{FINISH}"
        return f"<think>=3</think>=2{END}"

    (one,) = hold(says)
    said, did = shown(one)
    assert did.startswith(f"<user>Q 1+1 I Do it.<assistant><think>=3</think>=2{END}<user>{FINISH}")
    assert said.count("=3") == 0 and turns_of(one, 0)[0].startswith(
        f"<think>I could say {FINISH} now</think>"
    )
    assert (one.final_text, one.value, one.events[-1]["turns"]) == ("=2", 1.0, 2)


def test_a_thinking_part_that_the_template_opens():
    def says(role, k, turn):
        return f"hm</think>{FINISH}" if role == META_THINKING else f"=3</think>=2{END}"

    (one,) = hold(says, template={"suffix": "<think>"})
    assert shown(one)[1].startswith(f"<user>Q 1+1 I {FINISH}<assistant><think>=3</think>=2")
    assert (one.final_text, one.value) == ("=2", 1.0)


@given(st.text(alphabet="<|turn>s/ab[FINISH]", max_size=30), st.text(alphabet="<|turn>s/b", max_size=30))
@settings(max_examples=40)
def test_no_text_becomes_a_control_token_of_the_others_list(instruction, answer):
    def says(role, k, turn):
        if role == META_THINKING:
            return instruction.replace(END, "") + END if turn < 2 else FINISH
        return answer.replace(END, "") + END

    (one,) = hold(says, max_turns=3)
    for number, text in enumerate(shown(one)):
        own = "".join(turns_of(one, number).values())
        assert text.count("<|turn|>") <= own.count("<|turn|>")


# --- frozen agents ------------------------------------------------------------------------------


class Recorded:
    """Implements `AnswerSource`: says what a script has it say, and keeps what it was shown."""

    def __init__(self, role: str) -> None:
        self.role, self.shown = role, []

    async def answer(self, request, k, messages, stop=(), sampling=None) -> ChatAnswer:
        self.shown.append([(one["role"], one["content"]) for one in messages])
        turn = sum(one["role"] == "assistant" for one in messages)
        return ChatAnswer(talk(self.role, k, turn).removesuffix(END))


@pytest.mark.parametrize("frozen", [META_THINKING, REASONING])
@pytest.mark.parametrize("segment", [None, 6])
def test_a_frozen_agent_takes_part_with_its_texts(frozen, segment):
    source = Recorded(frozen)
    policies = PolicySet((Policy(), Policy("other", PolicyKind.ENDPOINT)), {frozen: "other"})
    client = Talking(talk)
    (one,) = hold(client=client, policies=policies, sources={"other": source}, segment=segment)
    other = REASONING if frozen == META_THINKING else META_THINKING
    (uninterrupted,) = hold()
    (own,) = [sequence for sequence in uninterrupted.sequences if sequence.role == other]
    (sequence,) = one.sequences
    assert sequence.role == other
    assert sequence.response_ids.tolist() == own.response_ids.tolist()
    assert (one.finish, one.value, one.final_text) == (FinishReason.STOP, 1.0, "=2")
    last = source.shown[-1]
    if frozen == META_THINKING:
        assert last == [("user", "1+1"), ("assistant", "Do 0."), ("user", "Step.")]
    else:
        answer = f"Step. {FINISH}"
        assert last == [("user", "Q 1+1 I Do 0."), ("assistant", answer), ("user", f"Enough. {FINISH}")]


@pytest.mark.parametrize("frozen", [META_THINKING, REASONING])
def test_what_a_frozen_agent_refuses_is_not_the_other_agents_failure(frozen):
    class Refusing(Recorded):
        async def answer(self, request, k, messages, stop=(), sampling=None) -> ChatAnswer:
            if any(one["role"] == "assistant" for one in messages):
                return ChatAnswer("", finish=FinishReason.REFUSED, detail="content filter")
            return await super().answer(request, k, messages)

    policies = PolicySet((Policy(), Policy("other", PolicyKind.ENDPOINT)), {frozen: "other"})
    (one,) = hold(policies=policies, sources={"other": Refusing(frozen)})
    assert (one.finish, one.detail) == (FinishReason.REFUSED, "content filter")
    assert not one.comparable and one.sequences[0].trained_tokens


def test_a_frozen_agent_that_talks_on_has_ended_its_message_at_finish():
    """Its endpoint's limit cuts what nobody reads; without `[FINISH]` the message is cut."""

    class Chatty(Recorded):
        async def answer(self, request, k, messages, stop=(), sampling=None) -> ChatAnswer:
            assert stop == (FINISH,)
            return ChatAnswer(self.says, finish=FinishReason.LENGTH)

    policies = PolicySet((Policy(), Policy("other", PolicyKind.ENDPOINT)), {META_THINKING: "other"})
    ends = {f"Enough. {FINISH} And then": ("stop", None, 1.0), "Enough.": ("length", "message_cut", 0.0)}
    for says, end in ends.items():
        source = Chatty(META_THINKING)
        source.says = says
        answers = Talking(lambda role, k, turn: f"=2{END}")
        (one,) = hold(client=answers, policies=policies, sources={"other": source})
        assert (one.finish.value, one.detail, one.value) == end


# --- token in, token out ------------------------------------------------------------------------


def varied(role: str, k: int, turn: int) -> str:
    if k == 3 and turn == 1 and role == REASONING:
        return "x" * 90
    if role == META_THINKING and turn >= k:
        return f"Thanks, {k}. {FINISH} and more"
    text = f"{'Do' if role == META_THINKING else 'It is'} {turn} of {k}, =2 {FINISH if turn == k else ''}"
    return text + END


def same(members, others) -> None:
    for one, other in zip(members, others, strict=True):
        assert (one.text, one.final_text, one.finish, one.detail, one.reward) == (
            other.text, other.final_text, other.finish, other.detail, other.reward,
        )  # fmt: skip
        assert one.events == other.events
        for sequence, expected in zip(one.sequences, other.sequences, strict=True):
            assert equal_sequences(replace(sequence, versions=()), replace(expected, versions=()))


@lru_cache
def uninterrupted(size: int):
    return hold(client=Talking(varied, size), n=5, max_turns=4, message_tokens=60)


@given(st.integers(5, 60), st.sampled_from([1, 2]), st.integers(0, 5), st.sampled_from([1, 2]))
@settings(max_examples=8)
def test_pauses_new_processes_and_the_order_of_answers_change_nothing(segment, size, seed, delay):
    rules = {"max_turns": 4, "message_tokens": 60}
    client = Talking(varied, size, lambda name: (zlib.crc32(f"{name} {seed}".encode()) % 7) * delay)
    same(hold(client=client, n=5, segment=segment, **rules), uninterrupted(size))


@pytest.mark.parametrize("size", [1, 2])
def test_trained_is_what_was_sampled(size):
    client = Talking(varied, size)
    for one in hold(client=client, n=5, max_turns=4, message_tokens=60):
        for number, sequence in enumerate(one.sequences):
            assert chosen(one, number) == client.sampled[one.number, sequence.role]


def test_the_dialogues_of_the_property_end_differently():
    found = uninterrupted(1)
    ends = [(one.finish.value, one.detail, one.events[-1]["turns"]) for one in found]
    assert ends == [
        ("stop", None, 1), ("stop", None, 2), ("stop", None, 3), ("length", "message_cut", 2),
        ("limit", "max_turns", 4),
    ]  # fmt: skip
    assert all(np.isin(sequence.response_mask, (0, 1)).all() for one in found for sequence in one.sequences)
    assert PROBLEM.question in shown(found[0])[1]
