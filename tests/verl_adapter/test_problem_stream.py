"""Problems from verl's dataset, epoch after epoch, also after a resume; those that are too long leave it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verl", reason="its dataset")

import scripted_trainer
import torch
from cached_config import composed
from scheduler_tools import step_result
from scripted_trainer import collate
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from transformers import AutoTokenizer

from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.data.columns import ground_truth_of
from marsrl_verl.data.problems import question_of
from marsrl_verl.demo.assets import model_path
from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts
from marsrl_verl.verl_adapter.trainer.problem_stream import (
    NothingToTrainError,
    ProblemStream,
    SkippedProblems,
    problems_of,
)

ROWS = scripted_trainer.ROWS[:10]


def stream(seed: int = 3, *, whole_epochs: bool = False) -> ProblemStream:
    generator = torch.Generator().manual_seed(seed)
    order = RandomSampler(ROWS, generator=generator)
    loader = StatefulDataLoader(ROWS, batch_size=3, drop_last=True, collate_fn=collate, sampler=order)
    return ProblemStream(loader, whole_epochs=whole_epochs)


def take(source: ProblemStream, count: int) -> list[list[tuple[str, str]]]:
    return [[(p.problem_id, p.question) for p in source.take(3)] for _ in range(count)]


def everything(source: ProblemStream) -> list[str]:
    return [one.question for one in source.take_from_epoch(100, lambda problem: True)]


def test_a_whole_pass_has_the_problems_that_fill_no_batch():
    questions = {f"{i} + 1 = ?" for i in range(10)}
    source = stream(whole_epochs=True)
    for _ in range(2):
        found = everything(source)
        assert len(found) == 10 and set(found) == questions
        source.begin_epoch()
    assert len(everything(stream())) == 9, "verl's own passes"


@pytest.mark.parametrize("read", [2, 7, 9, 10])
def test_a_whole_pass_goes_on_where_it_was_saved(read):
    source, other = stream(whole_epochs=True), stream(whole_epochs=True)
    source.take_from_epoch(read, lambda problem: True)
    other.load_state_dict(source.state_dict())
    for _ in range(2):
        assert everything(other) == everything(source)
        source.begin_epoch()
        other.begin_epoch()


def test_ids_are_unique_across_epochs_and_an_epoch_visits_no_row_twice():
    taken = [one for batch in take(stream(), 10) for one in batch]
    assert len({name for name, _ in taken}) == 30
    assert len({question for _, question in taken[:9]}) == 9


def test_problems_that_are_not_admitted_are_passed_over():
    found = [one.question for one in stream().take(12, lambda problem: problem.question != "1 + 1 = ?")]
    assert "1 + 1 = ?" not in found and len(set(found[:8])) == 8


def test_extra_info_comes_along_as_plain_values():
    extra = {"index": np.int64(3), "levels": np.array([1, 2]), "split": "train", "nothing": None}
    batch = collate([{**ROWS[0], "extra_info": extra}, {**ROWS[1], "extra_info": None}])
    first, second = problems_of(batch, 0, "p")
    assert first.extra_info == {"index": 3, "levels": [1, 2], "split": "train", "nothing": None}
    assert type(first.extra_info["index"]) is int
    assert second.extra_info == {}
    assert problems_of(collate(ROWS[:1]), 0, "p")[0].extra_info == {}


NOBODY_ASKED = step_result(ended=[Ended(f"p{i}", "solver", EndReason.SKIPPED) for i in range(4)])


def test_a_pass_over_the_data_in_which_nothing_is_asked_ends_the_run():
    skipped = SkippedProblems(rows=10, limits={"agent": 7})
    skipped.look(NOBODY_ASKED)
    skipped.look(NOBODY_ASKED)
    with pytest.raises(NothingToTrainError, match=r"last 12 problems .*roles.agent.max_prompt_tokens = 7"):
        skipped.look(NOBODY_ASKED)


def test_problems_that_are_asked_in_between_let_the_run_go_on():
    skipped = SkippedProblems(rows=10, limits={"agent": 7})
    for _ in range(9):
        skipped.look(NOBODY_ASKED)
        skipped.look(step_result(waiting={"solver": 1}))


def resumed(source: ProblemStream) -> ProblemStream:
    other = stream(seed=99)  # the generator's state comes from the checkpoint, not from its seed
    other.load_state_dict(source.state_dict())
    return other


@pytest.mark.parametrize("before", range(1, 8))
def test_resume_continues_with_the_batch_that_would_have_come(before):
    whole, interrupted = take(stream(), 14), stream()
    take(interrupted, before)
    assert take(resumed(interrupted), 14 - before) == whole[before:]


def test_a_stream_that_nothing_was_taken_from_can_be_resumed():
    assert len(take(resumed(stream()), 3)) == 3


@pytest.mark.parametrize("sizes", [[1, 2, 5, 4], [7, 1, 1, 3], [4, 4, 4]])
def test_any_number_of_problems_can_be_taken_also_after_a_resume(sizes):
    whole = [name for batch in take(stream(), 4) for name in batch]
    source, taken = stream(), []
    for size in sizes:
        taken += [(p.problem_id, p.question) for p in source.take(size)]
        source = resumed(source)
    assert taken == whole


def test_question_is_the_last_user_message():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert question_of(messages) == "q"
    with pytest.raises(ValueError, match="needs a user message"):
        question_of([{"role": "system", "content": "s"}])


def test_ground_truth_may_be_a_list_and_may_carry_spaces():
    assert ground_truth_of({"ground_truth": " 9.6\n"}) == "9.6"
    assert ground_truth_of({"ground_truth": ["9.6\n"]}) == "9.6"
    assert ground_truth_of({"ground_truth": ["9.6\n", "48/5"]}) == '["9.6", "48/5"]'
    with pytest.raises(ValueError, match="empty list"):
        ground_truth_of({"ground_truth": []})


# --- data.filter_overlong_prompts: without the problems that the Solver would not be asked --------


QUESTIONS = ["Compute 1+2", "Compute 1+2+3+4+5+6+7+8+9+1+2+3+4+5+6+7", "Compute 4+5"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_path())


@pytest.fixture
def remaining_questions(tmp_path, tokenizer):
    """The questions of the training set under some settings."""
    path = tmp_path / "train.jsonl"
    rest = {"data_source": "tiny", "reward_model": {"style": "rule", "ground_truth": "3"}}
    rows = [{"prompt": [{"role": "user", "content": question}], **rest} for question in QUESTIONS]
    path.write_text("\n".join(map(json.dumps, rows)))

    def call(*words: str) -> list[str]:
        config = composed(f"data.train_files={path}", *words)
        dataset = MarsRLTaskRunner._dataset(config, "train", tokenizer, None)
        return [row["raw_prompt"][0]["content"] for row in dataset]

    return call


def test_problems_that_are_too_long_for_the_solver_leave_the_dataset(remaining_questions, capsys):
    limit = "marsrl.roles.solver.max_prompt_tokens=12"
    assert remaining_questions(limit) == QUESTIONS
    assert remaining_questions(limit, "data.filter_overlong_prompts=true") == [QUESTIONS[0], QUESTIONS[2]]
    assert "leaves out 1 of 3 train problems" in capsys.readouterr().out
    assert remaining_questions("data.filter_overlong_prompts=true") == QUESTIONS


def test_data_of_which_nothing_is_left_is_refused(remaining_questions):
    with pytest.raises(ValueError, match=r"leaves none of 3 problems.*max_prompt_tokens = 2 tokens"):
        remaining_questions("marsrl.roles.solver.max_prompt_tokens=2", "data.filter_overlong_prompts=true")


def test_a_dataset_class_without_rows_is_refused(tokenizer):
    with pytest.raises(TypeError, match="Path keeps no rows"):
        filter_overlong_prompts(Path(), composed(), tokenizer)
