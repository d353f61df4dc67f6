"""An evaluation harness runs on a system as on any model: lm-eval, unchanged."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_engine import Reply
from served import HeldAnswers, make_service, served

lm_eval = pytest.importorskip("lm_eval", reason="the harness: pip install lm-eval")

TASK = """\
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 150}}
filter_list:
  - name: boxed
    filter:
      - {{function: regex, regex_pattern: 'boxed\\{{(\\d+)\\}}'}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def test_a_harness_scores_the_final_solutions(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows = [{"question": f"{k}+1?", "answer": str(k + 1)} for k in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))

    def script(item, k):
        number = int(item.problem.question.split("+")[0])
        # Drafts are wrong, and so is the last solution of the two largest.
        return Reply(f"So \\boxed{{{number + (1 if item.stage == 'solution' and number < 6 else 5)}}}.")

    answers = HeldAnswers(script)

    def evaluate(address: str):
        from lm_eval.tasks import TaskManager

        return lm_eval.simple_evaluate(
            model="local-chat-completions",
            model_args=f"model=tiny,base_url={address}/v1/chat/completions,num_concurrent=4,max_retries=1",
            tasks=["sums"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            apply_chat_template=True,
            bootstrap_iters=0,
        )

    async def play():
        async with served(make_service(answers), key="sesame") as address:
            return await asyncio.to_thread(evaluate, address)

    found = asyncio.run(play())
    assert found["results"]["sums"]["exact_match,boxed"] == 6 / 8
    assert len(answers.asked) == 16
