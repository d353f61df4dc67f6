"""The study of AttnRL's Fig. 3: the choice of steps, data files, grading, figures, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Lfm2Config, Lfm2ForCausalLM

from benchmarks.attention_disruption import load, main, settings_of
from benchmarks.disruption.cuts import (
    INFLUENCE,
    OTHER,
    SURPRISE,
    Cut,
    draw_cuts,
    eligible_steps,
    mean_surprise,
    steps_by_kind,
)
from benchmarks.disruption.problems import AnswerCheck, read_problems, tiny_problems
from benchmarks.disruption.sampling import Decoding
from benchmarks.disruption.statistics import as_table, summarise
from benchmarks.disruption.study import Chosen, Disrupted, Plan, Response, Study
from marsrl_verl.algos.attnrl.step_cutter import step_cutter
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.core.request import Problem
from marsrl_verl.data.columns import Columns
from marsrl_verl.demo.assets import model_path
from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.problems import rows as tiny_rows
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer


def test_surprise_is_the_mean_over_a_step():
    assert mean_surprise(Steps((2, 3, 6), 3), [-1.0, -3.0, -0.5, 0.0, -3.0, -6.0]) == [2.0, 0.5, 3.0]


def test_steps_that_can_be_hidden():
    even = Steps(tuple(range(3, 31, 3)), 10)
    assert eligible_steps(even, 1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert eligible_steps(even, 4) == [1, 2, 3, 4, 5], "four steps follow the fifth"
    closed = Steps(even.ends, 5)  # step 5 closes the thinking part
    assert eligible_steps(closed, 1) == eligible_steps(closed, 4) == [1, 2, 3, 4]
    assert eligible_steps(Steps((3, 6, 7, 9, 12), 5), 1) == [1, 3], "step 2 is one token, which would stay"
    assert eligible_steps(Steps((3,), 1), 1) == eligible_steps(Steps((), 0), 1) == []


def test_kinds_of_steps():
    influence = [9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.0, 0.4, 0.5, 0.6, 0.05, 9]
    surprise = [9, 0.3, 2.0, 0.1, 0.2, 1.5, 0.4, 0.5, 0.6, 0.7, 0.8, 9]
    eligible = list(range(1, 11))  # not 0 and 11, whatever their figures
    found = steps_by_kind(eligible, influence, surprise, 0.2)
    assert found == {INFLUENCE: [2, 4], SURPRISE: [5], OTHER: [1, 3, 6, 7, 8, 9, 10]}
    assert steps_by_kind(eligible, influence, surprise, 0.21)[INFLUENCE] == [2, 4, 9], "rounded up"
    assert steps_by_kind(eligible, influence, influence, 0.2)[SURPRISE] == []
    assert steps_by_kind([4, 2, 3], [1.0] * 5, [1.0] * 5, 0.2)[INFLUENCE] == [2], "the earlier of equals"
    hundred = list(range(100))
    assert len(steps_by_kind(hundred, hundred, hundred, 0.07)[INFLUENCE]) == 7


def test_one_cut_of_each_kind_is_drawn():
    steps = Steps((10, 20, 30, 40, 50, 60, 70, 80), 8)
    by_kind = {INFLUENCE: [1, 2], SURPRISE: [3], OTHER: [4, 5, 6]}
    drawn = [draw_cuts(steps, by_kind, np.random.default_rng(seed)) for seed in range(60)]
    for cuts in drawn:
        assert [one.kind for one in cuts] == [INFLUENCE, SURPRISE, OTHER]
        for one in cuts:
            assert one.hidden == (one.step * 10, one.step * 10 + 9) and one.kept == one.step * 10 + 10
            assert one.first_half == (one.step <= 3), "step 4 begins in the middle"
    for place, kind in enumerate(by_kind):
        counts = [sum(cuts[place].step == step for cuts in drawn) for step in by_kind[kind]]
        assert min(counts) >= 60 / len(counts) / 2, "each about as often"
    assert draw_cuts(steps, {**by_kind, SURPRISE: []}, np.random.default_rng(1)) == []


def test_the_half_is_that_of_the_steps_middle():
    steps = Steps((30, 62, 70, 80, 100), 5)  # step 1 lies around token 46, step 2 around 66
    cuts = draw_cuts(steps, {INFLUENCE: [1], SURPRISE: [2], OTHER: [3]}, np.random.default_rng(1))
    assert [one.first_half for one in cuts] == [True, False, False]


def disrupted(
    problem: str, kind: str, first_half: bool, nothing: bool | None, hidden: bool | None
) -> Disrupted:
    return Disrupted(1, problem, 0, kind, first_half, 1, 9, 50, 4, 0.1, 0.2, nothing, hidden)


def test_figures_by_kind_and_half():
    found = [
        disrupted("a", INFLUENCE, True, True, False),
        disrupted("b", INFLUENCE, True, True, False),
        disrupted("c", INFLUENCE, False, True, True),
        disrupted("d", INFLUENCE, False, False, True),
        disrupted("e", INFLUENCE, False, True, None),  # left out
        disrupted("f", INFLUENCE, False, None, False),  # left out
        disrupted("a", OTHER, True, True, True),
    ]
    lines = {(line.kind, line.place): line for line in summarise(found)}
    assert len(lines) == 9

    def figures(kind: str, place: str) -> list[float | int | None]:
        one = lines[kind, place]
        return [one.nothing_hidden.n, one.nothing_hidden.mean, one.step_hidden.mean, one.lost.mean]

    assert figures(INFLUENCE, "anywhere") == [4, 0.75, 0.5, 0.25]
    assert figures(INFLUENCE, "first half") == [2, 1.0, 0.0, 1.0]
    assert figures(INFLUENCE, "second half") == [2, 0.5, 1.0, -0.5]
    assert figures(OTHER, "anywhere") == figures(OTHER, "first half") == [1, 1.0, 1.0, 0.0]
    assert figures(SURPRISE, "anywhere") == [0, None, None, None]
    lost = lines[INFLUENCE, "anywhere"].lost
    assert lost.low is not None and lost.low < 0 < lost.mean < lost.high
    rows = as_table(summarise(found)).splitlines()
    assert [cell.strip() for cell in rows[5].split("|")[1:5]] == [SURPRISE, "anywhere", "0", "–"]


@pytest.fixture(scope="module")
def chat():
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    return ChatTokenizer(tokenizer, end_ids=frozenset({tokenizer.eos_token_id, 7}))


@pytest.mark.parametrize("reward", ["exact", "hybrid"])
def test_a_data_file_is_read_and_answers_are_graded(tmp_path, chat, reward):
    path = tmp_path / "problems.jsonl"
    rows = [
        {"question": "Compute 7+5", "answer": "12"},
        {"question": "Compute 9-4", "answer": ["5", "five"]},
        {"question": "Compute 7+5", "answer": "12"},  # once is enough
        {"question": "Compute 1+2", "answer": "3"},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    columns = Columns(question="question", answer="answer")
    assert len(read_problems(path, columns, None)) == 3
    problems = read_problems(path, columns, 2)
    assert [one.question for one in problems] == ["Compute 7+5", "Compute 9-4"]

    def response(text: str, *ends: int) -> list[int]:
        return [*chat.tokenizer.encode(text, add_special_tokens=False), *ends]

    end = chat.tokenizer.eos_token_id
    prompt = chat.prompt_ids(problems[0].messages)
    check = AnswerCheck(reward, chat)
    try:
        right = check.right(
            [
                (problems[0], prompt, response("7+5=12\n\\boxed{12}", end)),
                (problems[0], prompt, response("7+5=12\n\\boxed{12}", 7)),
                (problems[0], prompt, response("7+5=12\n\\boxed{12}")),  # cut off
                (problems[0], prompt, response("\\boxed{5}", end)),
                (problems[1], prompt, response("\\boxed{5}", end)),
                (problems[1], prompt, response("5", end)),
                (problems[0], prompt, response("\\boxed{10+2}", end)),
            ]
        )
    finally:
        check.close()
    equivalent = reward == "hybrid"
    assert right == [True, True, False, False, True, False, equivalent]


def test_a_failing_grader_is_no_wrong_answer(chat):
    check = AnswerCheck("exact", chat)
    without = Problem("p", "Compute 1+1", "")
    response = [*chat.tokenizer.encode("\\boxed{2}", add_special_tokens=False), chat.tokenizer.eos_token_id]
    try:
        assert check.right([(without, [4], response)]) == [None]
    finally:
        check.close()


def test_verls_format_and_what_is_refused_in_it(tmp_path):
    pd = pytest.importorskip("pandas")
    rows = tiny_rows(Split.HELD_OUT, 5, 1)
    path = tmp_path / "problems.parquet"
    pd.DataFrame(rows).to_parquet(path, index=False)
    problems = read_problems(path, Columns(), None)
    assert [one.ground_truth for one in problems] == [one["reward_model"]["ground_truth"] for one in rows]
    with pytest.raises(ValueError, match="it holds 5 problems, but --problems is 6"):
        read_problems(path, Columns(), 6)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(rows[0]) + "\n" + json.dumps({**rows[1], "reward_model": {}}) + "\n")
    with pytest.raises(ValueError, match=r"1 of 2 rows .* no answer in reward_model.ground_truth .*row 1"):
        read_problems(bad, Columns(), None)


def test_defaults_follow_the_data():
    tiny, file = settings_of([]), settings_of(["--data", "aime24.parquet", "--samples", "2"])
    assert (tiny.delta, tiny.problems, tiny.reward, tiny.max_new_tokens) == (1, 400, "exact", 48)
    assert (file.delta, file.problems, file.reward, file.max_new_tokens) == (4, None, "hybrid", 8192)


@pytest.mark.parametrize(
    "words", ["--answer-column a", "--problems 0", "--seeds 1 1", "--json /no/such/folder/rows.json"]
)
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        settings_of(words.split())
    assert words.split()[0] in capsys.readouterr().err


def test_all_end_tokens_of_the_generation_config_count(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(model_path())
    model.generation_config.eos_token_id = [5, 9]
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_path()).save_pretrained(tmp_path)
    loaded, chat = load(settings_of(["--model", str(tmp_path), "--device", "cpu", "--dtype", "bfloat16"]))
    assert chat.end_ids == {1, 5, 9} and loaded.dtype == torch.bfloat16


def test_models_in_which_nothing_can_be_hidden_are_refused(tmp_path):
    AutoTokenizer.from_pretrained(model_path()).save_pretrained(tmp_path)
    config = Lfm2Config(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    Lfm2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="layers of type conv, which hide no token"):
        load(settings_of(["--model", str(tmp_path), "--device", "cpu"]))


def test_the_study_of_a_file_with_the_tiny_model(tmp_path, capsys):
    data, rows = tmp_path / "problems.jsonl", tmp_path / "rows.json"
    chains = tiny_rows(Split.HELD_OUT, 12, 5)
    data.write_text("".join(json.dumps(one) + "\n" for one in chains))
    words = f"--data {data} --delta 1 --max-new-tokens 48 --samples 6 --reward exact".split()
    words += f"--device cpu --seeds 1 2 --json {rows}".split()
    assert main(words) == 0
    found = json.loads(rows.read_text())
    answers, counts = found["answers"], found["responses"]
    assert counts["sampled"] == 2 * 12 * 6 and counts["not graded"] == 0
    assert 0 < counts["taking part"] < counts["right"] < counts["sampled"]
    assert len(answers) == 3 * counts["taking part"] and {one["seed"] for one in answers} == {1, 2}
    for three in zip(*[iter(answers)] * 3, strict=True):
        assert [one["kind"] for one in three] == [INFLUENCE, SURPRISE, OTHER]
        assert len({one["step"] for one in three}) == 3
        assert three[0]["influence"] == max(one["influence"] for one in three)
    lost = sum(one["right_with_nothing_hidden"] - one["right_with_step_hidden"] for one in answers)
    assert lost > 0.5 * len(answers), "each step of the tiny task carries the running total"
    assert f"{counts['taking part']} taking part" in capsys.readouterr().out
    assert main([*words, "--batch-size", "5"]) == 0
    assert json.loads(rows.read_text())["answers"] == answers, "whatever the batches"


class EverythingIsRight:
    """A check that remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[list] = []

    def right(self, answered):
        self.calls.append(list(answered))
        return [True] * len(answered)


