"""The command that made the shipped model still makes one like it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tiny_ranges import assert_mediocre


@pytest.mark.e2e
def test_the_command_makes_a_mediocre_model(tmp_path):
    from transformers import AutoModelForCausalLM

    from marsrl_verl.demo.measure import measure

    folder = tmp_path / "model"
    arguments = ["-m", "marsrl_verl.demo.warm_start", "--output", str(folder), "--problems", "50"]
    # On a busy machine threads that spin while they wait would take each other's time.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Solver accuracy" in done.stdout
    assert_mediocre(measure(AutoModelForCausalLM.from_pretrained(folder), problems=400))
