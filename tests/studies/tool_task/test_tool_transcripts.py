"""Transcripts of tool use: what the careful way does, and what is learnt."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tool_tokenizer import SCHEMAS

from marsrl_verl.demo.problems import Split
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.tool_protocol.tags import TagProtocol, wrapped
from studies.toy_tasks.tool_task.agent import HermesCalls
from studies.toy_tasks.tool_task.problems import Drawer, Kind, ToolProblem
from studies.toy_tasks.tool_task.tokenizer import END, build_tokenizer
from studies.toy_tasks.tool_task.transcripts import CAREFUL, Protocol, draw_transcript
from studies.toy_tasks.tool_task.warm_start import TranscriptEncoder, draw_drill

SEEDS = st.integers(0, 2**32)


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
