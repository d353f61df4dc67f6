from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from fake_tokenizers import AddedTokens

from marsrl_verl.core.types import FinishReason, Problem, Sample, SamplingSettings, StageInput
from marsrl_verl.rollout.single_call import ChatTokenizer, Completion, EngineUnavailableError, answer

END = 3


class CharacterTokenizer(AddedTokens):
    """One token per character; token 3 ends a sequence."""

    eos_token_id = END

    def __init__(self) -> None:
        super().__init__(("<|turn|>", "<think>"))

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, return_dict, **kwargs):
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"
        return {"input_ids": [ord(c) for c in text + kwargs.get("suffix", "")]}

    def decode(self, ids, **_kwargs):
        return "".join("</s>" if i == END else chr(i) for i in ids)


@dataclass
class ScriptedClient:
    """Gives prepared completions and keeps what it was asked."""

    texts: list[str]
    finish: FinishReason = FinishReason.STOP
    error: Exception | None = None
    calls: list[tuple] = field(default_factory=list)

    async def complete(self, request_id, prompt_ids, settings, max_tokens, n):
        self.calls.append((request_id, list(prompt_ids), max_tokens, n))
        if self.error is not None:
            raise self.error
        end = [END] if self.finish is FinishReason.STOP else []
        return [
            Completion([ord(c) for c in text] + end, [-0.1] * (len(text) + len(end)), self.finish, 7)
            for text in self.texts
        ]


SETTINGS = SamplingSettings(max_new_tokens=50, max_prompt_tokens=40)
INPUT = StageInput(
    "p1/solver.0",
    Problem("p1", "1+1", "2"),
    "solver",
    0,
    "solver",
    ({"role": "user", "content": "1+1"},),
    n=2,
)


def run(client, settings=SETTINGS, **template_kwargs):
    chat = ChatTokenizer(CharacterTokenizer(), template_kwargs)
    return asyncio.run(answer(INPUT, settings, client, chat))


def test_one_request_brings_the_whole_group():
    client = ScriptedClient(["a", "bc"])
    samples = run(client)
    assert client.calls == [("p1/solver.0", [ord(c) for c in "<user>1+1<assistant>"], 50, 2)]
    assert [s.sample_id for s in samples] == ["p1/solver.0#0", "p1/solver.0#1"]
    assert [s.text for s in samples] == ["a", "bc"]
    assert {s.policy_version for s in samples} == {7}


def test_sampled_ids_are_kept_with_the_end_token():
    (first, _) = run(ScriptedClient(["a", "b"]))
    assert first.response_ids == [ord("a"), END]
    assert len(first.rollout_log_probs) == 2


def test_only_text_after_the_thinking_part_is_passed_on():
    (first, second) = run(ScriptedClient(["<think>x</think>\nanswer", "plain"]))
    assert first.final_text == "answer"
    assert second.final_text == "plain"


def test_a_block_that_the_template_opened_must_be_closed():
    (first, second) = run(ScriptedClient(["still thinking", "x</think>done"]), suffix="<think>")
    assert first.final_text == ""
    assert second.final_text == "done"


def test_a_prompt_over_the_limit_is_never_sent():
    client = ScriptedClient(["a", "b"])
    samples = run(client, SamplingSettings(max_new_tokens=50, max_prompt_tokens=5))
    assert client.calls == []
    assert {s.finish_reason for s in samples} == {FinishReason.PROMPT_TOO_LONG}
    assert all(s.response_ids == [] and "takes 5" in s.error for s in samples)


def test_a_refused_request_is_data():
    samples = run(ScriptedClient([], error=ValueError("bad prompt")))
    assert [s.finish_reason for s in samples] == [FinishReason.ERROR] * 2
    assert "bad prompt" in samples[0].error


def test_a_dead_engine_ends_the_run():
    with pytest.raises(EngineUnavailableError):
        run(ScriptedClient([], error=EngineUnavailableError("gone")))


def test_a_truncated_response_has_its_reason():
    (first, _) = run(ScriptedClient(["abc", "abd"], finish=FinishReason.LENGTH))
    assert first.finish_reason is FinishReason.LENGTH
    assert not first.finished
    assert first.text == "abc"


