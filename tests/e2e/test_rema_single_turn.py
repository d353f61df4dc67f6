"""Two agents with a model each, trained in turns with real trainer and engine: two phases, and a kill."""

from __future__ import annotations

import json

import pytest
import torch
from training_runs import (
    TrainingRun,
    assert_rewards_are_found_again,
    checkpoint_weights,
    train,
    train_and_kill,
)

from marsrl_verl.algos.rema.json_actions import ActionKind, parse_action

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SETTINGS = (
    "algo=rema_json",
    "model=tiny_rema",
    "data=rema_task",
    "pipeline=sequential",
    "policies=model_per_role",
    "data.train_batch_size=8",
    "data.train_max_samples=16",
    "marsrl.algo.iterations=1",
    "marsrl.algo.episodes=1",
    "marsrl.algo.plans_per_problem=2",
    "marsrl.algo.filter.samples=4",
    "marsrl.algo.filter.lowest=0.1",
    "marsrl.algo.filter.highest=0.9",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainingRun:
    """Killed in its first training pass, and resumed to the end of the last one."""
    root = tmp_path_factory.mktemp("turns")
    more = ("trainer.total_training_steps=40",)
    train_and_kill(root, "turns", 3, *SETTINGS, *more)
    return train(root, "turns", *SETTINGS, *more, "marsrl.run.if_exists=resume")


def test_rollouts_graded_again_are_worth_what_they_were(run):
    assert_rewards_are_found_again(run.folder)


def test_each_phase_counts_first_and_then_trains_its_agent(run):
    metrics = run.metrics()
    phases = [(one["phase/trains_plans"], one["phase/episode"]) for one in metrics.values()]
    assert phases[:2] == [(0.0, 0.0)] * 2, "two steps count solutions"
    assert sorted(set(phases)) == [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    assert phases == sorted(phases), "first the reasoning agent's phase"
    for step, (plans, episode) in zip(metrics, phases, strict=True):
        updated = {name.split("/")[0] for name in metrics[step] if name.endswith("/actor/grad_norm")}
        assert updated <= ({"meta_thinking"} if plans else {"reasoning"})
        assert episode == 1.0 or not updated, "a pass that counts trains nothing"
    assert {"reasoning"} <= {
        name.split("/")[0] for one in metrics.values() for name in one if "grad_norm" in name
    }


def test_no_bit_of_the_other_agents_model_moves_also_after_a_kill(run):
    moved = set()
    for step in range(2, max(run.metrics()) + 1):
        updated = {name.split("/")[0] for name in run.metrics()[step] if name.endswith("/actor/grad_norm")}
        for role in ("meta_thinking", "reasoning"):
            before, after = (checkpoint_weights(run.folder, at, role) for at in (step - 1, step))
            same = all(torch.equal(before[name], after[name]) for name in before)
            assert same or role in updated, f"step {step}, {role}"
            moved |= set() if same else {role}
    assert moved


def test_it_ends_by_itself(run):
    assert max(run.metrics()) < 40


def test_only_problems_of_the_filter_are_trained(run):
    metrics = run.metrics()
    counted = {step for step, one in metrics.items() if one["phase/episode"] == 0.0}
    rates: dict[tuple[float, str], list[bool]] = {}
    trained: set[tuple[float, str]] = set()
    for step, one in metrics.items():
        phase = one["phase/trains_plans"]
        for row in run.rollouts(step):
            if row["stage"] == "solution":
                key = phase, row["problem"]["question"]
                if step in counted:
                    rates.setdefault(key, []).append(row["reward"] == 1.0)
                else:
                    trained.add(key)
    low = {key for key in trained if key[0] == 0.0}
    assert low and all(0 < sum(rates[key]) < len(rates[key]) for key in low)


def test_plans_are_actions_whose_forced_tokens_are_masked(run):
    plans = [row for step in run.metrics() for row in run.rollouts(step) if row["stage"] == "plan"]
    assert plans and {row["policy"] for row in plans} == {"meta_thinking"}
    actions = [parse_action(row["final"]) for row in plans if row["finish_reason"] == "stop"]
    kinds = {one.kind for one in actions if one is not None}
    assert len(kinds) > 1 and kinds <= set(ActionKind)
    assert any(row["masked"] for row in plans), "a grammar forces its tokens"
    assert all(row["level"] in (2, 3, 4, 5) for row in plans)
    for step, metrics in run.metrics().items():
        trained = metrics["phase/trains_plans"] == 1.0 and metrics["phase/episode"] > 0
        found = {row["pass_trains_plans"] for row in run.rollouts(step) if row["stage"] == "plan"}
        assert found <= {trained}, f"step {step}"
    folder = run.folder / "trained"
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("step_*.json"))]
    assert any(found), "something was trained"
