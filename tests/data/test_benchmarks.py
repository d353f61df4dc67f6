"""Benchmarks by name: copies of one's own in any published form, and the hub's with its own library."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from reward_tools import request

from marsrl_verl.data.benchmarks import BENCHMARKS, read_benchmark
from marsrl_verl.data.pairs import PAIR_FIELDS
from marsrl_verl.data.rows import DataError
from marsrl_verl.rewards.math_verify import MathVerifyReward

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
PUBLISHED = {
    # benchmark: (file, problems, the end of the first question, its answer)
    "gsm8k": ("math/gsm8k_test.jsonl", 1319, "every day at the farmers' market?", "18"),
    "math500": (
        "math/rema_math_test500.parquet",
        500,
        r"\theta < 2 \pi.$",
        r"\left( 3, \frac{\pi}{2} \right)",
    ),
    "hotpotqa": ("qa/arpo_hotpotqa_test.jsonl", 200, "born on October 22, 1930?", "Frank Lowy"),
    "twowiki": ("qa/arpo_2wiki_test.jsonl", 200, "The Half-Way Girl born?", None),
    "musique": ("qa/arpo_musique_test.jsonl", 200, "forte's composer?", "passes over the Rio di Palazzo"),
    "bamboogle": ("qa/arpo_bamboogle_test.jsonl", 125, "that Citibank was founded?", "james madison"),
    "judgebench": ("judge/judgebench_claude_math_reasoning.jsonl", 96, "Let's think step by step.", "A"),
    "llmbar_natural": ("judge/llmbar_natural.json", 100, "a new perspective on the situation?", "A"),
    "llmbar_neighbor": ("judge/llmbar_adversarial_neighbor.json", 134, "for staying healthy.", "B"),
    "llmbar_manual": ("judge/llmbar_adversarial_manual.json", 46, "language lua used for?", "B"),
    "simpleqa": ("qa/arpo_simpleqa_test.jsonl", 500, "Rosenblatt Award in 2010?", "Michio Sugeno"),
}


def lines(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files(name):
    file, count, question, answer = PUBLISHED[name]
    if not (SHARED / file).is_file():
        pytest.skip(f"{SHARED / file} is not here: published files are no part of the project")
    found = read_benchmark(name, str(SHARED / file))
    assert len(found.problems) == count
    first = found.problems[0].problem
    assert first.question.endswith(question) and (answer is None or first.ground_truth == answer)
    assert {one.problem.data_source for one in found.problems} == {name}
    ability = {"math": "math", "qa": "qa", "judge": "judge"}[file.partition("/")[0]]
    assert {one.problem.ability for one in found.problems} == {ability}


def test_what_is_said_to_be_tried_was():
    assert {name for name, one in BENCHMARKS.items() if one.tried} == set(PUBLISHED)


@pytest.mark.parametrize("name", [name for name, one in BENCHMARKS.items() if not one.pairs])
def test_each_form_is_read(name, tmp_path):
    """A row with the columns of each form, and nothing else, is read by that form or one before it."""
    for number, source in enumerate(BENCHMARKS[name].sources()):
        columns, mark = source.columns, source.columns.answer_after or ""
        answer: object = f"{mark} 7" if not columns.answer_boxed else r"\boxed{7}"
        for part in reversed(columns.answer.split(".")[1:]):
            answer = {part: answer}
        asked = {columns.question: "1+6?"} if columns.question else {}
        if not columns.question:
            asked = {columns.chat: [{"role": "user", "content": "1+6?"}]}
        row = {**asked, columns.answer.split(".")[0]: answer}
        found = read_benchmark(name, lines(tmp_path / f"{number}.jsonl", row))
        (one,) = found.problems
        assert (one.question, one.problem.ground_truth, one.problem.data_source) == ("1+6?", "7", name)


@pytest.mark.parametrize(
    ("response", "right"), [(r"\boxed{\frac{1}{2}, 2}", 1.0), (r"\boxed{2}", 0.0), (r"\boxed{2, 3}", 0.0)]
)
def test_all_parts_of_an_answer_are_wanted(tmp_path, response, right):
    row = {"question": "Solve.", "final_answer": [r"$\frac{1}{2}$", "$2$"]}
    (one,) = read_benchmark("olympiadbench", lines(tmp_path / "a.jsonl", row)).problems
    assert one.problem.ground_truth == r"\frac{1}{2}, 2"
    with contextlib.closing(MathVerifyReward()) as reward:
        assert reward.score(request(response, one.problem.ground_truth)).value == right


def test_several_formulas_keep_their_signs(tmp_path):
    row = {"question": "Solve.", "final_answer": ["$x=1$, $y=2$"]}
    (one,) = read_benchmark("olympiadbench", lines(tmp_path / "a.jsonl", row)).problems
    assert one.problem.ground_truth == "$x=1$, $y=2$"


def test_the_hub_is_read_with_its_own_library(monkeypatch):
    import datasets

    asked = []

    def load(*words, **more):
        asked.append((words, more))
        return datasets.Dataset.from_list(
            [{"problem": "1+6?", "answer": 7.0}, {"problem": "2?", "answer": 2.0}]
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = read_benchmark("aime24", first=1)
    assert [(one.question, one.problem.ground_truth) for one in found.problems] == [("1+6?", "7")]
    read_benchmark("aime25")
    assert asked == [
        (("HuggingFaceH4/aime_2024", None), {"split": "train", "revision": None}),
        (("yentinglin/aime_2025", None), {"split": "train", "revision": None}),
    ]


def test_without_the_hub_a_copy_is_asked_for(monkeypatch):
    import datasets

    def load(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError) as error:
        read_benchmark("aime24")
    assert "HuggingFaceH4/aime_2024 can't be had from the hub (Couldn't reach the Hub)" in error.value.what
    assert "marsrl.evaluation.benchmarks.aime24.file=FILE" in error.value.fix
    with pytest.raises(DataError, match="gaia is not read from the hub: its origin asks"):
        read_benchmark("gaia")


def test_equal_problems_have_equal_fingerprints(tmp_path):
    rows = [{"problem": f"{n}?", "answer": str(n)} for n in range(3)]
    one = read_benchmark("aime24", lines(tmp_path / "a.jsonl", *rows))
    same = read_benchmark("aime24", lines(tmp_path / "b.jsonl", *rows, rows[0]))
    other = read_benchmark("aime24", lines(tmp_path / "c.jsonl", *rows[:2], {**rows[2], "answer": "9"}))
    fewer = read_benchmark("aime24", lines(tmp_path / "d.jsonl", *rows), first=2)
    assert one.fingerprint == same.fingerprint, "a repeated row is the same problem"
    assert len({one.fingerprint, other.fingerprint, fewer.fingerprint}) == 3


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "1?", "label": 1}], "found columns text, label, expected problem and answer, or question"),
        (
            [{"problem": "1?", "answer": "1"}, {"problem": "2?"}],
            "1 of 2 rows are no problem with an answer; there",
        ),
        ([], "found columns none"),
    ],
)
def test_files_that_are_none(tmp_path, rows, said):
    with pytest.raises(DataError, match=said):
        read_benchmark("aime24", lines(tmp_path / "x.jsonl", *rows))


# --- pairs of answers -----------------------------------------------------------------------------

REWARDBENCH = {"chosen": "good", "rejected": "bad", "subset": "math-prm", "id": 7}
JUDGEBENCH = {"question": "1+1?", "response_A": "3", "response_B": "2", "label": "B>A", "source": "maths"}
LLMBAR = {"input": "1+1?", "output_1": "2", "output_2": "3", "label": 1}
VERL = {
    "prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"ground_truth": "A"},
    "extra_info": {"answer_a": "2", "answer_b": "3", "subset": "maths"},
}


def shown(name, path):
    return [
        (one.question, one.problem.ground_truth, *(one.problem.extra_info[field] for field in PAIR_FIELDS))
        for one in read_benchmark(name, path).problems
    ]


def test_pairs_in_the_order_of_their_files(tmp_path):
    assert shown(
        "judgebench", lines(tmp_path / "a.jsonl", JUDGEBENCH, {**JUDGEBENCH, "response_A": "4"})
    ) == [
        ("1+1?", "B", "3", "2", "maths"),
        ("1+1?", "B", "4", "2", "maths"),
    ], "a question may have several pairs"
    natural = [("1+1?", "A", "2", "3", "llmbar_natural")]
    assert shown("llmbar_natural", lines(tmp_path / "b.jsonl", LLMBAR, LLMBAR)) == natural
    other = {**VERL, "reward_model": {"ground_truth": "B"}, "extra_info": {"answer_a": "3", "answer_b": "2"}}
    assert shown("rewardbench970", lines(tmp_path / "c.jsonl", VERL, other)) == [
        ("1+1?", "A", "2", "3", "maths"),
        ("1+1?", "B", "3", "2", "rewardbench970"),
    ], "rows in both orders stay two"


def test_where_columns_name_the_better_answer_half_of_the_pairs_show_it_first(tmp_path):
    rows = [{"prompt": f"Say {n}", **REWARDBENCH} for n in range(400)]
    found = shown("rewardbench", lines(tmp_path / "a.jsonl", *rows))
    for _, truth, first, second, subset in found:
        assert (first, second) == (("good", "bad") if truth == "A" else ("bad", "good"))
        assert subset == "math-prm"
    assert 150 < sum(truth == "A" for _, truth, *_ in found) < 250
    assert found == shown("rewardbench", lines(tmp_path / "b.jsonl", *rows)), "the texts decide"


def test_rewardbench_has_its_subsets_in_one_category_each():
    named = [one for some in BENCHMARKS["rewardbench"].categories.values() for one in some]
    assert len(named) == len(set(named)) == 23


def test_answers_are_part_of_a_pairs_fingerprint(tmp_path):
    one = read_benchmark("judgebench", lines(tmp_path / "a.jsonl", JUDGEBENCH))
    other = read_benchmark("judgebench", lines(tmp_path / "b.jsonl", {**JUDGEBENCH, "response_A": "4"}))
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"problem": "1?", "answer": "1"},
            "1 of 2 rows are no problem.*columns problem, answer are of no known",
        ),
        ({**JUDGEBENCH, "label": "A=B"}, "found the label 'A=B'"),
        ({**JUDGEBENCH, "response_B": "3"}, "both answers are the same"),
        ({**JUDGEBENCH, "label": "A>B"}, "an earlier row prefers the other answer"),
        ({**VERL, "reward_model": None}, "found the label None"),
    ],
)
def test_rows_that_are_no_pairs(tmp_path, row, said):
    with pytest.raises(DataError, match=said):
        read_benchmark("judgebench", lines(tmp_path / "x.jsonl", JUDGEBENCH, row))
