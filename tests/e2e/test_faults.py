"""A real run on CPU with the tiny model (Ray, FSDP2 on gloo, vLLM, weight sync), and what dies, hangs or is
told to end in it."""

from __future__ import annotations

import signal

import psutil
import pytest
import torch
from faults import (
    LIMIT_S,
    RESUME,
    SETTINGS,
    TRAINING_LIMIT_S,
    interrupt,
    kill_core,
    kill_core_while_the_trainer_computes,
    kill_rollout_worker,
    rank,
    stop_core,
    stop_core_while_the_trainer_computes,
)
from training_runs import (
    REPEATABLE,
    STEPS,
    TrainingRun,
    assert_rewards_are_found_again,
    checkpoint_log_probs,
    train,
    train_and_kill,
)

from marsrl_verl.verl_adapter.checkpoint import files as checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.slow]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> TrainingRun:
    """One rank, pipelined, not interrupted."""
    return train(tmp_path_factory.mktemp("runs"), "whole", *REPEATABLE)


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


def test_rollouts_graded_again_are_worth_what_they_were(whole_run):
    assert_rewards_are_found_again(whole_run.folder)


def test_engine_and_trainer_agree_before_and_after_the_weights_changed(whole_run):
    # Step 1 samples with the first weights, later steps with synced ones. The trainer recomputes the
    # log-probabilities of the sampled tokens with its own weights; float32 on both sides.
    metrics = whole_run.metrics()
    gaps = {
        step: one["rollout/log_probs_diff_max"] for step, one in metrics.items() if one["training/updated"]
    }
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


def batches(run: TrainingRun) -> dict[int, dict]:
    """What each step decoded; log-probabilities, which differ by rounding, are left out."""
    return {
        step: {row["trajectory"]: (row["token_ids"], row["reward"]) for row in run.rollouts(step)}
        for step in range(1, STEPS + 1)
    }


def test_a_run_goes_on_exactly_after_every_fault(tmp_path, whole_run):
    """Killed, with an engine that stopped, with one that died, and ended by a signal."""
    checkpoints = tmp_path / "broken/checkpoints"

    train_and_kill(tmp_path, "broken", 1, *SETTINGS, "trainer.save_freq=1")
    killed = checkpoint.newest_complete(checkpoints)
    assert (
        killed is not None and checkpoint.load_state(checkpoints / f"global_step_{killed}")["step"] == killed
    )

    status, output, seconds = interrupt(tmp_path, "broken", killed + 1, stop_core, RESUME)
    assert status == 1
    assert "The run ended: " in output and "To go on from step" in output, output
    assert "Traceback (most recent" not in output
    assert seconds < LIMIT_S + 60
    first = checkpoint.newest_complete(checkpoints)
    assert first is not None and first > killed

    status, output, seconds = interrupt(tmp_path, "broken", first + 1, kill_core, RESUME)
    assert status == 1
    assert "vLLM server" in output and "To go on from step" in output, output
    assert seconds < 60
    second = checkpoint.newest_complete(checkpoints)
    assert second is not None and second > first

    status, output, seconds = interrupt(tmp_path, "broken", second + 1, psutil.Process.terminate, RESUME)
    assert status == 128 + signal.SIGTERM
    assert "The run was ended by SIGTERM." in output, output
    assert seconds < 30
    third = checkpoint.newest_complete(checkpoints)
    assert third is not None and third > second

    resumed = train(tmp_path, "broken", *SETTINGS, RESUME)
    assert sorted(resumed.metrics()) == list(range(1, STEPS + 1))
    assert batches(resumed) == batches(whole_run)
    for step, whole in whole_run.metrics().items():
        for name in ("actor/reward_kl_penalty", "actor/reward_kl_penalty_coeff"):
            found = resumed.metrics()[step].get(name)
            assert found == pytest.approx(whole.get(name), rel=1e-3, abs=1e-7), f"step {step}"
    rows = [row for step in range(1, STEPS + 1) for row in resumed.rollouts(step)]
    assert len(rows) == len({row["trajectory"] for row in rows})


def test_what_dies_or_hangs_while_the_trainer_computes(tmp_path):
    """An engine that has nothing to do, the trainer's rank itself, and a rollout worker at any time."""
    checkpoints = tmp_path / "computes/checkpoints"
    status, output, seconds = interrupt(
        tmp_path, "computes", 1, kill_core_while_the_trainer_computes, f"trainer.total_training_steps={STEPS}"
    )
    assert status == 1
    assert "The run ended: vLLM server 0 is gone" in output and "its log is" in output, output
    assert seconds < 60
    saved = checkpoint.newest_complete(checkpoints)
    assert saved is not None, "the step that was trained meanwhile is not lost"

    status, output, seconds = interrupt(
        tmp_path, "computes", saved + 1, stop_core_while_the_trainer_computes, RESUME
    )
    assert status == 1
    assert f"engine_timeout_s = {LIMIT_S})" in output and "To go on from step" in output, output
    assert "Traceback (most recent" not in output
    assert seconds < LIMIT_S + 60
    after = checkpoint.newest_complete(checkpoints)
    assert after is not None and after > saved
    saved = after

    stopped = []

    def stop_rank(launcher: psutil.Process) -> None:
        stopped.append(rank(launcher).pid)
        rank(launcher).suspend()

    limit = f"marsrl.run.training_timeout_s={TRAINING_LIMIT_S}"
    status, output, seconds = interrupt(
        tmp_path, "computes", saved + 1, stop_rank, limit, "marsrl.run.sync_timeout_s=600", RESUME
    )
    assert status == 1
    assert f"training_timeout_s = {TRAINING_LIMIT_S} s" in output and f"process {stopped[0]}" in output, (
        output
    )
    assert f"To go on from step {saved}" in output and "Traceback (most recent" not in output
    assert checkpoint.newest_complete(checkpoints) == saved

    # Step saved + 1 is in the metrics of the run that hung.
    status, output, seconds = interrupt(tmp_path, "computes", saved + 2, kill_rollout_worker, RESUME)
    assert status == 1 and seconds < 60
    assert "a rollout worker (agent_loop_worker_" in output and "has died: it crashed or was killed" in output
    newest = checkpoint.newest_complete(checkpoints)
    assert newest is not None and newest > saved
