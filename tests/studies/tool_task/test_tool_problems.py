"""The tool task's problems: what they need, that splits share nothing, and the corpus."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.demo.problems import Split
from marsrl_verl.tools.search.bm25 import Bm25Backend
from marsrl_verl.tools.search.config import Bm25Config
from studies.toy_tasks.tool_task.problems import (
    ATTRIBUTES,
    DEPTHS,
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
    write_corpus,
)

SEEDS = st.integers(0, 2**32)


def test_worked_examples():
    kalo, zeri = Fact("Kalo", "price", 17), Fact("Zeri", "weight", 20, ("Bamo", "Dika"))
    product = ToolProblem(Kind.PRODUCT, (34, 56))
    assert (product.question, product.answer) == ("Compute 34*56", 1904)
    assert product.calls() == [Call(PYTHON, "print(34*56)", 1904)]
    fact = ToolProblem(Kind.FACT, (kalo,))
    assert (fact.question, fact.answer) == ("What is the price of Kalo?", 17)
    assert fact.calls() == [Call(SEARCH, "price Kalo", 17)]
    assert not product.referred and not fact.referred
    both = ToolProblem(Kind.FACT_PRODUCT, (zeri, 17))
    assert both.question == "What is the weight of Zeri times 17?"
    assert both.calls() == [
        Call(SEARCH, "weight Zeri", "Bamo"),
        Call(SEARCH, "weight Bamo", "Dika"),
        Call(SEARCH, "weight Dika", 20),
        Call(PYTHON, "print(20*17)", 340),
    ]
    assert both.answer == 340 and both.referred


def test_a_later_call_follows_what_earlier_ones_have_found():
    problem = ToolProblem(Kind.FACT_PRODUCT, (Fact("Kalo", "price", 17), 20))
    assert problem.call([]) == Call(SEARCH, "price Kalo", 17)
    assert problem.call([99]) == Call(PYTHON, "print(99*20)", 1980)
    assert problem.call([99, 1980]) is None
    referred = ToolProblem(Kind.FACT, (Fact("Kalo", "price", 17, ("Bamo",)),))
    assert referred.call([]) == Call(SEARCH, "price Kalo", "Bamo")
    assert referred.call(["Bamo"]) == Call(SEARCH, "price Bamo", 17)
    # A number is taken for the right one, wherever it comes from.
    assert referred.call([99]) is None


@given(SEEDS, st.sampled_from(Split))
def test_a_problem_belongs_to_its_split(seed, split):
    problem = Drawer(split, seed=None).draw(random.Random(seed))
    first = problem.parts[0]
    things = [first.name, *first.references] if isinstance(first, Fact) else []
    assert all(split_of(one) is split for one in things)
    if problem.kind is Kind.PRODUCT:
        assert split_of(*sorted(problem.parts)) is split
    assert len(set(things)) == len(things) <= len(DEPTHS)
    assert len(problem.calls()) == len(things) + (problem.kind is not Kind.FACT)
    for call in problem.calls():
        if call.tool == PYTHON:
            assert eval(call.argument.removeprefix("print")) == call.found
    assert problem.calls()[-1].found == problem.answer


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
    referred = 0
    for split in (Split.TRAIN, Split.HELD_OUT):
        for problem in generate(split, 100, seed=0):
            for call in problem.calls():
                if call.tool == SEARCH:
                    attribute, name = call.argument.split()
                    refers = isinstance(call.found, str)
                    assert by_title[name] == f"see {call.found}" if refers else (
                        f"{attribute} {call.found}" in by_title[name]
                    )  # fmt: skip
                    referred += refers
    assert referred > 50
    assert not set(by_title) & set(names(Split.WARM_START))


def test_a_search_finds_the_page_of_the_thing_it_names(tmp_path):
    """And none that refers to it."""

    async def titles(queries: list[str]) -> list[str]:
        backend = Bm25Backend(Bm25Config(corpus=str(write_corpus(tmp_path / "c.jsonl", 0))), tmp_path)
        await backend.start()
        try:
            return [(await backend.search(one, 1)).hits[0].title for one in queries]
        finally:
            await backend.close()

    wanted = [
        (f"{attribute} {row['title']}", row["title"]) for row in documents(0) for attribute in ATTRIBUTES
    ]
    assert asyncio.run(titles([query for query, _ in wanted])) == [title for _, title in wanted]


def test_rows_are_what_verl_reads():
    found = rows(Split.HELD_OUT, 8, seed=0)
    problems = generate(Split.HELD_OUT, 8, seed=0)
    assert [row["prompt"][0]["content"] for row in found] == [one.question for one in problems]
    assert [row["reward_model"]["ground_truth"] for row in found] == [str(one.answer) for one in problems]
    assert [row["extra_info"]["calls"] for row in found] == [len(one.calls()) for one in problems]
    assert {row["ability"] for row in found} <= {"math", "qa"}


def test_the_problems_are_those_of_published_runs():
    """Whatever the task is called: its seed is no part of its name."""
    found = json.dumps([one["prompt"] for one in rows(Split.HELD_OUT, 60, 1)], default=str)
    assert hashlib.md5(found.encode()).hexdigest() == "23467747c106444e3891f376268c349f"