def test_every_end_token_is_cut_off_and_kept_as_a_sampled_id():
    chat = ChatTokenizer(CharacterTokenizer(), end_ids=frozenset({ord("$")}))
    (first, second) = asyncio.run(answer(INPUT, SETTINGS, ScriptedClient(["a$", "b"]), chat))
    assert (first.text, second.text) == ("a", "b")
    assert first.response_ids == [ord("a"), ord("$"), END]


def test_a_spelt_out_control_token_does_not_reach_the_next_role():
    (first, second) = run(ScriptedClient(["a<|turn|>b", "<think>x</think>c"]))
    assert (first.text, first.final_text) == ("a b", "a b")
    assert (second.text, second.final_text) == ("<think>x</think>c", "c")


def test_completions_that_did_not_come_are_aborted_samples():
    (first, second) = run(ScriptedClient(["a"]))
    assert (first.text, first.finish_reason) == ("a", FinishReason.STOP)
    assert (second.sample_id, second.finish_reason) == ("p1/solver.0#1", FinishReason.ABORTED)
    assert "1 of 2" in second.error


def test_a_chat_that_the_template_refuses_is_data():
    class Refusing(CharacterTokenizer):
        def apply_chat_template(self, messages, **_kwargs):
            raise ValueError("roles must alternate")

    client = ScriptedClient(["a", "b"])
    samples = asyncio.run(answer(INPUT, SETTINGS, client, ChatTokenizer(Refusing())))
    assert client.calls == []
    assert {sample.finish_reason for sample in samples} == {FinishReason.ERROR}
    assert "roles must alternate" in samples[0].error


class ContinuingClient:
    """Answers each call with the next letters of the alphabet, as many as allowed, up to 12 in all."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    async def complete(self, request_id, prompt_ids, settings, max_tokens, n):
        self.calls.append((request_id, "".join(map(chr, prompt_ids)), max_tokens, n))
        done = len(prompt_ids) - len("<user>1+1<assistant>")
        ids = [ord("a") + k for k in range(done, min(12, done + max_tokens))]
        end = done + max_tokens > 12
        ids += [END] * end
        reason = FinishReason.STOP if end else FinishReason.LENGTH
        return [Completion(list(ids), [-0.5] * len(ids), reason, len(self.calls)) for _ in range(n)]


def test_a_response_grows_by_segments_until_it_ends():
    client, chat = ContinuingClient(), ChatTokenizer(CharacterTokenizer())
    settings = SamplingSettings(max_new_tokens=50, max_prompt_tokens=40, segment_tokens=5)
    item, rounds = INPUT, []
    while not rounds or rounds[-1][0].finish_reason is FinishReason.SEGMENT:
        samples = asyncio.run(answer(item, settings, client, chat))
        rounds.append(samples)
        item = replace(INPUT, unfinished=tuple(samples))
    assert [len(samples[0].response_ids) for samples in rounds] == [5, 10, 13]
    last = rounds[-1][1]
    assert (last.sample_id, last.text) == ("p1/solver.0#1", "abcdefghijkl")
    assert last.segments == [(5, 1), (10, 3), (13, 5)]
    assert last.token_versions == [1] * 5 + [3] * 5 + [5] * 3
    assert (last.new_tokens, len(last.rollout_log_probs)) == (3, 13)
    assert client.calls[1] == ("p1/solver.0", "<user>1+1<assistant>abcde", 5, 1)
    assert rounds[0][0].text == ""


def test_the_global_limit_ends_a_response_in_segments():
    settings = SamplingSettings(max_new_tokens=8, max_prompt_tokens=40, segment_tokens=5)
    client, chat = ContinuingClient(), ChatTokenizer(CharacterTokenizer())
    samples = asyncio.run(answer(INPUT, settings, client, chat))
    (cut, _) = asyncio.run(answer(replace(INPUT, unfinished=tuple(samples)), settings, client, chat))
    assert client.calls[-1][2] == 3
    assert (cut.finish_reason, cut.text) == (FinishReason.LENGTH, "abcdefgh")


def test_a_refused_segment_keeps_what_was_sampled():
    settings = SamplingSettings(max_new_tokens=50, max_prompt_tokens=40, segment_tokens=5)
    chat = ChatTokenizer(CharacterTokenizer())
    samples = asyncio.run(answer(INPUT, settings, ContinuingClient(), chat))
    refusing = ScriptedClient([], error=ValueError("too long"))
    (failed, _) = asyncio.run(answer(replace(INPUT, unfinished=tuple(samples)), settings, refusing, chat))
    assert (failed.finish_reason, len(failed.response_ids)) == (FinishReason.ERROR, 5)
    assert "too long" in failed.error
    assert failed.new_tokens == 0


def continuation(parent: str, tokens: int) -> StageInput:
    """The group that continues a response after so many tokens."""
    response = [ord("a") + k for k in range(8)]
    whole = Sample(parent, "p1/initial/0", [ord("?")], response, [-0.1] * 8, FinishReason.STOP, "", "")
    return replace(INPUT, group_id=f"{parent}/after-{tokens}", prefix=whole.beginning(tokens))


def asked_under(item: StageInput) -> set[str]:
    client = ScriptedClient(["x", "y"])
    asyncio.run(answer(item, SETTINGS, client, ChatTokenizer(CharacterTokenizer())))
    return {request_id for request_id, *_ in client.calls}


def test_all_that_continues_one_response_is_asked_under_its_id():
    early, late, other = continuation("r#0", 2), continuation("r#0", 6), continuation("r#1", 2)
    assert asked_under(early) == asked_under(late) == {"r#0"}
    assert asked_under(other) == {"r#1"}
    half = replace(late, unfinished=(late.prefix, late.prefix))
    assert asked_under(half) == {"r#0"}, "the next segments too"
    assert asked_under(INPUT) == {"p1/solver.0"}


class SeedClient(ContinuingClient):
    """Keeps the seed of every request under the tokens that it begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    async def complete(self, request_id, prompt_ids, settings, max_tokens, n):
        self.seeds.append(settings.seed)
        return await super().complete(request_id, prompt_ids, settings, max_tokens, n)


