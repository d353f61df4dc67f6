"""Two whole models that take turns, with real trainer and engines: whose weights move, who samples, kills."""

from __future__ import annotations

import pytest
import torch
from training_runs import (
    TrainingRun,
    checkpoint_log_probs,
    checkpoint_weights,
    export,
    train,
    train_and_kill,
)

from marsrl_verl.demo.assets import model_path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SETTINGS = (
    "algo=marsrl",
    "marsrl.algo.name=benchmarks.taking_turns:TakingTurns",
    "marsrl.policies.judge.kind=model",
    "marsrl.roles.verifier.policy=judge",
    "pipeline=sequential",
    "marsrl.algo.correction_rounds=1",
    "data.train_batch_size=12",
    "marsrl.run.seeded_tokens=all",
    "actor_rollout_ref.actor.optim.lr=0.003",
)
POLICIES = {"solver": "shared", "corrector": "shared", "verifier": "judge"}
STEPS = (1, 2, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainingRun:
    """Killed after two steps, and resumed for a third."""
    root = tmp_path_factory.mktemp("models")
    train_and_kill(root, "models", 2, *SETTINGS, "trainer.total_training_steps=9")
    resume = ("marsrl.run.if_exists=resume", "trainer.total_training_steps=3")
    return train(root, "models", *SETTINGS, *resume)


def test_a_resumed_run_says_where_it_goes_on(run):
    assert "] resumed after step 2 of 3\n" in run.output


def weights(run: TrainingRun, step: int, policy: str) -> dict[str, torch.Tensor]:
    """A policy's weights in the checkpoint of a step; those it began as before the first."""
    if step == 0:
        from transformers import AutoModelForCausalLM

        return dict(AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).state_dict())
    return checkpoint_weights(run.folder, step, policy)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one.keys() & other.keys())


def test_a_step_moves_the_model_whose_turn_it_is_and_no_bit_of_the_other(run):
    for step in STEPS:
        due = "judge" if step % 2 == 0 else "shared"
        moved = {
            name
            for name in ("judge", "shared")
            if not same(weights(run, step - 1, name), weights(run, step, name))
        }
        assert moved == ({due} if run.metrics()[step]["training/updated"] else set())
    assert all(run.metrics()[step]["training/updated"] for step in STEPS), "or nothing is seen"


def test_every_role_is_answered_by_its_own_model_in_its_newest_version(run):
    for step in STEPS:
        newest = {
            "shared": max((one for one in STEPS if one < step and one % 2), default=0),
            "judge": max((one for one in STEPS if one < step and one % 2 == 0), default=0),
        }
        found = {(row["role"], row["policy"], row["policy_version"]) for row in run.rollouts(step)}
        assert found == {(role, name, newest[name]) for role, name in POLICIES.items()}


def test_engine_and_trainer_agree_before_and_after_each_models_step(run):
    for step in STEPS:
        metrics = run.metrics()[step]
        assert metrics["off_policy/ratio_min"] > 0.99 and metrics["off_policy/ratio_max"] < 1.01
        assert metrics["off_policy/kl"] < 1e-6


def test_each_model_is_exported_by_itself(run, tmp_path):
    from safetensors.torch import load_file

    both = export(run.folder, tmp_path / "both")
    assert {path.name for path in both.iterdir()} == {"shared", "judge"}
    judge = export(run.folder, tmp_path / "judge", "policy=judge")
    folders = {both / "shared": "shared", both / "judge": "judge", judge: "judge"}
    for folder, policy in folders.items():
        found = load_file(folder / "model.safetensors")
        assert found and same(found, weights(run, 3, policy))


def test_a_checkpoint_is_what_sampled_the_next_step(run):
    """The engine's text has high probability under the model that it says it is of, and the other differs."""
    rows = [row for row in run.rollouts(3) if row["role"] == "solver"][:4]
    own, judge = (
        torch.cat(checkpoint_log_probs(run.folder, 2, rows, policy)) for policy in ("shared", "judge")
    )
    assert (own - judge).abs().max() > 0.05
    assert own.mean() > judge.mean()