def study_of(chat, instruction: str, samples: int):
    """The study with the tiny model, and what was graded: responses, rests with nothing and a step hidden."""
    check = EverythingIsRight()
    model = AutoModelForCausalLM.from_pretrained(model_path(), attn_implementation="sdpa").eval()
    plan = Plan(samples, max_new_tokens=48, delta=1, top_frac=0.2, decoding=Decoding())
    study = Study(model, chat, MathPrompts(instruction), check, plan, lambda line: None)
    return study.run(tiny_problems(8, 1), 4).disrupted, *check.calls


def test_rests_are_graded_with_what_was_kept(chat):
    found, responses, nothing, hidden = study_of(chat, "", samples=4)
    assert len(responses) == 32 and len(nothing) == len(hidden) == len(found) > 3
    cutter = step_cutter(chat.tokenizer)
    for number, (one, *graded) in enumerate(zip(found, nothing, hidden, strict=True)):
        samples = [ids for problem, _, ids in responses if problem.problem_id == one.problem]
        original = samples[one.sample]
        end = cutter.cut(original).ends[one.step]
        for problem, _, ids in graded:
            assert problem.problem_id == one.problem
            assert tuple(ids[:end]) == original[:end] and len(ids) > end, number


def test_what_is_sampled_on_from():
    response = Response(Problem("p", "q", "1"), 0, (50, 51), tuple(range(10)))
    chosen = Chosen(response, Cut(OTHER, 1, (3, 5), 6, True), 4, 0.1, 0.2)
    hidden, nothing = chosen.beginning(True, 30, 1), chosen.beginning(False, 30, 1)
    assert hidden.ids == nothing.ids == (50, 51, 0, 1, 2, 3, 4, 5)
    assert hidden.hidden == (5, 7) and nothing.hidden == (0, 0)
    assert hidden.most == nothing.most == 24, "the response may have 30 tokens"
    assert hidden.seed == nothing.seed != chosen.beginning(True, 30, 2).seed


def test_no_room_in_the_model_and_no_figures_are_told(tmp_path, capsys):
    assert main(["--device", "cpu", "--problems", "2", "--max-new-tokens", "600"]) == 2
    assert "--max-new-tokens is 600, but the model has 512 positions" in capsys.readouterr().err
    assert main(["--device", "cpu", "--problems", "1", "--samples", "1", "--max-new-tokens", "2"]) == 1
    assert "no response took part" in capsys.readouterr().err
