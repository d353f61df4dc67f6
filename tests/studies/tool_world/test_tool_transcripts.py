"""Transcripts of tool use: what the careful way does, how often the careless one is taken, what is learnt."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.demo.problems import Split
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, check_builder
from marsrl_verl.rollout.tool_protocol.tags import TagProtocol, wrapped
from studies.worlds.tool_world.agent import HermesCalls, TinyTemplate
from studies.worlds.tool_world.problems import Drawer, Kind, ToolProblem
from studies.worlds.tool_world.tokenizer import CHAT_TEMPLATE, END, WORDS, build_tokenizer, vocabulary
from studies.worlds.tool_world.transcripts import (
    CAREFUL,
    DEFAULT_HABITS,
    Habits,
    Protocol,
    draw_transcript,
    guess,
)
from studies.worlds.tool_world.warm_start import TranscriptEncoder, draw_drill

SEEDS = st.integers(0, 2**32)
SCHEMAS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": {argument: {"type": "string"}}}},
    }
    for name, argument in (("python", "code"), ("search", "query"))
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def problems():
    return Drawer(Split.WARM_START, seed=None)


def text_of(transcript) -> str:
    return "".join(piece.text for piece in transcript.pieces)


def is_right(problem: ToolProblem, transcript) -> bool:
    found = boxed_answer(text_of(transcript))
    return found is not None and found.text == str(problem.answer)


@given(SEEDS, st.sampled_from(Protocol))
def test_the_careful_way_solves_every_problem_with_its_calls(problems, seed, protocol):
    rng = random.Random(seed)
    problem = problems.draw(rng)
    transcript = draw_transcript(problem, protocol, rng, CAREFUL)
    assert is_right(problem, transcript)
    calls = [call.argument for call in problem.calls()]
    text = text_of(transcript)
    assert all(call in text for call in calls)
    assert text.count("<think>") == len(calls) + 1


@given(SEEDS)
def test_calls_are_read_as_they_were_written(tokenizer, problems, seed):
    """By the protocols that rollouts use."""
    rng = random.Random(seed)
    problem, chat = problems.draw(rng), ChatTokenizer(tokenizer)
    wanted = [(call.tool, call.argument) for call in problem.calls()]
    tags = TagProtocol(SCHEMAS)
    found = []
    for piece in draw_transcript(problem, Protocol.TAGS, rng, CAREFUL).pieces:
        if piece.weight and (stop := next((one for one in tags.stop if one in piece.text), None)):
            ids = chat.raw_ids(piece.text)
            found += asyncio.run(tags.calls(ids, stop, chat))
    assert [(one.name, *one.arguments.values()) for one in found] == wanted
    parsed = []
    for piece in draw_transcript(problem, Protocol.CHAT, rng, CAREFUL).pieces:
        if piece.weight:
            ids = tokenizer.encode(piece.text, add_special_tokens=False)
            parsed += asyncio.run(HermesCalls(chat).calls(ids, SCHEMAS))
    assert [(one.name, *json.loads(one.arguments).values()) for one in parsed] == wanted


def test_results_stand_as_rollouts_put_them(problems):
    problem = ToolProblem(Kind.PRODUCT, (34, 56))
    transcript = draw_transcript(problem, Protocol.TAGS, random.Random(0), CAREFUL)
    assert text_of(transcript) == (
        f"<think>compute</think><python>print(34*56)</python>{wrapped('1904')}"
        f"<think>answer</think><answer>\\boxed{{1904}}</answer>{END}"
    )
    chat = text_of(draw_transcript(problem, Protocol.CHAT, random.Random(0), CAREFUL))
    assert chat == (
        '<think>compute</think><tool_call>\n{"name": "python", "arguments": {"code": "print(34*56)"}}\n'
        f"</tool_call>{END}<|tool|>1904{END}<|assistant|><think>answer</think>\\boxed{{1904}}{END}"
    )


def share_solved(problems, habits: Habits, count: int = 3000) -> float:
    rng = random.Random(0)
    drawn = [problems.draw(rng) for _ in range(count)]
    return sum(is_right(one, draw_transcript(one, Protocol.TAGS, rng, habits)) for one in drawn) / count


def test_careless_ways_cost_as_much_as_they_are_taken(problems):
    assert share_solved(problems, CAREFUL) == 1.0
    assert share_solved(problems, Habits(0.3, 0, 0, 0, 0)) == pytest.approx(0.7, abs=0.03)
    # Of six problems four ask for a fact, of five of which two have one reference and one has two.
    follows = (1 + 2 * (2 + 2 * 0.5 + 0.25) / 5) / 3
    assert share_solved(problems, Habits(0, 0, 0.5, 0, 0)) == pytest.approx(follows, abs=0.03)
    assert 0.3 < share_solved(problems, DEFAULT_HABITS) < 0.5


@given(SEEDS)
def test_a_guess_has_as_many_digits(seed):
    rng = random.Random(seed)
    answer = rng.randint(11, 9801)
    assert len(str(guess(answer, rng))) == len(str(answer))


@given(SEEDS, st.sampled_from(Protocol))
def test_the_policys_tokens_alone_are_learnt(tokenizer, problems, seed, protocol):
    rng = random.Random(seed)
    transcript = draw_transcript(problems.draw(rng), protocol, rng)
    encoder = TranscriptEncoder(tokenizer)
    ids, weights = encoder.encode([transcript])
    learnt = tokenizer.decode(ids[0][weights[0] > 0])
    assert learnt == "".join(piece.text for piece in transcript.pieces if piece.weight)
    assert tokenizer.decode(ids[0]) == encoder.prompt(transcript) + text_of(transcript)


@given(SEEDS)
def test_drills_ask_for_what_stands_before(tokenizer, seed):
    ids, weights = TranscriptEncoder(tokenizer).encode([draw_drill(random.Random(seed))])
    row, learnt = ids[0].tolist(), (weights[0] > 0).nonzero()[:, 0].tolist()
    assert len(learnt) >= 8
    assert all(row[at] in row[:at] for at in learnt)


# --- the tokenizer -----------------------------------------------------------------------------


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_ascii_survives(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_words_are_one_token_and_none_is_a_control_token(tokenizer):
    assert len(vocabulary()) == len(tokenizer)
    for word in WORDS:
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word
    chat = ChatTokenizer(tokenizer)
    assert chat.without_control_tokens("<search>x</search><result>") == "<search>x</search><result>"
    assert "<tool_call>" not in chat.without_control_tokens("<tool_call><|end|>")


def test_a_chat_can_grow(tokenizer):
    chat = ChatTokenizer(tokenizer)
    check_builder(chat, TinyTemplate(chat))
    assert "tools" in CHAT_TEMPLATE
    shown = chat.decode(chat.prompt_ids([{"role": "user", "content": "Compute 34*56"}], SCHEMAS))
    assert shown.startswith("<|system|>python search ") and shown.endswith("<|assistant|>")
