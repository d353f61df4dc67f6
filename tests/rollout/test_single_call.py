from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from marsrl_verl.core.types import FinishReason, Problem, SamplingSettings, StageInput
from marsrl_verl.rollout.single_call import ChatTokenizer, Completion, EngineUnavailableError, answer

END = 3


class CharacterTokenizer:
    """One token per character; token 3 ends a sequence."""

    eos_token_id = END
    all_special_tokens = ("<|turn|>", "<think>")

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
    assert (first.text, first.final_text) == ("ab", "ab")
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
