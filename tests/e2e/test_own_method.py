"""The example of a method of one's own, as its user starts it."""

from __future__ import annotations

import json

import pytest
from training_runs import REPOSITORY, train

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_a_method_outside_the_package_trains_with_a_tool_and_a_late_reward(tmp_path, monkeypatch):
    examples = REPOSITORY / "examples"
    assert len((examples / "own_method" / "calculator.py").read_text().splitlines()) <= 60
    monkeypatch.setenv("PYTHONPATH", str(examples))
    run = train(
        tmp_path,
        "own",
        f"hydra.searchpath=[file://{examples}/own_method/configs]",
        "algo=calculator",
        "trainer.total_training_steps=2",
        "data.train_batch_size=16",
        "marsrl.run.seeded_tokens=all",
    )
    assert all(one["training/updated"] for one in run.metrics().values())
    rows = [row for step in (1, 2) for row in run.rollouts(step)]
    used = [row for row in rows if row["events"]]
    assert used and all(row["events"][0]["tool"] == "calculator" for row in used)
    for row in used:
        text = f"={row['events'][0]['result']}\n"
        assert row["response"].count("=") and text in row["response"]
        assert row["masked"], "what the calculator wrote was not sampled"
    values = {row["reward"] for row in rows}
    assert {0.0, 1.0} < values, "right answers are worth less, the longer they are"
    trained = json.loads((run.folder / "trained" / "step_1.json").read_text())
    advantages = [value for parts in trained.values() for _, value in parts[0]]
    assert advantages and max(map(abs, advantages)) <= 1.0
