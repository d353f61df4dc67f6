"""The tiny task's problems: values, limits, splits."""

from __future__ import annotations

import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.demo.files import write_rows
from marsrl_verl.demo.problems import (
    LARGEST_TOTAL,
    Chain,
    Difficulty,
    Split,
    draw_chain,
    generate,
    parse_question,
    rows,
)


def test_worked_example():
    chain = Chain((7, 5, -3))
    assert chain.question == "Compute 7+5-3"
    assert chain.answer == 9
    assert [str(step) for step in chain.steps()] == ["7+5=12", "12-3=9"]


@given(st.integers(0, 2**32))
def test_drawn_problems_keep_the_limits(seed):
    difficulty = Difficulty(min_terms=3, max_terms=6, max_operand=9)
    chain = draw_chain(random.Random(seed), difficulty)
    totals = [chain.terms[0], *(step.result for step in chain.steps())]
    assert 3 <= len(chain.terms) <= 6
    assert all(0 <= total <= LARGEST_TOTAL for total in totals)
    assert all(1 <= abs(term) <= 9 for term in chain.terms)
    assert len(set(chain.terms[1:])) == len(chain.terms) - 1
    assert eval(chain.expression) == chain.answer
    assert parse_question(chain.question) == chain


@given(st.permutations([8, 5, 2, -3]))
def test_reordered_terms_lie_in_the_same_split(terms):
    assert Chain(tuple(terms)).split is Chain((8, 5, 2, -3)).split


def test_splits_share_no_set_of_terms():
    found = {split: {tuple(sorted(chain.terms)) for chain in generate(split, 400, seed=0)} for split in Split}
    for split in Split:
        for other in Split:
            assert split is other or not found[split] & found[other]


def test_generation_is_a_function_of_its_arguments():
    first = generate(Split.TRAIN, 50, seed=3)
    assert first == generate(Split.TRAIN, 50, seed=3)
    assert first != generate(Split.TRAIN, 50, seed=4)
    assert len(set(first)) == 50


def test_more_problems_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"too few problems .* asked for 500"):
        generate(Split.HELD_OUT, 500, seed=0, difficulty=Difficulty(2, 2, 3))


@pytest.mark.parametrize("arguments", [(1, 4, 9), (5, 4, 9), (3, 4, 1), (3, 4, LARGEST_TOTAL + 1)])
def test_impossible_difficulty_is_refused(arguments):
    with pytest.raises(ValueError, match="difficulty"):
        Difficulty(*arguments)


@pytest.mark.parametrize("question", ["Compute 07+5", "7+5", "Compute seven", "Compute 7 + 5"])
def test_other_questions_are_refused(question):
    with pytest.raises(ValueError, match="not a question of the tiny task"):
        parse_question(question)


def test_parquet_is_what_verl_reads(tmp_path):
    path = tmp_path / "held_out.parquet"
    write_rows(path, rows(Split.HELD_OUT, 5, seed=0))
    read = pd.read_parquet(path).to_dict("records")
    chains = generate(Split.HELD_OUT, 5, seed=0)
    assert [row["prompt"][0]["content"] for row in read] == [chain.question for chain in chains]
    assert [row["reward_model"]["ground_truth"] for row in read] == [str(chain.answer) for chain in chains]
    assert {row["extra_info"]["split"] for row in read} == {"held_out"}
