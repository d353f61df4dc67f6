"""Real Ray, FSDP2 on gloo, vLLM, weight sync, checkpoint and resume, on CPU with the tiny model."""

from __future__ import annotations

import pytest
import torch
from training_runs import STEPS, checkpoint_log_probs, train, train_and_kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.slow]


def test_every_step_decodes_one_round_and_updates(whole_run):
    metrics = whole_run.metrics()
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert {metrics[step]["rollout/rounds"] for step in metrics} == {1}
    assert all(metrics[step]["actor/grad_norm"] > 0 for step in metrics if metrics[step]["training/updated"])
    assert sum(metrics[step]["training/updated"] for step in metrics) >= STEPS - 1


def test_stages_follow_one_another_from_step_to_step(whole_run):
    assert {row["stage"] for row in whole_run.rollouts(1)} == {"solver"}
    assert "verifier_1" in {row["stage"] for row in whole_run.rollouts(2)}
    verifier = [row for row in whole_run.rollouts(2) if row["stage"] == "verifier_1"]
    solver_samples = {row["trajectory"] for row in whole_run.rollouts(1)}
    assert {row["parent"] for row in verifier} <= solver_samples


def test_engine_and_trainer_agree_before_and_after_the_weights_changed(whole_run):
    # Step 1 samples with the first weights, later steps with synced ones. The trainer recomputes the
    # log-probabilities of the sampled tokens with its own weights; float32 on both sides.
    metrics = whole_run.metrics()
    gaps = {step: one["rollout/log_prob_gap_max"] for step, one in metrics.items() if one["training/updated"]}
    assert len(gaps) >= 2
    assert max(gaps.values()) < 1e-3, gaps


def test_a_forgotten_sync_would_show(whole_run):
    # The samples of step 3 come from the weights after step 2; those after step 1 say something else.
    rows = [row for row in whole_run.rollouts(3) if row["stage"] == "solver" and row["token_ids"]]
    synced = checkpoint_log_probs(whole_run.folder, 2, rows)
    stale = checkpoint_log_probs(whole_run.folder, 1, rows)
    differences = torch.cat([(a - b).abs() for a, b in zip(synced, stale, strict=True)])
    assert differences.max() > 1e-2


def test_samples_carry_the_version_that_sampled_them(whole_run):
    for step in range(1, STEPS + 1):
        assert {row["policy_version"] for row in whole_run.rollouts(step)} == {step - 1}


def test_rewards_lose_kl_to_the_model_as_it_was_at_the_start(whole_run):
    metrics = [one for _, one in sorted(whole_run.metrics().items()) if one["training/updated"]]
    found = [one["actor/reward_kl_penalty"] for one in metrics]
    assert found[0] == pytest.approx(0.0, abs=1e-8) and min(found[1:]) > 1e-6, found
    coefficients = [one["actor/reward_kl_penalty_coeff"] for one in metrics]
    # Far below its target the controller lowers it, by at most 0.2 % a row.
    assert coefficients[0] == 0.001 and coefficients == sorted(set(coefficients), reverse=True)


def test_two_ranks_train_all_stages_inside_a_step(tmp_path):
    run = train(
        tmp_path,
        "two_ranks",
        "pipeline=sequential",
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
    )
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    for step in (1, 2):
        assert metrics[step]["rollout/rounds"] >= 2
        assert {row["stage"] for row in run.rollouts(step)} >= {"solver", "verifier_1"}
        assert metrics[step]["rollout/log_prob_gap_max"] < 1e-3
    assert (run.folder / "checkpoints/global_step_2/actor/model_world_size_2_rank_1.pt").is_file()


def test_segments_with_overlap_continue_with_newer_weights_and_survive_a_kill(tmp_path):
    settings = (
        "pipeline=overlapped",
        "trainer.total_training_steps=6",
        "marsrl.pipeline.max_segments=4",
        "marsrl.pipeline.min_group=2",
        "marsrl.off_policy.mode=tis",
        "marsrl.algo.mastered_tokens.enabled=true",
    )
    train_and_kill(tmp_path, "segments", 3, *settings)
    run = train(tmp_path, "segments", *settings, "marsrl.run.existing=resume")
    metrics = run.metrics()
    assert sorted(metrics) == list(range(1, 7))
    rows = [row | {"step": step} for step in metrics for row in run.rollouts(step)]
    assert len({row["trajectory"] for row in rows}) == len(rows)
    for row in rows:
        ends = [end for end, _ in row["versions"]]
        assert ends == sorted(ends)
        assert ends[-1] == row["tokens"]
        # The round of step t has the weights after step t-2, those of steps 1 and 2 the first ones. A sample
        # may have ended before the step in which its group completed.
        versions = [version for _, version in row["versions"]]
        possible = [
            [max(0, last - back - 2) for back in reversed(range(len(versions)))]
            for last in range(len(versions), row["step"] + 1)
        ]
        assert versions in possible, row["trajectory"]
    assert max(len(row["versions"]) for row in rows) >= 2
    # Of the six steps the first may complete no group.
    versions_of = {step: {row["policy_version"] for row in rows if row["step"] == step} for step in metrics}
    newest = {step: max(found) for step, found in versions_of.items() if found}
    assert newest == {step: max(0, step - 2) for step in newest}
    assert set(newest) >= {3, 4, 5, 6}
    trained = [one for one in metrics.values() if one["training/updated"]]
    assert max(one["off_policy/older_than/0"] for one in trained) > 0
