"""One request, n calls: fresh, from a prefix, and on from a pause."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from equal_sequences import equal_sequences
from scripted_client import request, run_once, run_rounds

from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import Sequence, token_ids
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.context import RolloutContext, RolloutResources
from marsrl_verl.rollout.generation import Completion, EngineUnavailableError
from marsrl_verl.rollout.speakers import FrozenSpeaker
from marsrl_verl.testing.client import END, CharacterTokenizer, ScriptedClient

SETTINGS = Sampling(max_new_tokens=50, max_prompt_tokens=40)
SEGMENTS = replace(SETTINGS, segment_tokens=5)
PROMPT = "<user>1+1<assistant>"


@dataclass
class PreparedClient:
    """Gives prepared texts, or an error, and keeps what it was asked."""

    texts: list[str]
    finish: FinishReason = FinishReason.STOP
    error: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        self.calls.append(
            {"session": session, "prompt": prompt_ids.tolist(), "max": decoding.max_tokens, "n": n}
        )
        if self.error is not None:
            raise self.error
        end = [END] if self.finish is FinishReason.STOP else []
        answers = [[*map(ord, text), *end] for text in self.texts]
        log_probs = [np.full(len(ids), -0.1, dtype=np.float32) for ids in answers]
        return [
            Completion(token_ids(ids), some, self.finish, version=7)
            for ids, some in zip(answers, log_probs, strict=True)
        ]


def run(client, settings=SETTINGS, **template):
    return run_once(client, request(), settings, template=template).trajectories


def test_one_request_brings_the_whole_group():
    client = PreparedClient(["a", "bc"])
    members = run(client)
    assert client.calls == [{"session": "p1/solver.0", "prompt": [*map(ord, PROMPT)], "max": 50, "n": 2}]
    assert [one.trajectory_id for one in members] == ["p1/solver.0#0", "p1/solver.0#1"]
    assert [one.text for one in members] == ["a", "bc"]
    assert members[0].sequence.response_ids.tolist() == [ord("a"), END], "sampled ids, with the end"
    assert members[0].sequence.response_mask.tolist() == [1, 1]
    assert len(members[0].sequence.rollout_log_probs) == 2
    assert {one.sequence.version for one in members} == {7}
    assert {(one.sequence.role, one.sequence.policy) for one in members} == {("solver", "shared")}
    assert members[0].sequence.prompt_ids is members[1].sequence.prompt_ids
    assert [one.value for one in members] == [1.0, 2.0], "scored"


@pytest.mark.parametrize(
    ("text", "shown", "final", "template"),
    [
        ("<think>x</think>\nanswer", "<think>x</think>\nanswer", "answer", {}),
        ("still thinking", "still thinking", "", {"suffix": "<think>"}),
        ("x</think>done", "x</think>done", "done", {"suffix": "<think>"}),
        ("a<|turn|>b", "a b", "a b", {}),  # no control token reaches the next role
    ],
)
def test_what_is_passed_on(text, shown, final, template):
    (one, _) = run(PreparedClient([text, "b"]), **template)
    assert (one.text, one.final_text) == (shown, final)


def test_a_prompt_over_the_limit_is_never_sent():
    client = PreparedClient(["a", "b"])
    members = run(client, Sampling(max_new_tokens=50, max_prompt_tokens=5))
    assert client.calls == []
    assert {one.finish for one in members} == {FinishReason.PROMPT_TOO_LONG}
    assert all(one.tokens == 0 and "takes 5" in one.detail for one in members)
    assert all(one.sequence.prompt_ids.tolist() == [*map(ord, PROMPT)] for one in members)


def test_a_dead_engine_ends_the_run():
    with pytest.raises(EngineUnavailableError):
        run(PreparedClient([], error=EngineUnavailableError("gone")))


@pytest.mark.parametrize(
    ("client", "finish", "tokens", "detail"),
    [
        (PreparedClient([], error=ValueError("bad prompt")), FinishReason.ERROR, 0, "bad prompt"),
        (PreparedClient(["abc"] * 2, finish=FinishReason.LENGTH), FinishReason.LENGTH, 3, None),
        (PreparedClient(["a", "b"], finish=FinishReason.ABORTED), FinishReason.ABORTED, 1, "gave"),
    ],
    ids=["refused", "truncated", "given up"],
)
def test_what_did_not_end_has_its_reason(client, finish, tokens, detail):
    (one, other) = run(client)
    assert one.finish is other.finish is finish and one.tokens == tokens and not one.finished
    assert one.comparable == (finish is FinishReason.LENGTH)
    assert detail is None or detail in one.detail


def test_every_end_token_is_cut_off_and_kept_as_a_sampled_id():
    chat = ChatTokenizer(CharacterTokenizer(), end_ids=frozenset({ord("$")}))
    (first, second) = run_once(PreparedClient(["a$", "b"]), request(), SETTINGS, chat=chat).trajectories
    assert (first.text, second.text) == ("a", "b")
    assert first.sequence.response_ids.tolist() == [ord("a"), ord("$"), END]


def test_completions_that_did_not_come_are_aborted_trajectories():
    (first, second) = run(PreparedClient(["a"]))
    assert (first.text, first.finish) == ("a", FinishReason.STOP)
    assert (second.trajectory_id, second.finish) == ("p1/solver.0#1", FinishReason.ABORTED)
    assert "1 of 2" in second.detail


def test_a_chat_that_the_template_refuses_is_data():
    class Refusing(CharacterTokenizer):
        def apply_chat_template(self, messages, **_kwargs):
            raise ValueError("roles must alternate")

    client = PreparedClient(["a", "b"])
    members = run_once(client, request(), SETTINGS, chat=ChatTokenizer(Refusing())).trajectories
    assert client.calls == []
    assert {(one.finish, one.failed_by) for one in members} == {(FinishReason.ERROR, "chat template")}
    assert "roles must alternate" in members[0].detail


class Alphabet(ScriptedClient):
    """Answers with the next letters of the alphabet, up to 12 in all; every answer has its own version."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "abcdefghijkl</s>"[len(prompt) - len(PROMPT) :], version=0)

    async def generate(self, *arguments, **more):
        self.version += 1
        return await super().generate(*arguments, **more)


