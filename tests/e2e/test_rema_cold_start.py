"""From marked solutions and problems to a table and an exported model: one script's stages, on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SCRIPT = REPOSITORY / "examples/from_cold_start/rema.sh"
LISTS = (
    "training=preset",
    "marsrl.algo.max_turns=2",
    "marsrl.algo.message_tokens=16",
    *(f"marsrl.roles.{role}.max_prompt_tokens=1024" for role in ("meta_thinking", "reasoning")),
    *(f"marsrl.roles.{role}.max_new_tokens=256" for role in ("meta_thinking", "reasoning")),
)
STEPS = (
    "data.train_batch_size=4", "marsrl.algo.group_size=4", "trainer.total_training_steps=2",
    "trainer.save_freq=2", "trainer.logger=[]",
    "marsrl.evaluation.before=false", "marsrl.evaluation.after=false",
)  # fmt: skip


def write_lines(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_model(folder: Path) -> str:
    """A network that reads the prompts of dialogues character by character."""
    from studies.tiny.model import build_model
    from studies.tiny.tokenizer import build_tokenizer

    network = build_model(1, hidden=64, layers=2)
    network.config.max_position_embeddings = 4096
    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return str(folder)


def test_all_stages(tmp_path):
    parts = "<meta_thinking>Add them.</meta_thinking><reasoning>It is \\boxed{{{}}}.</reasoning>"
    marked = [{"question": f"Find {n}", "solution": parts.format(n), "answer": str(n)} for n in range(8)]
    problems = [
        {"question": f"Find {n}", "reward_model": {"ground_truth": str(n)}, "subset": "toy", "level": 1}
        for n in range(10, 30)
    ]
    copies = tmp_path / "copies"
    copies.mkdir()
    for name in ("math500", "gsm8k", "aime24", "amc23", "gaokao2023en", "minerva", "olympiadbench"):
        answers = {"gsm8k": "#### 6"}.get(name, "6")
        write_lines(
            copies / f"{name}.jsonl", [{"problem": f"{name}?", "question": f"{name}?", "answer": answers}]
        )
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PROBLEMS": write_lines(tmp_path / "problems.jsonl", problems),
        "SOLUTIONS": write_lines(tmp_path / "marked.jsonl", marked),
        "BASE_MODEL": make_model(tmp_path / "model"),
        "BENCHMARK_FILES": str(copies),
        **{"OUTPUT_ROOT": str(tmp_path / "out"), "NAME": "toy", "HELD_OUT": "4", "CLUSTER": "cpu"},
    }

    def stage(*words: str) -> str:
        done = subprocess.run(
            ["bash", str(SCRIPT), *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        return output

    assert "toy-data/train.parquet: 16 problems" in stage("data")
    output = stage("sft", "trainer.total_training_steps=1", "data.num_workers=0")
    (step,) = [line for line in output.splitlines() if line.startswith("step:1 - perf")]
    loss = float(step.partition("train/loss:")[2].split(" ")[0])
    assert 3 < loss < 9, "about the logarithm of the vocabulary's size, 5.6"
    stage("train", *LISTS, *STEPS)
    config = (tmp_path / "out/toy/config.yaml").read_text()
    assert f"path: {tmp_path}/out/rema-sft/global_step_1/huggingface" in config
    stage("evaluate", *LISTS)
    table = (tmp_path / "out/toy-table/report.md").read_text()
    assert "| math500 | 1 | accuracy |" in table and "| **mean** |" in table
    stage("export")
    card = (tmp_path / "out/toy-exported/README.md").read_text()
    assert "### toy-table" in card and "| math500 | 1 | accuracy |" in card
