"""`data.filter_overlong_prompts`: verl's dataset without the problems that the Solver would not be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl's dataset")
pytest.importorskip("datasets", reason="verl's dataset")

from cached_config import composed
from transformers import AutoTokenizer

from marsrl_verl.demo.assets import model_path
from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts

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