def test_a_response_grows_by_segments_until_it_ends():
    client = Alphabet()
    item, rounds = request(), []
    while not rounds or rounds[-1][0].paused:
        output = run_once(client, item, SEGMENTS)
        rounds.append(output.trajectories)
        item = request().resumed(output)
    assert [one[0].tokens for one in rounds] == [5, 10, 13]
    last = rounds[-1][1]
    assert (last.trajectory_id, last.text) == ("p1/solver.0#1", "abcdefghijkl")
    assert last.sequence.versions == ((5, 1), (10, 3), (13, 5))
    assert last.sequence.token_versions().tolist() == [1] * 5 + [3] * 5 + [5] * 3
    assert (last.new_tokens, len(last.sequence.rollout_log_probs)) == (3, 13)
    asked = client.requests[1]
    assert (asked["session"], asked["prompt"], asked["n"]) == ("p1/solver.0", f"{PROMPT}abcde", 1)
    assert asked["decoding"].max_tokens == 5
    assert rounds[0][0].text == ""
    assert [one.reward is None for one in rounds[0]] == [True, True]


def test_only_what_is_paused_goes_on():
    client = Alphabet()
    begun = run_once(client, request(), SEGMENTS)
    ended = replace(begun.trajectories[0], finish=FinishReason.STOP, sequences=[])
    output = run_once(
        client, request().resumed(RolloutOutput("p1/solver.0", [ended, begun.trajectories[1]])), SEGMENTS
    )
    assert [one.trajectory_id for one in output.trajectories] == ["p1/solver.0#1"]


def test_a_refused_segment_keeps_what_was_sampled():
    begun = run_once(Alphabet(), request(), SEGMENTS)
    refusing = PreparedClient([], error=ValueError("too long"))
    (failed, _) = run_once(refusing, request().resumed(begun), SEGMENTS).trajectories
    assert (failed.finish, failed.tokens) == (FinishReason.ERROR, 5)
    assert "too long" in failed.detail
    assert failed.new_tokens == 0
    assert failed.sequence.versions == ((5, 1), (5, 1))


def continuation(parent: str, tokens: int, n: int = 2):
    """The group that continues a response after so many tokens."""
    response = [ord("a") + k for k in range(8)]
    whole = Sequence("solver", [*map(ord, PROMPT)], response, [-0.1] * 8, versions=((8, 4),))
    return request(f"{parent}/after-{tokens}", n, parent_id=parent, prefix=whole.truncate(tokens))


def test_a_prefix_is_the_beginning_of_every_member():
    (first, second) = run_once(Alphabet(), continuation("r#0", 6), SETTINGS).trajectories
    assert first.text == second.text == "abcdefghijkl"
    assert first.sequence.versions == ((6, 4), (13, 1))
    assert first.sequence.rollout_log_probs[:6].tolist() == pytest.approx([-0.1] * 6)
    assert first.new_tokens == 7


def test_a_prefix_that_fills_the_limit_is_not_asked():
    client = Alphabet()
    full = replace(SETTINGS, max_new_tokens=6)
    (first, _) = run_once(client, continuation("r#0", 6), full).trajectories
    assert (first.finish, first.tokens, client.requests) == (FinishReason.LENGTH, 6, [])


def asked_under(item) -> set[str]:
    client = PreparedClient(["x", "y"])
    run_once(client, item, SETTINGS)
    return {call["session"] for call in client.calls}


