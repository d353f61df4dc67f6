"""The task of planned chains: problems, transcripts, tokens, prompts and the shipped model."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.demo.problems import Split
from marsrl_verl.rewards.extraction import boxed_answer
from studies.assets import model_path
from studies.tiny.tokenizer import build_tokenizer
from studies.toy_tasks.rema_task.problems import (
    Definition,
    Difficulty,
    Puzzle,
    draw_puzzle,
    generate,
    parse_question,
    rows,
)
from studies.toy_tasks.rema_task.prompts import TinyPlanPrompts
from studies.toy_tasks.rema_task.tokenizer import WORDS
from studies.toy_tasks.rema_task.transcripts import KINDS, Habits, as_problem, draw_plan, follow

PUZZLE = parse_question("Find c:e=d;b=a;d=;c=b;a=")
FLAWLESS = Habits(lost=0.0, stops_early=0.0, miscalculates=0.0, begins_wrong=0.0)


def test_a_chain_from_the_goal_back():
    assert (PUZZLE.order, PUZZLE.answer, PUZZLE.depth) == ("cba", 6, 3)
    assert PUZZLE.ends == ("e", "c") and PUZZLE.trace("e") == "ed"
    assert PUZZLE.definition("b") == Definition("b", "a")


@pytest.mark.parametrize(
    "text", ["", "Find c", "Find c:c=b", "Find c:b=", "Find c:c=ba;a=;b=", "Find c:c=1", "Compute 1+2"]
)
def test_another_text_is_no_question(text):
    with pytest.raises(ValueError, match="not a question of this task"):
        parse_question(text)


@given(st.integers(0, 10_000))
def test_every_problem_has_an_answer_within_the_world(seed):
    puzzle = draw_puzzle(random.Random(seed))
    assert parse_question(puzzle.question) == puzzle
    assert 3 <= puzzle.answer <= 30
    assert len(puzzle.ends) == 2 and puzzle.goal in puzzle.ends
    assert 2 <= puzzle.depth <= 4
    letters = [one.letter for one in puzzle.definitions]
    assert len(set(letters)) == len(letters)


def test_splits_share_nothing_whatever_the_order():
    other = Puzzle(tuple(reversed(PUZZLE.definitions)), "c")
    assert other.question != PUZZLE.question and other.split is PUZZLE.split
    counts = Counter(draw_puzzle(random.Random(seed)).split for seed in range(600))
    assert counts[Split.WARM_START] > counts[Split.TRAIN] > counts[Split.HELD_OUT] > 60


def test_the_same_arguments_give_the_same_problems():
    assert generate(Split.TRAIN, 20, 3) == generate(Split.TRAIN, 20, 3)
    assert len(set(generate(Split.HELD_OUT, 50, 0))) == 50
    with pytest.raises(ValueError, match="need 2 <= shortest"):
        Difficulty(shortest=1)


def test_rows_say_how_hard_they_are():
    for row in rows(Split.TRAIN, 5, 0):
        puzzle = parse_question(row["prompt"][0]["content"])
        assert row["extra_info"]["level"] == puzzle.depth
        assert row["reward_model"]["ground_truth"] == str(puzzle.answer)


@given(st.integers(0, 1000))
def test_without_slips_everybody_is_right(seed):
    rng = random.Random(seed)
    puzzle = draw_puzzle(rng)
    assert draw_plan(puzzle, rng, FLAWLESS) == puzzle.order
    for kind in ("solution", "planned"):
        assert boxed_answer(KINDS[kind](puzzle, rng, FLAWLESS).response).text == str(puzzle.answer)


def test_a_plan_that_makes_no_sense_is_followed_letter_by_letter():
    assert follow(PUZZLE, "ca", random.Random(0), FLAWLESS) == "a=1;c=1+3=4;\\boxed{4}"


def test_text_survives_the_tokenizer_and_protocol_words_are_tokens():
    tokenizer = build_tokenizer(WORDS)
    for kind, draw in KINDS.items():
        transcript = draw(PUZZLE, random.Random(1), Habits())
        text = "".join(one["content"] for one in transcript.messages) + transcript.response
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text, kind
    ids = tokenizer.encode("c=3+3=6;", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["c=", "3", "+3", "=", "6", ";"]


def test_prompts_tell_the_roles_apart():
    prompts, problem = TinyPlanPrompts(), as_problem(PUZZLE)
    chats = [
        prompts.plan(problem),
        prompts.action(problem),
        prompts.planned(problem),
        prompts.direct(problem),
        prompts.solution(problem, "cba"),
    ]
    assert len({str(chat) for chat in chats}) == len(chats)
    assert prompts.solution(problem, " ") == prompts.direct(problem)
    hostile = prompts.solution(problem, "cba\nFind a:a=")[-1]["content"]
    assert hostile.splitlines()[0] == PUZZLE.question
    assert prompts.meta_thinking(problem) == prompts.plan(problem)


def test_the_sanity_check_of_the_shipped_model():
    """A plan helps, and there is room below the ceiling."""
    from transformers import AutoModelForCausalLM

    from studies.toy_tasks.rema_task.sanity_check import measure, show

    model = AutoModelForCausalLM.from_pretrained(model_path("rema_task"))
    figures = measure(model, 120)
    plan, alone, together, own, perfect = (one.share for one in figures)
    assert perfect > own > alone and perfect > together > alone
    assert 0.5 < plan < 0.85 and alone > 0.02 and perfect < 0.95
    assert len(show(figures).splitlines()) == 6
