"""A model of the user's own: its prompts and lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from messages import accepted
from small_files import SHAPE, make_model


@pytest.fixture
def large_vocabulary(tmp_path) -> Path:
    folder = make_model(tmp_path / "chat-model")
    (folder / "config.json").write_text(
        json.dumps(SHAPE | {"vocab_size": 151_936, "max_position_embeddings": 32_768})
    )
    return folder


def test_the_tiny_worlds_prompts_are_refused_for_another_model(run, large_vocabulary):
    done = run("cluster=cpu", "dry_run=true", f"actor_rollout_ref.model.path={large_vocabulary}")
    assert done.status == 2
    assert "tiny task's prompts" in done.err
    assert "48 tokens" in " ".join(done.err.split())
    assert "model=custom" in done.err


def test_so_they_are_for_a_model_that_is_not_here_yet(run):
    done = run("cluster=cpu", "dry_run=true", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct")
    assert done.status == 2
    assert "model=custom" in done.err


def test_the_other_roles_lengths_follow_from_the_solvers(run, large_vocabulary):
    done = accepted(
        run,
        f"cluster=cpu model=custom actor_rollout_ref.model.path={large_vocabulary}",
        "data.max_prompt_length=500 data.max_response_length=2000",
        "marsrl.roles.corrector.max_new_tokens=1000",
    )
    roles = done.launched.marsrl.roles
    assert done.launched.marsrl.prompts.target == "marsrl_verl.algos.marsrl.prompts:MathPrompts"
    assert (roles.solver.max_prompt_tokens, roles.solver.max_new_tokens) == (500, 2000)
    assert roles.verifier.max_prompt_tokens == 500 + 2000 + 1024
    assert roles.corrector.max_prompt_tokens == 500 + 2000 + 1024 + 2000
    assert (roles.verifier.max_new_tokens, roles.corrector.max_new_tokens) == (2000, 1000)
    assert done.launched.actor_rollout_ref.rollout.max_model_len == 5524 + 1000


def test_every_prompt_of_the_preset_fits(run, large_vocabulary):
    done = accepted(
        run, "cluster=cpu", "dry_run=true", "model=custom", f"actor_rollout_ref.model.path={large_vocabulary}"
    )
    assert "longer ones are skipped" not in done.out


def test_the_preset_asks_for_a_model(run):
    done = run("cluster=cpu", "dry_run=true", "model=custom", "actor_rollout_ref.model.path=null")
    assert done.status == 2
    assert "No model is named" in done.err


def test_an_own_preset_needs_no_prompts(run, tmp_path, large_vocabulary):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(
        f"# @package _global_\nactor_rollout_ref:\n  model:\n    path: {large_vocabulary}\n"
    )
    done = run("--config-dir", str(tmp_path / "conf"), "model=mine", "cluster=cpu", "dry_run=true",
               f"actor_rollout_ref.model.path={large_vocabulary}")  # fmt: skip
    assert done.status == 0, done.err
    assert "prompts marsrl_verl.algos.marsrl.prompts:MathPrompts" in done.text


def test_the_plan_names_the_reward_classes(run):
    done = accepted(
        run,
        "cluster=cpu dry_run=true",
        "marsrl.reward.solver.target=marsrl_verl.rewards.math_verify:MathVerifyReward",
    )
    assert "reward marsrl_verl.rewards.math_verify:MathVerifyReward (solver)" in done.text
    assert "reward marsrl_verl.rewards.exact:ExactAnswerReward (corrector)" in done.text


def test_no_steps_points_to_the_evaluation_alone(run):
    done = run("cluster=cpu", "trainer.total_training_steps=0")
    assert done.status == 2 and "trainer.val_only=true" in done.err
    plan = run("cluster=cpu", "trainer.val_only=true", "dry_run=true")
    assert plan.status == 0 and "evaluates alone" in plan.out
    assert "optimizer updates" not in plan.out and "Stages" not in plan.out


def test_a_missing_value_is_named_once(run, tmp_path):
    (tmp_path / "conf" / "reward").mkdir(parents=True)
    (tmp_path / "conf" / "reward" / "mine.yaml").write_text("# @package _global_\nmarsrl: {run: {seed: 2}}\n")
    done = run("--config-dir", str(tmp_path / "conf"), "reward=mine", "cluster=cpu", "dry_run=true")
    assert done.status == 2
    assert "  marsrl.reward.solver.target\n" in done.err
    assert "reward=math_verify" in done.err
