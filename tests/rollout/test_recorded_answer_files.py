"""Answers of a frozen Solver from a file: what is read, what is rejected, what is drawn."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.config.light_tokenizer import open_tokenizer
from marsrl_verl.config.prompt_budget import text_tokens
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.assets import model_path
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.context import answered
from marsrl_verl.rollout.external.recorded_answers import (
    FileSource,
    LineKey,
    RecordedAnswers,
    RecordedAnswersError,
    draw,
)
from marsrl_verl.testing.client import AddedTokens


def write(folder: Path, *lines: object) -> Path:
    """A file with these lines; texts are written as they are, everything else as JSON."""
    path = folder / "solutions.jsonl"
    texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def row(question: str, *answers: str) -> dict[str, object]:
    return {"question": question, "answers": list(answers)}


def make_request(
    problem_id: str = "p1", question: str = "1 + 1?", n: int = 2, prefix: str = ""
) -> RolloutRequest:
    name = f"{prefix}{problem_id}/solver/0"
    return RolloutRequest(name, Problem(problem_id, question, "2"), "solver", "solver", (), n)


def answers_of(source: FileSource, item: RolloutRequest) -> list[ChatAnswer]:
    return [asyncio.run(source.answer(item, k, item.messages)) for k in range(item.n)]


def drawn(source: FileSource, item: RolloutRequest) -> list[str]:
    return [answer.content for answer in answers_of(source, item)]


def test_a_file_is_read_by_question(tmp_path):
    path = write(tmp_path, row("1 + 1?", "2", "drei"), "", row(" é? ", "<think>long…</think> ä", "b"))
    file = RecordedAnswers.scan(path, LineKey.QUESTION)
    assert file.counts == {"1 + 1?": 2, "é?": 2}
    assert file.answers("é?") == ["<think>long…</think> ä", "b"]
    assert file.answers("nobody asked") == []
    assert file.longest == "drei", "the thinking part does not count"


def test_lines_about_one_problem_are_joined_in_their_order(tmp_path):
    path = write(tmp_path, row("q", "a"), row("p", "x"), row("q", "b", "a"))
    file = RecordedAnswers.scan(path, LineKey.QUESTION)
    assert file.answers("q") == ["a", "b", "a"]
    assert file.counts["q"] == 3


def test_a_file_is_read_by_id(tmp_path):
    path = write(tmp_path, {"id": 7, "answers": ["a"]}, {"id": "x/8", "answers": ["b"], "model": "big"})
    source = FileSource(RecordedAnswers.scan(path, LineKey.ID), 1, {"first?": ("7",), "both?": ("7", "x/8")})
    assert drawn(source, make_request(question=" first? ", n=1)) == ["a"]
    assert sorted(drawn(source, make_request(question="both?"))) == ["a", "b"]
    assert (source.count("first?"), source.count("both?"), source.count("other?")) == (1, 2, 0)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is list, expected an object"),
        ({"question": "q"}, "line 2 has no 'answers'; found: question"),
        ({}, "line 2 has no 'question' and no 'answers'; found: nothing"),
        (row("q"), "line 2: 'answers' is [], expected a list of texts, at least one"),
        ({"question": "q", "answers": "a"}, "line 2: 'answers' is 'a'"),
        ({"question": "q", "answers": ["a", 3]}, "line 2: answer 1 (from 0) is 3, expected a text"),
        ({"question": 3, "answers": ["a"]}, "line 2: 'question' is 3, expected a text"),
        (row("  ", "a"), "line 2: 'question' is '  ', expected a text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, hint):
    with pytest.raises(RecordedAnswersError) as refused:
        RecordedAnswers.scan(write(tmp_path, row("q", "a"), line), LineKey.QUESTION)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("content", "key", "hint"),
    [
        (b'{"id": true, "answers": ["a"]}', LineKey.ID, "line 1: 'id' is True, expected a text or a whole"),
        (b'{"question": "q", "answers": ["\xff"]}\n', LineKey.QUESTION, "line 1 is not JSON"),
        (b"\n \n", LineKey.QUESTION, "no line with answers"),
        (None, LineKey.QUESTION, "No such file"),
    ],
)
def test_a_file_that_can_not_be_read_is_refused(tmp_path, content, key, hint):
    path = tmp_path / "solutions.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordedAnswersError, match=hint):
        RecordedAnswers.scan(path, key)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**32))
def test_answers_are_drawn_as_evenly_as_possible(count, n, seed):
    numbers = draw(count, n, np.random.default_rng(seed))
    assert len(numbers) == n
    found = Counter(numbers)
    assert set(found) <= set(range(count))
    if n <= count:
        assert max(found.values()) == 1, "without replacement where there are enough"
    else:
        assert len(found) == count
        assert max(found.values()) - min(found.values()) <= 1
    assert all(len(set(numbers[i : i + count])) == count for i in range(0, n - count + 1, count))


def test_every_answer_can_come_first():
    firsts = {draw(5, 2, np.random.default_rng(seed))[0] for seed in range(100)}
    assert firsts == set(range(5))


def test_the_choice_depends_on_seed_and_group_alone(tmp_path):
    path = write(tmp_path, row("1 + 1?", *"abcdefghijkl"), row("other", "x"))
    file = RecordedAnswers.scan(path, LineKey.QUESTION)
    first = drawn(FileSource(file, 1), make_request(n=6))
    used = FileSource(RecordedAnswers.scan(path, LineKey.QUESTION), 1)
    drawn(used, make_request("p9", n=6))
    assert drawn(used, make_request(n=6)) == first, "not on what was asked before"
    assert drawn(FileSource(file, 2), make_request(n=6)) != first
    assert drawn(FileSource(file, 1), make_request("p2", n=6)) != first


def test_evaluations_before_and_after_judge_the_same_solutions(tmp_path):
    source = FileSource(
        RecordedAnswers.scan(write(tmp_path, row("1 + 1?", *"abcdefghijkl")), LineKey.QUESTION), 1
    )
    before = drawn(source, make_request("v3", n=1, prefix="eval-before/"))
    assert drawn(source, make_request("v3", n=1, prefix="eval-after_greedy/")) == before
    others = {drawn(source, make_request(f"v{i}", n=1, prefix="eval-before/"))[0] for i in range(20)}
    assert len(others) > 1


def test_a_problem_without_answers_is_data(tmp_path):
    path = write(tmp_path, row("1 + 1?", "a"))
    source = FileSource(RecordedAnswers.scan(path, LineKey.QUESTION), 1)
    answers = answers_of(source, make_request(question="unknown"))
    assert [answer.finish for answer in answers] == [FinishReason.ERROR] * 2
    assert "no answers to this problem" in answers[0].detail


@pytest.mark.parametrize("content", [None, "short", '{"question": "other!", "answers": ["a"]}\n'])
def test_a_file_that_changed_is_noticed(tmp_path, content):
    path = write(tmp_path, row("1 + 1?", "a"))
    source = FileSource(RecordedAnswers.scan(path, LineKey.QUESTION), 1)
    path.unlink()
    if content is not None:
        path.write_text(content)
    answers = answers_of(source, make_request())
    assert [answer.finish for answer in answers] == [FinishReason.ERROR] * 2
    assert str(path) in answers[0].detail


def test_ids_belong_to_a_file_with_ids(tmp_path):
    file = RecordedAnswers.scan(write(tmp_path, row("q", "a")), LineKey.QUESTION)
    with pytest.raises(ValueError, match="named by question"):
        FileSource(file, 1, {"q": ("1",)})


def test_half_of_a_surrogate_pair_in_a_file_is_no_end_of_the_run(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "1 + 1?", "answers": ["2\\ud800"]}\n')
    source = FileSource(RecordedAnswers.scan(path, LineKey.QUESTION), 1)
    first = answered("p1/solver/0#0", answers_of(source, make_request())[0], ChatTokenizer(AddedTokens()))
    assert (first.text, first.finish) == ("2\ufffd", FinishReason.STOP)
    counter = open_tokenizer(Path(model_path()))
    assert text_tokens(counter, source.file.longest) == 2, "the plan measures it too"