def test_all_that_continues_one_response_is_asked_under_its_id():
    early, late, other = continuation("r#0", 2), continuation("r#0", 6), continuation("r#1", 2)
    assert asked_under(early) == asked_under(late) == {"r#0"}
    assert asked_under(other) == {"r#1"}
    half = late.resumed(run_once(Alphabet(), late, replace(SEGMENTS, segment_tokens=1)))
    assert asked_under(half) == {"r#0"}, "the next segments too"
    assert asked_under(request()) == {"p1/solver.0"}


def every_kind_of_request() -> list:
    """Two groups, the next two segments of the first, and two continuations of one response."""
    begun = run_once(Alphabet(), request(), SEGMENTS)
    later = run_once(Alphabet(), request().resumed(begun), SEGMENTS)
    return [
        request(),
        request("p1/solver.1"),
        request().resumed(begun),
        request().resumed(later),
        continuation("r#0", 2),
        continuation("r#0", 6),
    ]


def seeds_of(*items, seed: int | None = 1) -> list[int | None]:
    client = Alphabet()
    for item in items:
        run_once(client, item, replace(SEGMENTS, seed=seed))
    return [asked["decoding"].seed for asked in client.requests]


def test_every_request_has_a_seed_of_its_own():
    """A run goes on with the same tokens after an update of this package: the names stay as they are."""
    named = replace(SEGMENTS, seed=1)
    seeds = seeds_of(*every_kind_of_request())
    assert seeds == [
        named.request_seed(*name)
        for name in (
            ("p1/solver.0", 0),
            ("p1/solver.1", 0),
            ("p1/solver.0#0", 5),
            ("p1/solver.0#1", 5),
            ("p1/solver.0#0", 10),
            ("p1/solver.0#1", 10),
            ("r#0/after-2", 2),
            ("r#0/after-6", 6),
        )
    ]
    assert len(set(seeds)) == 8 and not set(seeds) & set(seeds_of(*every_kind_of_request(), seed=2))
    assert set(seeds_of(*every_kind_of_request(), seed=None)) == {None}, "the engine draws"


def test_the_seeds_do_not_depend_on_the_order_of_requests():
    there, back = every_kind_of_request(), every_kind_of_request()[::-1]
    assert sorted(seeds_of(*there)) == sorted(seeds_of(*back))


def spells_out(prompt: str) -> str:
    """A policy that writes a text of its own, in one piece or several."""
    text = "<think>one and one</think>It is 2.</s>"
    return text[len(prompt) - len(PROMPT) :]


@pytest.mark.parametrize("segment", [1, 7, 30, 31, 32, 49])
def test_a_response_is_the_same_in_one_piece_from_a_prefix_and_in_segments(segment):
    (whole, _), rounds = run_rounds(ScriptedClient(spells_out), request(), {"solver": SETTINGS})
    assert (rounds, whole.final_text) == (1, "It is 2.")
    sampling = {"solver": replace(SETTINGS, segment_tokens=segment)}
    paused, rounds = run_rounds(ScriptedClient(spells_out), request(), sampling)
    assert rounds == -(-whole.tokens // segment)
    begins = replace(request(), prefix=whole.sequence.truncate(4), parent_id="r#0")
    branched, _ = run_rounds(ScriptedClient(spells_out), begins, sampling)
    for one in (*paused, *branched):
        same = replace(one.sequence, versions=whole.sequence.versions)
        assert equal_sequences(same, whole.sequence)
        assert (one.text, one.final_text, one.finish) == (whole.text, whole.final_text, whole.finish)


def test_a_policy_of_text_alone_is_asked_for_a_chat():
    class Source:
        async def answer(self, request, k, messages, stop=(), sampling=None):
            return ChatAnswer(f"{k}: {messages[0]['content']}<|turn|>", reasoning="hm")

    policies = PolicySet((Policy(), Policy("big", PolicyKind.JSONL)), {"solver": "big"})
    client = PreparedClient([])
    output = run_once(client, request(), SETTINGS, policies=policies, sources={"big": Source()})
    assert [one.text for one in output.trajectories] == [
        f"<think>\nhm\n</think>\n\n{k}: 1+1 " for k in range(2)
    ]
    assert all(one.external and one.finished and one.reward is not None for one in output.trajectories)
    assert client.calls == []


def test_who_is_asked_for_a_chat_is_in_the_request():
    class Source:
        async def answer(self, request, k, messages, stop=(), sampling=None):
            return ChatAnswer(request.role)

    policies = PolicySet((Policy(), Policy("big", PolicyKind.JSONL)), {"judge": "big"})
    chat = ChatTokenizer(CharacterTokenizer(), {})
    resources = RolloutResources(PreparedClient([]), chat, None, policies, {"big": Source()})
    context = RolloutContext(resources, request(), {"solver": SETTINGS})
    assert asyncio.run(context.chat(0, "judge", [])).text == "judge"


def test_a_frozen_agent_is_held_to_no_form():
    with pytest.raises(ValueError, match="judge has a frozen policy"):
        asyncio.run(FrozenSpeaker(None, 0, "judge", []).speak(0, None, (), {"json": {}}))
