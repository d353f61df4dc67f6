"""The tool world's problems: what they need, that splits share nothing, and the corpus."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.tool_world.problems import (
    ATTRIBUTES,
    PYTHON,
    SEARCH,
    Call,
    Drawer,
    Fact,
    Kind,
    ToolProblem,
    documents,
    generate,
    names,
    rows,
    split_of,
    value_of,
    write_corpus,
)

SEEDS = st.integers(0, 2**32)


def test_worked_examples():
    kalo, zeri = Fact("Kalo", "price", 17), Fact("Zeri", "weight", 20)
    product = ToolProblem(Kind.PRODUCT, (34, 56))
    assert (product.question, product.answer) == ("Compute 34*56", 1904)
    assert product.calls() == [Call(PYTHON, "print(34*56)", 1904)]
    fact = ToolProblem(Kind.FACT, (kalo,))
    assert (fact.question, fact.answer) == ("What is the price of Kalo?", 17)
    assert fact.calls() == [Call(SEARCH, "price Kalo", 17)]
    both = ToolProblem(Kind.TWO_FACTS, (kalo, zeri))
    assert both.question == "What is the price of Kalo times the weight of Zeri?"
    assert [call.argument for call in both.calls()] == ["price Kalo", "weight Zeri", "print(17*20)"]
    assert both.answer == 340


def test_a_later_call_follows_what_earlier_ones_have_found():
    problem = ToolProblem(Kind.FACT_PRODUCT, (Fact("Kalo", "price", 17), 20))
    assert problem.call([]) == Call(SEARCH, "price Kalo", 17)
    assert problem.call([99]) == Call(PYTHON, "print(99*20)", 1980)


@given(SEEDS, st.sampled_from(Split))
def test_a_problem_belongs_to_its_split(seed, split):
    problem = Drawer(split, seed=None).draw(random.Random(seed))
    facts = [one for one in problem.parts if isinstance(one, Fact)]
    assert all(split_of(one.name) is split for one in facts)
    if problem.kind is Kind.PRODUCT:
        assert split_of(*sorted(problem.parts)) is split
    assert len({one.name for one in facts}) == len(facts)
    assert len(problem.calls()) == {"product": 1, "fact": 1, "fact_product": 2, "two_facts": 3}[problem.kind]
    for call in problem.calls():
        if call.tool == PYTHON:
            assert eval(call.argument.removeprefix("print")) == call.value
    assert problem.calls()[-1].value == problem.answer


def test_splits_share_no_thing():
    found = {split: set(names(split)) for split in Split}
    assert sum(map(len, found.values())) == len(set.union(*found.values()))
    assert all(len(one) > 100 for one in found.values())


def test_generation_is_a_function_of_its_arguments():
    first = generate(Split.TRAIN, 60, seed=3)
    assert first == generate(Split.TRAIN, 60, seed=3) != generate(Split.TRAIN, 60, seed=4)
    assert len(set(first)) == 60
    assert {one.kind for one in first} == set(Kind)


def test_more_problems_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"too few problems of product: asked for 9000"):
        generate(Split.HELD_OUT, 9000, seed=0, kinds=[Kind.PRODUCT])


def test_the_corpus_has_every_fact_that_is_asked_for(tmp_path):
    path = write_corpus(tmp_path / "corpus.jsonl", seed=0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == list(documents(0))
    by_title = {row["title"]: row["text"] for row in rows}
    assert len(by_title) == len(rows)
    for split in (Split.TRAIN, Split.HELD_OUT):
        for problem in generate(split, 100, seed=0):
            for one in problem.parts:
                if isinstance(one, Fact):
                    assert f"{one.attribute} {one.value}" in by_title[one.name]
    assert not set(by_title) & set(names(Split.WARM_START))


def test_facts_are_drawn_evenly():
    values = [value_of(name, one, 0) for name in names(Split.TRAIN) for one in ATTRIBUTES]
    assert min(values) == 11 and max(values) == 99
    assert 50 < sum(values) / len(values) < 60


def test_rows_are_what_verl_reads():
    found = rows(Split.HELD_OUT, 8, seed=0)
    problems = generate(Split.HELD_OUT, 8, seed=0)
    assert [row["prompt"][0]["content"] for row in found] == [one.question for one in problems]
    assert [row["reward_model"]["ground_truth"] for row in found] == [str(one.answer) for one in problems]
    assert [row["extra_info"]["calls"] for row in found] == [len(one.calls()) for one in problems]
    assert {row["ability"] for row in found} <= {"math", "qa"}
