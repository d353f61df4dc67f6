"""Conversations: what they send, what they append, and that pauses change nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from equal_sequences import equal_sequences
from scripted_client import PieceTokenizer, request, runner

from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import Sequence, token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.generation import Completion, TopLogProbs
from marsrl_verl.testing.client import ScriptedClient

LIMITS = Sampling(max_new_tokens=400, max_prompt_tokens=200)
PROMPT = "<user>1+1<assistant>"


def conversation_with(client: Any, sampling: Sampling = LIMITS, **more: Any) -> Conversation:
    item = request(n=1)
    context = _context(client, item, {"solver": sampling, "other": sampling}, **more)
    return context.conversation(0, "solver", item.messages)


def _context(client: Any, item, sampling, **more: Any) -> RolloutContext:
    return RolloutContext(runner(client, **more), item, sampling)


def merging(merge: Any, tokenizer: Any = None, builder: Any = None) -> RolloutContext:
    """Of one conversation with a policy that writes `abU`, in which this merges messages."""
    made = runner(ScriptedClient(writes("abU"), tokenizer or PieceTokenizer()))
    made.template_builder = builder or (lambda: SimpleNamespace(merge=merge))
    return RolloutContext(made, request(n=1), {"solver": LIMITS})


def begun(context: RolloutContext) -> Conversation:
    """The policy has written its turn."""
    one = context.conversation(0, "solver", context.request.messages)
    sample(one)
    return one


class Bare(PieceTokenizer):
    """Whose template writes the last message alone."""

    def apply_chat_template(self, messages, **kwargs):
        shown = super().apply_chat_template(messages, **kwargs)
        return shown if kwargs["tokenize"] else messages[-1]["content"]


QUESTION = [{"role": "user", "content": "q"}]


def sample(conversation: Conversation, **arguments: Any) -> Completion:
    return asyncio.run(conversation.sample(**arguments))


def writes(text: str):
    """A policy that writes one text into every turn."""
    return lambda prompt: text[len(prompt.rpartition("<assistant>")[2]) :]


# --- stop strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("first", range(1, 24, 2))
def test_a_stop_string_holds_across_requests(first, size):
    client = ScriptedClient(writes("so it is <|stop|> and more</s>"), PieceTokenizer(size))
    whole = conversation_with(client)
    once = sample(whole, stop=("<|stop|>",))
    parts = conversation_with(client)
    probe = sample(parts, max_tokens=first, stop=("<|stop|>",))
    if probe.stop is None:
        probe = sample(parts, stop=("<|stop|>",))
    assert (probe.finish, probe.stop) == (once.finish, once.stop) == (FinishReason.STOP, "<|stop|>")
    assert equal_sequences(whole.sequence(), parts.sequence())


def test_of_several_stop_strings_the_one_that_ends_first_holds():
    client = ScriptedClient(writes("a[END][STOP]"))
    parts = conversation_with(client)
    sample(parts, max_tokens=3, stop=("[STOP]", "[END]"))
    assert sample(parts, stop=("[STOP]", "[END]")).stop == "[END]"
    assert parts.turn_text() == "a[END]"


def test_a_stop_string_is_met_once():
    """A text that stands between two runs is not part of what the policy wrote."""
    client = ScriptedClient(lambda prompt: "o]p</s>" if prompt.endswith("st") else "a[stop]b")
    one = conversation_with(client)
    assert sample(one, stop=("[stop]",)).stop == "[stop]"
    one.append_text("[st")
    assert sample(one, stop=("[stop]",)).stop is None


def test_a_stop_string_that_a_prefix_ends_with_was_met_already():
    """A continuation of a response that begins after a call does not end with that call."""
    client, item = ScriptedClient(lambda _: "b[stop]c</s>"), request(n=1)
    begun = Sequence("solver", list(map(ord, PROMPT)), list(map(ord, "a[stop]")), [-1.0] * 7)
    one = _context(client, item, {"solver": LIMITS}).conversation(0, "solver", item.messages, prefix=begun)
    found = sample(one, stop=("[stop]",))
    assert (len(found.token_ids), found.stop) == (7, "[stop]")
    assert one.turn_text() == "a[stop]b[stop]"


def test_the_top_log_probs_end_where_the_completion_does():
    class Ranking(ScriptedClient):
        async def generate(self, *arguments, **more):
            found = await super().generate(*arguments, **more)
            return [replace(one, top=_top(len(one.token_ids))) for one in found]

    one = conversation_with(Ranking(writes("ab[x] cd</s>")))
    sample(one, max_tokens=4, stop=("[x]",), top_log_probs=2)
    found = sample(one, stop=("[x]",), top_log_probs=2)
    assert (len(found.token_ids), found.top.ids.shape, found.top.log_probs.shape) == (1, (1, 2), (1, 2))


def _top(count: int) -> TopLogProbs:
    return TopLogProbs(np.zeros((count, 2), np.int32), np.zeros((count, 2), np.float32))


# --- limits ---------------------------------------------------------------------------------------


def test_limits_of_a_call_a_round_and_a_response_are_told_apart():
    segments = replace(LIMITS, segment_tokens=6, max_new_tokens=8)
    one = conversation_with(ScriptedClient(writes("x" * 100)), segments)
    assert sample(one, max_tokens=2).finish is FinishReason.LENGTH
    assert (sample(one).finish, len(one)) == (FinishReason.PAUSED, 6)
    assert (sample(one).finish, len(one)) == (FinishReason.PAUSED, 6), "nothing is asked any more"
    again = _context(ScriptedClient(writes("x" * 100)), request(n=1), {"solver": segments}).conversation(
        0, "solver", (), prefix=one.sequence(), state=one.state()
    )
    assert (sample(again).finish, len(again), again.tokens_left) == (FinishReason.LENGTH, 8, 0)
    assert sample(again).finish is FinishReason.LENGTH


def test_a_structured_completion_is_never_split_and_its_forced_tokens_are_masked():
    client = ScriptedClient(writes('{"a"}</s>'))
    one = conversation_with(client, replace(LIMITS, segment_tokens=2))
    found = sample(one, structured={"regex": ".*"})
    assert (found.finish, len(found.token_ids)) == (FinishReason.STOP, 6)
    assert client.requests[0]["decoding"].max_tokens == 400
    assert client.requests[0]["decoding"].structured == {"regex": ".*"}
    assert one.sequence().response_mask.tolist() == [0, 0, 1, 0, 0, 1]
    assert (one.sequence().rollout_log_probs == 0).tolist() == [True, True, False, True, True, False]


def test_a_conversation_that_failed_is_not_asked_again():
    class Refusing(ScriptedClient):
        async def generate(self, *arguments, **more):
            self.requests.append({})
            raise ValueError("no")

    client = Refusing(writes(""))
    one = conversation_with(client)
    assert sample(one).finish is FinishReason.ERROR
    one.append([{"role": "user", "content": "?"}])
    assert sample(one).finish is FinishReason.ERROR
    assert (one.detail, len(one), len(client.requests)) == ("ValueError: no", 0, 1)


# --- appending ------------------------------------------------------------------------------------


def shown(conversation: Conversation) -> str:
    return PieceTokenizer().decode(conversation.input_ids().tolist())


@pytest.mark.parametrize("stop", [(), ("two",)])
def test_messages_close_the_turn_and_open_the_next_one(stop):
    one = conversation_with(ScriptedClient(writes("one two</s>")))
    sample(one, stop=stop)
    one.append([{"role": "user", "content": "and<|turn|>?"}])
    assert shown(one) == f"{PROMPT}one two</s><user>and ?<assistant>"
    sampled = len("one two") + (not stop)
    assert one.sequence().response_mask.tolist() == [1] * sampled + [0] * (len(one) - sampled)
    assert one.sequence().rollout_log_probs[sampled:].any() == np.False_
    sample(one)
    assert shown(one).endswith("<assistant>one two</s>")
    assert one.turn_text() == "one two"


def test_text_in_a_turn_has_no_control_tokens():
    one = conversation_with(ScriptedClient(writes("ab")))
    sample(one, max_tokens=1)
    one.append_text("<result><|turn|>4</result>")
    assert shown(one) == f"{PROMPT}a<result> 4</result>"
    assert one.run_tokens == 0


def test_messages_need_a_turn_before_them():
    one = conversation_with(ScriptedClient(writes("ab</s>")))
    with pytest.raises(ValueError, match="empty turn"):
        one.append([{"role": "user", "content": "?"}])


def raises(*_: Any) -> Any:
    raise ValueError("roles must alternate")


def test_a_template_that_refuses_a_message_ends_the_conversation():
    one = begun(merging(raises))
    one.append(QUESTION)
    assert sample(one).finish is FinishReason.ERROR
    ended = one.trajectory()
    assert ended.failed_by == "chat template", "not the engine's failure"
    assert ended.sequence.trained_tokens == 3
    assert "roles must alternate" in ended.detail


def test_a_template_with_which_no_chat_can_grow_ends_the_run():
    """It is no fault of a rollout: all of them would end so."""
    one = begun(merging(None, builder=raises))
    with pytest.raises(ValueError, match="roles must alternate"):
        one.append(QUESTION)


@pytest.mark.parametrize(("begins", "expected"), [("U", "abUq>"), ("T", "abTq>")])
def test_a_sampled_token_of_the_next_turn_goes_unless_it_fits(begins, expected):
    """As with GLM, where the token that begins a user's turn ends the assistant's."""
    merged = [*map(ord, f"{begins}q>")]
    one = begun(merging(lambda previous, updated, tail, tools: [*tail[:-1], *merged], Bare()))
    one.append(QUESTION)
    sequence = one.sequence()
    assert "".join(map(chr, sequence.response_ids)) == expected
    kept = 3 if begins == "U" else 2
    assert sequence.response_mask.tolist() == [1] * kept + [0] * (5 - kept)
    assert sequence.versions == ((5, 7),), "a round is one part, whatever was cut in it"


def test_a_template_that_drops_what_an_earlier_round_wrote_ends_the_conversation():
    """It has been handed over, and is trained as it was sampled."""
    context = merging(lambda previous, updated, tail, tools: [*tail[:-1], ord("?")], Bare())
    first = begun(context)
    again = context.conversation(0, "solver", QUESTION, prefix=first.sequence(), state=first.state())
    again.append(QUESTION)
    assert again.finish is FinishReason.ERROR and "drops the last 1 tokens" in again.detail
    assert equal_sequences(again.sequence().truncate(3), first.sequence())


# --- forks, states, sequences ---------------------------------------------------------------------


def test_a_fork_has_the_messages_of_its_beginning():
    one = conversation_with(ScriptedClient(writes("ab</s>")))
    sample(one)
    one.append([{"role": "user", "content": "next"}])
    sample(one)
    early, late = one.fork(1, at=2), one.fork(2)
    assert (shown(early), early.turn_text(), early.trajectory_id) == (f"{PROMPT}ab", "ab", "p1/solver.0#1")
    early.append([{"role": "user", "content": "other"}])
    assert shown(early) == f"{PROMPT}ab</s><user>other<assistant>"
    assert equal_sequences(late.sequence().truncate(3), one.sequence().truncate(3))


def test_what_a_fork_begins_with_counts_in_its_round():
    one = conversation_with(ScriptedClient(writes("x" * 50)), replace(LIMITS, segment_tokens=10))
    sample(one, max_tokens=6)
    early, late = one.fork(1, at=2), one.fork(2)
    sample(early), sample(late), sample(one)
    assert [len(some) for some in (early, late, one)] == [10, 10, 10]
    assert [some.finish for some in (early, late, one)] == [FinishReason.PAUSED] * 3


@pytest.mark.parametrize("raises", [True, False])
def test_a_fork_is_the_same_before_and_after_a_request_failed_there(raises):
    class Fails(ScriptedClient):
        async def generate(self, policy, prompt_ids, decoding, *, name, **more):
            if name.endswith("#0") and self.requests:
                if raises:
                    raise ValueError("no")
                return []
            return await super().generate(policy, prompt_ids, decoding, name=name, **more)

    one = conversation_with(Fails(writes("abcd</s>")))
    sample(one, max_tokens=2)
    before = one.fork(1, at=2)
    assert sample(one).finish in (FinishReason.ERROR, FinishReason.ABORTED)
    after = one.fork(2, at=2)
    for fork in (before, after):
        assert (fork.finish, fork.detail) == (None, None)
        assert sample(fork).finish is FinishReason.STOP and fork.turn_text() == "abcd"


def test_a_fork_of_what_can_not_be_asked_can_not_be_asked():
    one = conversation_with(ScriptedClient(writes("ab</s>")), replace(LIMITS, max_prompt_tokens=1))
    assert sample(one.fork(1, at=0)).finish is FinishReason.PROMPT_TOO_LONG


def test_a_sequence_has_a_part_for_each_round():
    client = ScriptedClient(writes("x" * 50))
    one = conversation_with(client, replace(LIMITS, segment_tokens=4))
    sample(one, max_tokens=1)
    one.append_text("yy")
    sample(one)
    first = one.sequence()
    assert (first.versions, first.new_tokens) == (((6, 7),), 6)
    client.version = 8
    context = _context(client, request(n=1), {"solver": LIMITS})
    again = context.conversation(0, "solver", (), prefix=first, state=one.state())
    assert again.sequence().versions == ((6, 7), (6, 7)), "a round without a token"
    again.append_text("z")
    sample(again, max_tokens=2)
    assert again.sequence().versions == ((6, 7), (9, 8))


def test_conversations_of_one_trajectory_have_seeds_of_their_own():
    client, item = ScriptedClient(writes("a")), request(n=2)
    seeded = replace(LIMITS, seed=5)
    context = _context(client, item, {"solver": seeded, "other": seeded})
    for one in [context.conversation(0, role, item.messages) for role in ("solver", "solver", "other")]:
        sample(one)
    begun_later = context.conversation(3, "solver", item.messages)
    for one in (*(context.conversation(1, "solver", item.messages) for _ in range(2)), *[begun_later] * 2):
        asyncio.run(one.sample_n(2))
    seeds = [one["decoding"].seed for one in client.requests]
    assert seeds[0] == seeded.request_seed("p1/solver.0#0", 0)
    assert seeds[3] == seeds[5] == seeded.request_seed("p1/solver.0", 0)
    assert len({*seeds}) == 6


def test_generators_depend_on_group_and_names_alone():
    def drawn(name: str, *names) -> float:
        return _context(None, request(name), {}).rng(*names).random()

    assert drawn("g", 1, "a") == drawn("g", 1, "a")
    assert len({drawn("g", 1), drawn("g", "1"), drawn("h", 1), drawn("g")}) == 4


def test_a_policy_of_text_alone_has_no_conversation():
    policies = PolicySet((Policy(), Policy("big", PolicyKind.ENDPOINT)), {"solver": "big"})
    context = _context(None, request(), {"solver": LIMITS}, policies=policies)
    with pytest.raises(ValueError, match="use chat"):
        context.conversation(0, "solver", request().messages)


def test_tools_are_shown_to_the_template():
    item, client = request(n=1), ScriptedClient(writes("a</s>"))
    context = _context(client, item, {"solver": LIMITS})
    one = context.conversation(0, "solver", item.messages, tools=({"name": "search"},))
    assert shown(one) == f"[search]{PROMPT}"
    assert one.state()["tools"] == [{"name": "search"}]


def test_a_completion_without_tokens_leaves_everything_as_it_was():
    class Silent(ScriptedClient):
        async def generate(self, *arguments, **more):
            return [Completion(token_ids([]), np.zeros(0, np.float32), FinishReason.ABORTED)]

    one = conversation_with(Silent(writes("")))
    assert sample(one).finish is FinishReason.ABORTED
    assert (len(one), one.sequence().versions) == (0, ((0, 0),))


@pytest.mark.parametrize("grow", ["append_text", "append"])
def test_what_is_appended_makes_no_response_longer_than_its_limit(grow):
    """Rows are planned for at most so many tokens."""
    one = conversation_with(ScriptedClient(writes("ab</s>")), replace(LIMITS, max_new_tokens=9))
    sample(one)
    text = "a result of many tokens"
    one.append_text(text) if grow == "append_text" else one.append([{"role": "tool", "content": text}])
    assert (len(one), one.tokens_left) == (9, 0)
    assert sample(one).finish is FinishReason.LENGTH
    assert one.sequence().response_mask.tolist() == [1, 1, 1] + [0] * 6


@pytest.mark.parametrize(
    ("together", "new", "left"), [(9, 20, 9), (20, 9, 9), (0, 9, 0), (-1, 9, 0)], ids=str
)
def test_prompt_and_response_can_have_a_limit_together(together, new, left):
    """What the prompt leaves free; the limit of the response holds beside it."""
    limits = replace(LIMITS, max_new_tokens=new, max_sequence_tokens=len(PROMPT) + together)
    one = conversation_with(ScriptedClient(writes("a" * 30)), limits)
    assert one.tokens_left == left
    assert (sample(one).finish, len(one)) == (FinishReason.LENGTH, left)
    ends = conversation_with(ScriptedClient(writes("ab</s>")), limits)
    assert (sample(ends).finish, len(ends)) == ((FinishReason.STOP, 3) if left else (FinishReason.LENGTH, 0))
