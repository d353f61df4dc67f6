"""`data.filter_overlong_prompts` with the judge task: each agent's prompt is measured as it is sent."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("verl", reason="verl's dataset")
pytest.importorskip("datasets", reason="verl's dataset")

from transformers import AutoTokenizer

from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem
from marsrl_verl.demo.assets import model_path
from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

PAIR = {"answer_a": "short", "answer_b": "short"}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_path())


def test_each_agent_is_measured_by_what_it_is_sent(tmp_path, tokenizer):
    """Of a pair to judge the plan's prompt has the question alone, the verdict's the answers too."""
    long = {**PAIR, "answer_b": "much longer " * 40}
    path = tmp_path / "pairs.jsonl"
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "pairs",
            "reward_model": {"style": "rule", "ground_truth": "A"},
            "extra_info": extra,
        }
        for question, extra in (("Which?", PAIR), ("Which one?", long), ("Which of these? " * 40, PAIR))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))

    def kept(planner: int, judge: int) -> list[int]:
        words = [
            "cluster=cpu", "algo=rema_judge", f"data.train_files={path}", "data.filter_overlong_prompts=true",
            f"marsrl.roles.meta_thinking.max_prompt_tokens={planner}",
            f"marsrl.roles.reasoning.max_prompt_tokens={judge}",
            "marsrl.prompts.target=marsrl_verl.algos.rema.single_turn.judge:JudgePrompts",
        ]  # fmt: skip
        config = compose_config(parse_arguments(words)).config
        dataset = MarsRLTaskRunner._dataset(config, "train", tokenizer, None)
        return [rows.index(row) for row in rows for one in dataset if one["raw_prompt"] == row["prompt"]]

    prompts = JudgePrompts()

    def chat(messages) -> int:
        ids = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
        return len(ids["input_ids"])

    problems = [Problem("p", row["prompt"][0]["content"], "A", extra_info=row["extra_info"]) for row in rows]
    plans = [chat(prompts.plan(one)) for one in problems]
    verdicts = [chat(prompts.solution(one, ".")) for one in problems]
    assert plans[1] < verdicts[0], "the plan's prompt has no answer in it"
    assert kept(10_000, 10_000) == [0, 1, 2]
    assert kept(plans[1], 10_000) == [0, 1], "its own prompt, not the judge's"
    assert kept(10_000, verdicts[0]) == [0]
    with pytest.raises(ValueError, match=r"leaves none of 3 .*meta_thinking.max_prompt_tokens = 10000 or "):
        kept(10_000, 3)
