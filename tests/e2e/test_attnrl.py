"""AttnRL with real Ray, FSDP2 on gloo and vLLM, on CPU with the tiny model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from training_runs import TrainingRun, assert_rewards_are_found_again, train, train_and_kill

from marsrl_verl.verl_adapter.checkpoint.files import load_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

STEPS = 4
MICRO_BATCH = 32
"""Rows of one on CPU; whole ones are computed."""
SETTINGS = (
    "algo=attnrl",
    "marsrl.algo.group_size=6",
    "data.train_batch_size=8",
    f"trainer.total_training_steps={STEPS}",
    # vLLM counts what it reads; blocks of its cache as small as they can be on CPU.
    "actor_rollout_ref.rollout.disable_log_stats=false",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=16",
)


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory) -> TrainingRun:
    """Pipelined; killed once step 2 is written, then continued."""
    root = tmp_path_factory.mktemp("attnrl")
    train_and_kill(root, "trees", 2, *SETTINGS)
    return train(root, "trees", *SETTINGS, "marsrl.run.if_exists=resume")


def test_continuations_share_the_round_of_the_next_problems(killed_and_resumed):
    metrics = killed_and_resumed.metrics()
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert {one["rollout/rounds"] for one in metrics.values()} == {1}
    assert {row["stage"] for row in killed_and_resumed.rollouts(1)} == {"initial"}
    assert {row["stage"] for row in killed_and_resumed.rollouts(2)} == {"initial", "continuation"}
    # In step 1 only problems without a step to branch at can be trained, each with its six responses.
    assert metrics[1].get("attnrl/leaves_per_problem", 6) == 6 < metrics[2]["attnrl/leaves_per_problem"]


def test_rollouts_graded_again_are_worth_what_they_were(killed_and_resumed):
    assert_rewards_are_found_again(killed_and_resumed.folder)


def test_continuations_begin_with_their_parents_tokens(killed_and_resumed):
    rows = [row for step in range(1, STEPS + 1) for row in killed_and_resumed.rollouts(step)]
    by_name = {row["trajectory"]: row for row in rows}
    continued = [row for row in rows if row["stage"] == "continuation"]
    assert len(continued) > 20 and len(by_name) == len(rows)
    for row in continued:
        parent = by_name[row["parent"]]
        kept = int(row["group"].rsplit("-", 1)[1])
        assert 0 < kept < len(parent["token_ids"])
        assert row["token_ids"][:kept] == parent["token_ids"][:kept]
        (end, sampled), (length, continued_by) = row["versions"]
        assert (end, length) == (kept, len(row["token_ids"])) and continued_by == sampled + 1


def test_the_trainers_and_the_engines_log_probs_agree(killed_and_resumed):
    metrics = killed_and_resumed.metrics()
    gaps = [
        one["rollout/log_probs_diff_max"] for one in metrics.values() if "rollout/log_probs_diff_max" in one
    ]
    assert gaps and max(gaps) < 1e-3


def check_what_the_engine_read(run: TrainingRun) -> None:
    """vLLM's count of a step's prompts is that of the samples, to the token, and it finds some of them."""
    for step, one in run.metrics().items():
        asked = [row["prompt_tokens"] + kept_tokens(row) for row in run.rollouts(step)]
        assert one["rollout/prompt_tokens"] == sum(asked)
        assert sum(asked) / 2 < one["rollout/shared_prompt_tokens"] < sum(asked)
        assert 0 <= one["rollout/prefix_cache_hit_frac"] <= one["rollout/shared_prefix_hit_frac"]
        assert one["rollout/prefill_seconds"] > 0
    assert any(0 < one["rollout/shared_prefix_hit_frac"] <= 1 for one in run.metrics().values())


def kept_tokens(row: dict) -> int:
    """Response tokens that were there before the last segment."""
    return row["versions"][-2][0] if len(row["versions"]) > 1 else 0


def test_the_engine_tells_what_it_read_and_what_its_cache_held(killed_and_resumed):
    check_what_the_engine_read(killed_and_resumed)


def test_influence_is_measured_and_the_trees_are_trained(killed_and_resumed):
    metrics = killed_and_resumed.metrics()
    assert all(one["attnrl/influence_mean"] > 0 for one in metrics.values())
    trained = [one for one in metrics.values() if one["training/updated"]]
    # In step 1 only problems none of whose responses can be continued are trained.
    assert all(one["attnrl/leaves_per_problem"] > 6 for step, one in metrics.items() if step > 1)
    assert all(one["actor/grad_norm"] > 0 for one in trained)


def test_first_responses_take_no_second_pass(killed_and_resumed):
    for step, one in killed_and_resumed.metrics().items():
        if one["training/updated"]:
            credit = json.loads((killed_and_resumed.folder / f"trained/step_{step}.json").read_text())
            continued = sum("/continuation/" in name for name in credit)
            assert one["batch/recomputed_rows"] == -(-continued // MICRO_BATCH) * MICRO_BATCH


def test_unexpanded_responses_are_trained(killed_and_resumed):
    rows = [row for step in range(1, STEPS + 1) for row in killed_and_resumed.rollouts(step)]
    parents = {row["parent"] for row in rows}
    trained = [
        name
        for step in range(1, STEPS + 1)
        for name in json.loads((killed_and_resumed.folder / f"trained/step_{step}.json").read_text())
    ]
    unexpanded = [name for name in trained if "/initial/" in name and name not in parents]
    assert unexpanded and len(unexpanded) < sum("/initial/" in name for name in trained)


def test_the_checkpoint_holds_beginnings_and_the_filters_mean(killed_and_resumed):
    state = load_state(killed_and_resumed.folder / f"checkpoints/global_step_{STEPS}")
    solved = sum(
        one["attnrl/problems"] * one["attnrl/all_correct_frac"]
        for one in killed_and_resumed.metrics().values()
    )
    assert state["method"]["mean"]["count"] == pytest.approx(solved), "the filter judges these alone"
    requests = state["scheduler"]["state"]["requests"]
    prefixes = [one["prefix"] for one in requests if one["stage"] == "continuation"]
    assert prefixes
    for one in prefixes:
        recorded = one["annotations"]["recorded_log_probs"]
        assert len(recorded) == len(one["response_ids"]) and not np.isnan(recorded).any()


def test_two_ranks_train_trees_inside_a_step(tmp_path):
    run = train(
        tmp_path,
        "two_ranks",
        *SETTINGS,
        "pipeline=sequential",
        "training=shared_prefixes",
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
    )
    metrics = run.metrics()
    # Each tree's prompt and beginnings once; log-probabilities are the engine's nevertheless.
    for one in metrics.values():
        assert one["batch/computed_tokens"] < 0.8 * one["batch/tokens"]
    assert {one["rollout/rounds"] for one in metrics.values()} == {2}
    assert all(one["training/updated"] for one in metrics.values())
    assert max(one["rollout/log_probs_diff_max"] for one in metrics.values()) < 1e-3
    check_what_the_engine_read(run)
