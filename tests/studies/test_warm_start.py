"""The recipe that made the shipped model: that model knows its transcripts, and a fresh one learns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.demo.assets import model_path
from studies.tiny.curriculum import Drill
from studies.tiny.warm_start import Recipe, _Trainer


def losses(folder: str | None = None) -> dict[str, float]:
    """The recipe's loss of a model, or of a fresh one, on new transcripts of each kind."""
    from transformers import AutoModelForCausalLM

    trainer = _Trainer(Recipe(seed=5, pool=4000))
    if folder is not None:
        trainer.model = AutoModelForCausalLM.from_pretrained(folder)
    found = {}
    with torch.no_grad():
        for kind, _ in trainer.recipe.batch:
            drawn = [trainer._draw(kind) for _ in range(48)]
            found[kind] = trainer._loss(*trainer.batches.encode(drawn, kind is Drill.COMPARING)).item()
    return found


def test_the_shipped_model_has_learnt_what_the_recipe_trains():
    found = losses(model_path())
    # What is left at the Solver is the arithmetic that it is unsure of.
    assert 0.12 < found[SOLVER] < 0.25, found
    assert 0.03 < found[VERIFIER] < 0.15 and 0.03 < found[CORRECTOR] < 0.15, found
    assert max(found[Drill.CHECKING], found[Drill.COMPARING]) < 0.02, found
    assert min(losses().values()) > 5, "a fresh model knows nothing of it"


@pytest.mark.e2e
def test_the_command_teaches_a_fresh_model(tmp_path):
    folder = tmp_path / "model"
    words = ["--output", str(folder), "--steps", "110", "--problems", "50"]
    # On a busy machine threads that spin while they wait would take each other's time.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-m", "studies.tiny.warm_start", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Solver accuracy" in done.stdout
    # The whole recipe has six times as many steps and ends at the shipped model's losses.
    found = losses(str(folder))
    assert max(found[role] for role in (SOLVER, VERIFIER, CORRECTOR)) < 1.2, found
    assert max(found[Drill.CHECKING], found[Drill.COMPARING]) < 2.0, found
