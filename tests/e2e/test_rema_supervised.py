"""Marked solutions become rows, and verl's own SFT trainer trains on them: the example's script, on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_runs import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CPU = (
    "engine.strategy=fsdp2",
    "engine.use_torch_compile=false",
    "trainer.device=cpu",
    "model.enable_gradient_checkpointing=false",
    "model.use_remove_padding=false",
    "+model.override_config.attn_implementation=sdpa",
)
# The script's words, but for the program, which is told how to do without a GPU.
TORCHRUN = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "--standalone --nproc-per-node 1 -m verl.trainer.sft_trainer" ] || exit 3
shift 5
exec {python} -m torch.distributed.run --standalone --nproc-per-node 1 {program} "$@"
"""


def test_the_example_trains_a_step(tmp_path):
    from studies.tiny.model import build_model
    from studies.tiny.tokenizer import build_tokenizer

    network = build_model(1, hidden=32, layers=2)
    network.config.max_position_embeddings = 4096
    network.save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    parts = "<meta_thinking>Add them.</meta_thinking><reasoning>It is \\boxed{{{}}}.</reasoning>"
    rows = [{"question": f"Find {n}", "solution": parts.format(n), "answer": str(n)} for n in range(8)]
    (tmp_path / "solutions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    programs = tmp_path / "bin"
    programs.mkdir()
    program = Path(__file__).with_name("sft_on_cpu.py")
    (programs / "torchrun").write_text(TORCHRUN.format(python=sys.executable, program=program))
    (programs / "torchrun").chmod(0o755)
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(REPOSITORY),
        "SOLUTIONS": "solutions.jsonl",
        "MODEL_PATH": "model",
        "OUTPUT_ROOT": "out",
        "NUM_GPUS": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "marsrl_verl.verl_adapter.register",
    }
    script = REPOSITORY / "examples" / "sft" / "rema.sh"
    words = ("trainer.total_training_steps=1", *CPU)
    done = subprocess.run(
        ["bash", str(script), *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    (step,) = [line for line in output.splitlines() if line.startswith("step:1 ")]
    loss = float(step.partition("train/loss:")[2].split(" ")[0])
    assert 3 < loss < 9, "about the logarithm of the vocabulary's size, 5.6"
    assert (tmp_path / "out" / "rema-sft" / "global_step_1" / "huggingface" / "config.json").exists()
