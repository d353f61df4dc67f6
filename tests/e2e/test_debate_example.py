"""The example of a workflow, as its user starts it: three agents whose episodes pause, with a kill between
two steps."""

from __future__ import annotations

import json

import pytest
from training_runs import REPOSITORY, train, train_and_kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
EXAMPLE = REPOSITORY / "examples" / "debate"
AGENTS = ("alice", "bob", "judge")
WORDS = (
    f"hydra.searchpath=[file://{EXAMPLE}/configs]",
    "algo=debate",
    "data.train_batch_size=8",
    "marsrl.algo.rounds=1",
    "marsrl.pipeline.max_segments=12",
    "marsrl.run.seeded_tokens=all",
)


def steps(run) -> list[list[tuple]]:
    rows = [run.rollouts(step) for step in range(1, len(run.metrics()) + 1)]
    return [
        sorted((row["trajectory"], row["role"], row["token_ids"], row["reward"]) for row in found)
        for found in rows
    ]


def test_a_debate_pauses_is_killed_and_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    assert len((EXAMPLE / "debate.py").read_text().splitlines()) <= 40
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    last = "trainer.total_training_steps=3"
    whole = train(tmp_path, "whole", *WORDS, last)
    train_and_kill(tmp_path, "killed", 1, *WORDS, "trainer.total_training_steps=9")
    resumed = train(tmp_path, "killed", *WORDS, last, "marsrl.run.if_exists=resume")
    assert steps(resumed) == steps(whole)
    metrics = whole.metrics()
    assert any(one["training/updated"] for one in metrics.values())
    assert max(one["pipeline/unfinished_samples"] for one in metrics.values()) > 0
    assert any("stage/debate/agreement" in one for one in metrics.values())
    rows = [row for step in metrics for row in whole.rollouts(step)]
    assert {row["role"] for row in rows} == set(AGENTS)
    trained = json.loads((whole.folder / "trained" / "step_3.json").read_text())
    assert trained, "its own reward is each agent's"
