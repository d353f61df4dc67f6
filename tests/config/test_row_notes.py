"""Rows that the configured reward can't grade are rejected before the start; doubtful ones are warned of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import assert_checks_refuse

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.method import Role

REWARD = "marsrl.reward.solver.target"
BY_ABILITY = {REWARD: "marsrl_verl.rewards.by_ability:RewardByAbility"}
MATH_VERIFY = {REWARD: "marsrl_verl.rewards.math_verify:MathVerifyReward"}
MISSING: Any = object()


def rows(first: int, *abilities: Any, question: str = "{} + 1") -> list[dict[str, Any]]:
    found = []
    for i, ability in enumerate(abilities, first):
        row = {
            "prompt": [{"role": "user", "content": question.format(i)}],
            "data_source": "DR_mix",
            "reward_model": {"ground_truth": str(i + 1)},
        }
        found.append(row if ability is MISSING else {**row, "ability": ability})
    return found


@pytest.fixture
def files(tmp_path):
    """Overrides that name files with these rows."""

    def call(train: list[dict[str, Any]], val: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {"data.train_batch_size": 4}
        for split, some in (("train", train), ("val", val or rows(900, *["math"] * 4))):
            path = tmp_path / f"{split}.jsonl"
            path.write_text("\n".join(json.dumps(row) for row in some))
            found[f"data.{split}_files"] = str(path)
        return found

    return call


def test_kinds_that_the_reward_knows_are_fine(checked, files):
    both = files(rows(0, "math", "QA ", "qa", "Math"))
    assert checked({**both, **BY_ABILITY}).warnings == []


@pytest.mark.parametrize(
    ("ability", "named"),
    [(None, "No ability"), (MISSING, "No ability"), ("", "No ability"), ("poetry", "The ability 'poetry'")],
)
def test_a_kind_that_the_reward_does_not_know_is_refused(checked, files, ability, named):
    train = files(rows(0, "math", *[ability] * 39))
    hint = f"{named} and the data source 'DR_mix' tell none of the kinds math, qa: 39 of 40 rows"
    assert_checks_refuse(checked, {**train, **BY_ABILITY}, REWARD, hint)
    assert_checks_refuse(checked, {**train, **BY_ABILITY}, REWARD, "train.jsonl row 1 ")
    assert_checks_refuse(checked, {**train, **BY_ABILITY}, REWARD, "prepare_data --ability")


def test_held_out_rows_are_graded_too(checked, files):
    val = files(rows(0, *["math"] * 40), rows(900, None, None, "qa", "qa"))
    assert_checks_refuse(checked, {**val, **BY_ABILITY}, REWARD, "val.jsonl row 0")
    alone = {"trainer.val_only": True, "marsrl.evaluation.samples_per_problem": 1}
    train = files(rows(0, *[None] * 40))
    assert checked({**train, **BY_ABILITY, **alone}).warnings == [], "nothing of it is graded"


def test_what_the_reward_is_told_of_such_rows_counts(checked, files):
    train = files(rows(0, *[None] * 40))
    told = {"marsrl.reward.solver.kwargs": {"data_sources": {"DR_*": "qa"}}}
    assert checked({**train, **BY_ABILITY, **told}).warnings == []


def test_a_column_without_a_type_is_no_ability(checked, files, tmp_path):
    """As pandas writes a column of nulls."""
    path = tmp_path / "null.parquet"
    pq.write_table(pa.Table.from_pylist(rows(0, *[None] * 40)), path)
    changes = {**files(rows(0, "math")), "data.train_files": str(path), **BY_ABILITY}
    assert_checks_refuse(checked, changes, REWARD, "No ability")


def test_an_unknown_kind_is_nothing_to_a_reward_of_one_kind(checked, files):
    assert checked({**files(rows(0, *[None, "", "poetry", "MATH"] * 10)), **MATH_VERIFY}).warnings == []


def test_questions_graded_as_mathematics_are_warned_of(checked, files):
    mixed = files(rows(0, *["qa", "math"] * 20))
    (warning,) = checked({**mixed, **MATH_VERIFY}).warnings
    assert (
        "Rows have the ability qa, and marsrl.reward.solver.target compares answers as math: 20 of 40 rows"
        in warning
    )
    assert "reward=by_ability" in warning


BOXED = r"{} + 1? Output the final answer within \boxed{{}}."


def test_who_is_not_to_answer_should_not_be_asked_for_a_boxed_answer(checked, files, monkeypatch):
    asking = files(rows(0, *["math"] * 40, question=BOXED))
    assert checked(asking).warnings == [], "the Solver answers"
    roles = {name: replace(role, answers=name == "corrector") for name, role in MarsRL.roles.items()}
    monkeypatch.setattr(MarsRL, "roles", roles)
    (warning,) = checked(asking).warnings
    assert warning.startswith("The role solver is not to answer, and is shown problems that ask for a boxed")
    assert "40 of 40 rows" in warning and "train.jsonl row 0" in warning and "prepare_data" in warning
    assert checked(files(rows(0, *["math"] * 40))).warnings == []
    monkeypatch.setattr(MarsRL, "roles", {name: Role() for name in roles})
    assert checked(asking).warnings == [], "a method that names nobody says nothing of it"


def test_system_messages_on_one_side_only_are_warned_of(checked, files):
    def told(first: int, count: int) -> list[dict[str, Any]]:
        system = {"role": "system", "content": "Call a tool."}
        return [{**row, "prompt": [system, *row["prompt"]]} for row in rows(first, *["math"] * count)]

    (warning,) = checked(files(told(0, 40))).warnings
    assert (
        "Rows of data.train_files bring system messages of their own, those of data.val_files none" in warning
    )
    (warning,) = checked(files(rows(0, *["math"] * 40), told(900, 4))).warnings
    assert "Rows of data.val_files bring system messages" in warning
    assert checked(files(told(0, 40), told(900, 4))).warnings == []
    assert checked(files(told(0, 40) + rows(50, "math"))).warnings == [], "some of each may be meant"


def test_the_plan_says_it_and_nothing_is_started(run, files):
    words = [f"{key}={value}" for key, value in files(rows(0, *["geometry"] * 40)).items()]
    done = run(*words, "reward=by_ability", "dry_run=true", "cluster=cpu")
    assert done.status == 2 and done.launched is None
    assert "The ability 'geometry'" in " ".join(done.err.split())
    assert "train.jsonl row 0" in " ".join(done.err.split())