def seeds_of(*items: StageInput, seed: int | None = 1) -> list[int | None]:
    client, chat = SeedClient(), ChatTokenizer(CharacterTokenizer())
    settings = SamplingSettings(max_new_tokens=50, max_prompt_tokens=40, segment_tokens=5, seed=seed)
    for item in items:
        asyncio.run(answer(item, settings, client, chat))
    return client.seeds


def every_kind_of_request() -> list[StageInput]:
    """Two groups, the next two segments of the first, and two continuations of one response."""
    client, chat = ContinuingClient(), ChatTokenizer(CharacterTokenizer())
    settings = SamplingSettings(max_new_tokens=50, max_prompt_tokens=40, segment_tokens=5)
    begun = asyncio.run(answer(INPUT, settings, client, chat))
    later = asyncio.run(answer(replace(INPUT, unfinished=tuple(begun)), settings, client, chat))
    return [
        INPUT,
        replace(INPUT, group_id="p1/solver.1"),
        replace(INPUT, unfinished=tuple(begun)),
        replace(INPUT, unfinished=tuple(later)),
        continuation("r#0", 2),
        continuation("r#0", 6),
    ]


def test_every_request_has_a_seed_of_its_own():
    seeds = seeds_of(*every_kind_of_request())
    assert len(seeds) == 8, "a request for each segment of each sample"
    assert len(set(seeds)) == 8
    assert not set(seeds) & set(seeds_of(*every_kind_of_request(), seed=2))


def test_the_seeds_do_not_depend_on_the_order_of_requests():
    there, back = every_kind_of_request(), every_kind_of_request()[::-1]
    assert sorted(seeds_of(*there)) == sorted(seeds_of(*back))


def test_without_a_seed_the_engine_draws():
    assert set(seeds_of(*every_kind_of_request(), seed=None)) == {None}
