"""A LoRA adapter for each role with real trainer and engine: what samples is what is trained."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from training_runs import (
    EVALUATED,
    REPOSITORY,
    TrainingRun,
    assert_says_greedily,
    evaluate,
    export,
    greedy_calls,
    greedy_outcomes,
    train,
)

from marsrl_verl.demo.assets import model_path
from studies.tiny.tokenizer import ROLE_MARKERS, build_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROLES = ("solver", "verifier", "corrector")
SETTINGS = (
    "policies=lora_per_role",
    "actor_rollout_ref.model.lora_rank=8",
    "pipeline=sequential",
    "marsrl.algo.correction_rounds=1",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "marsrl.roles.verifier.lr=0.001",
    "marsrl.run.seeded_tokens=all",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainingRun:
    steps = "trainer.total_training_steps=3"
    return train(tmp_path_factory.mktemp("runs"), "adapters", *SETTINGS, *EVALUATED, steps)


def test_the_engine_samples_with_the_adapters_that_the_trainer_has(run):
    for step in (1, 2, 3):
        metrics = run.metrics()[step]
        assert metrics["off_policy/age/0/log_ratio_abs_mean"] < 1e-4
        assert metrics["off_policy/ratio_min"] > 0.99 and metrics["off_policy/ratio_max"] < 1.01
        versions = {(row["policy"], row["policy_version"]) for row in run.rollouts(step)}
        assert versions == {(role, step - 1) for role in ROLES}


def test_several_are_trained_each_with_its_rate(run):
    updated = {name for metrics in run.metrics().values() for name in metrics if name.endswith("grad_norm")}
    # A role whose groups all have equal rewards has nothing to learn.
    assert len(updated & {f"{role}/actor/grad_norm" for role in ROLES}) >= 2
    rates = {name: rate for one in run.metrics().values() for name, rate in one.items() if "actor/lr" in name}
    assert rates == {name: 0.001 if "verifier" in name else 0.01 for name in rates} and len(rates) >= 2


def test_an_evaluation_of_the_checkpoint_is_that_of_the_run(run):
    root = run.folder.parent
    found = evaluate(root, "alone", *SETTINGS, *EVALUATED, f"checkpoint={run.folder}")
    assert greedy_outcomes(found.folder, "alone") == greedy_outcomes(run.folder, "after")
    evaluate(root, "start", *SETTINGS, *EVALUATED)  # the model, as adapters begin
    assert greedy_outcomes(root / "start", "alone") != greedy_outcomes(run.folder, "after")


def test_transformers_and_vllm_read_the_exported_folders_alike(run, tmp_path):
    asked = [sys.executable, "-m", "benchmarks.exported_adapters", run.folder, "3", tmp_path / "read.json"]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "read.json").read_text())
    assert set(found) == set(ROLES)
    for differences in found.values():
        assert differences["transformers to vLLM"] < 1e-3 and differences["without adapter"] < 1e-3
    assert max(one["adapter to model"] for one in found.values()) > 0.1, "or agreement would mean nothing"


def test_an_export_has_the_checkpoints_files_and_says_greedily_what_the_run_said(run, tmp_path):
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    folder = export(run.folder, tmp_path / "exported")
    merged = export(run.folder, tmp_path / "merged", "merge_adapters=true")
    for role in ROLES:
        kept = run.folder / f"checkpoints/global_step_3/actor/adapters/{role}"
        assert all((folder / role / one.name).read_bytes() == one.read_bytes() for one in kept.iterdir())
        calls = [call for call in greedy_calls(run.folder) if call["role"] == role]
        adapted = AutoPeftModelForCausalLM.from_pretrained(folder / role)
        assert_says_greedily(adapted, folder / role, calls)
        assert_says_greedily(AutoModelForCausalLM.from_pretrained(merged / role), merged / role, calls)


def test_and_they_say_something_else_than_the_model(run):
    """Or the agreement would mean nothing."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = run.folder / "checkpoints/global_step_2/actor/adapters"
    assert {path.name for path in folder.iterdir()} == set(ROLES)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_path()), folder / "solver")
    row = next(row for row in run.rollouts(3) if row["role"] == "solver")
    prompt = f"{ROLE_MARKERS['user']}{row['problem']['question']}<|end|>{ROLE_MARKERS['assistant']}"
    ids = build_tokenizer().encode(prompt, add_special_tokens=False) + row["token_ids"]

    def log_probs() -> torch.Tensor:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)

    adapted = log_probs()
    with model.disable_adapter():
        difference = (adapted - log_probs()).abs().max()
    assert difference > 0.1
