"""Answers to questions: F1 and exact match on a catalogue, and what every pair of answers keeps."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_tools import request

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.qa import QAGrader, exact_match, f1, raw_f1, stated_answer, words


def read_cases() -> list[tuple[bool, float, tuple[str, ...], str]]:
    lines = (Path(__file__).parent / "qa_cases.txt").read_text(encoding="utf-8").splitlines()
    cases = []
    for line in lines:
        if line.strip() and not line.startswith("#"):
            verdict, golds, answer = line.split(" | ")
            exact = verdict == "exact"
            cases.append(
                (exact, 1.0 if exact else float(Fraction(verdict)), tuple(golds.split(" ;; ")), answer)
            )
    return cases


CASES = read_cases()


def test_the_catalogue_is_large_and_has_all_verdicts():
    assert len(CASES) == len(set(CASES)) >= 80
    assert sum(exact for exact, *_ in CASES) >= 40
    assert sum(value == 0 for _, value, *_ in CASES) >= 25
    assert sum(0 < value < 1 for _, value, *_ in CASES) >= 10


@pytest.mark.parametrize(("exact", "value", "golds", "answer"), CASES)
def test_a_case(exact, value, golds, answer):
    assert exact_match(answer, golds) is exact
    assert f1(answer, golds) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("exact", "value", "gold", "answer"),
    [(exact, value, golds[0], answer) for exact, value, golds, answer in CASES if len(golds) == 1],
)
def test_a_case_with_reference_and_answer_exchanged(exact, value, gold, answer):
    assert exact_match(gold, [answer]) is exact
    assert f1(gold, [answer]) == pytest.approx(value, abs=1e-12)


ANSWERS = st.text("aB3-.,/ éthe%$(\\½", max_size=12)


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_what_every_pair_keeps(answer, golds):
    value = f1(answer, golds)
    assert 0.0 <= value <= 1.0
    assert value == max(f1(answer, [gold]) for gold in golds)
    assert value == pytest.approx(max(f1(gold, [answer]) for gold in golds))
    if exact_match(answer, golds):
        assert value == 1.0


@given(ANSWERS)
def test_an_answer_is_itself(answer):
    assert exact_match(answer, [answer]) is bool(answer.strip())


@given(st.integers(-999, 999), st.integers(-999, 999))
def test_different_numbers_share_nothing(one, other):
    assert f1(str(one), [str(other)]) == float(one == other)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(0, 999), st.integers(1, 999))
def test_different_fractions_share_nothing(a, b, c, d):
    assert f1(f"{a}/{b}", [f"{c}/{d}"]) == float((a, b) == (c, d))


def test_long_hostile_texts_take_no_time():
    for piece in ("a.", "1,111", "\\text{", "(-", "½", "the ", "a. " * 3, ".", "e\u0301"):
        words(piece * 20_000)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{Paris}.", "Paris"),
        (r"<answer>It is \boxed{Paris} </answer>", "Paris"),
        (r"\boxed{Rome} <answer> Paris </answer>", "Paris"),
        (r"<answer>\boxed{Rome}</answer> and <answer>\boxed{Paris}</answer>", "Paris"),
        (r"<answer>Rome</answer> and <answer>Paris", "Rome"),
        ("It is Paris", None),
        ("<answer>  </answer>", None),
        ("", None),
    ],
)
def test_the_stated_answer(text, answer):
    assert stated_answer(text) == answer


def test_the_last_line_counts_only_where_it_is_allowed():
    assert stated_answer("Let me see.\nParis\n", allow_plain=True) == "Paris"
    assert stated_answer(r"\boxed{Paris}" + "\nor so", allow_plain=True) == "Paris"
    assert stated_answer("  \n", allow_plain=True) is None


def test_the_grade():
    text, golds = r"\boxed{Crystal Dynamics Inc}", '["Eidos", "Crystal Dynamics"]'
    assert QAGrader().score(request(text, golds)) == RewardResult(
        0.8, {"answer": "Crystal Dynamics Inc", "exact_match": False, "f1": 0.8}
    )
    assert QAGrader(metric="exact_match").score(request(text, golds)).value == 0.0
    assert QAGrader(metric="exact_match").score(request(r"\boxed{eidos}", golds)).value == 1.0
    assert QAGrader().score(request("no box", golds)) == RewardResult(0.0)
    assert QAGrader().score(request(text, golds, reason=FinishReason.LENGTH)) == RewardResult(0.0)


def test_another_metric_is_refused():
    with pytest.raises(ValueError, match="rouge"):
        QAGrader(metric="rouge")


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        ("the U.S. of A.", ["U.S."], 0.5),  # u.s. · of · . against u.s.: 2 · 1 / (3 + 1)
        ("U.S", ["U.S."], 0.0),  # punctuation is kept
        ("The Hague, 1907", ["Hague 1907"], 0.5),  # "hague," is not "hague": 2 · 1 / (2 + 2)
        ("Paris France", ["Lyon", "Paris"], 2 / 3),  # the best of several: 2 · 1 / (2 + 1)
        ("no", ["No Doubt"], 2 / 3),
        ("a", ["the"], 0.0),  # articles alone leave nothing
    ],
)
def test_f1_with_punctuation(answer, golds, value):
    assert raw_f1(answer, golds) == pytest.approx(value)
    told = QAGrader(tell_raw_f1=True).grade(f"\\boxed{{{answer}}}", golds).info
    assert told["raw_f1"] == pytest.approx(value)
    assert "raw_f1" not in QAGrader().grade(f"\\boxed{{{answer}}}", golds).info


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So.\n<answer>Paris", "Paris"),
        ("<answer>It was\nParis", "Paris"),
        ("I know.\n**The answer is: Paris**\nGoodbye.", "Paris**"),
        ("Answer: Paris\nAnswer: Lyon", "Lyon"),
        ("The answer is\nParis", "Paris"),
        ("It is Paris\nParis\n</answer>", "Paris"),
        ("Long ago.\nParis", "Paris"),
        ("The answer is Lyon. \\boxed{Paris}", "Paris"),
        ("<answer>", None),
    ],
)
def test_what_is_read_without_a_form(text, answer):
    assert stated_answer(text, allow_plain=True) == answer
