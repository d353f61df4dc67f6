"""Training on two ranks, and in segments with overlap and a kill, on CPU with the tiny model: Ray, FSDP2 on
gloo, vLLM, weight sync, checkpoint and resume."""

from __future__ import annotations

import pytest
from training_runs import train, train_and_kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.slow]


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
        assert metrics[step]["rollout/log_probs_diff_max"] < 1e-3
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
    run = train(tmp_path, "segments", *settings, "marsrl.run.if_exists=resume")
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
