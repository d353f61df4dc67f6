"""The study of the agent loop does the same trajectories twice."""

from __future__ import annotations

import json

import pytest

from benchmarks import agent_loop
from marsrl_verl.algos.arpo.branching import BranchLaw


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(agent_loop, "SHORTEST_S", 0.001)
    monkeypatch.setattr(agent_loop, "LONGEST_S", 0.01)
    monkeypatch.setattr(agent_loop, "_MEAN", 10.0)


@pytest.mark.parametrize("law", [BranchLaw.THRESHOLD, BranchLaw.OFF])
def test_both_loops_decode_the_same_tokens(quick, law):
    row = agent_loop.measure(law, problems=2, size=6, step_ms=0.2, slots=8, seed=1)
    assert row.trajectories == 12 and row.calls > 0 and row.tokens > 50
    assert row.rounds >= 2 and row.ratio > 0
    if law is BranchLaw.THRESHOLD:
        assert row.rounds > 4, "further roots come one by one"


def test_a_table_and_a_file(quick, tmp_path, capsys):
    path = tmp_path / "rows.json"
    words = ["--problems", "1", "--size", "4", "--step", "0.2", "--laws", "off", "--json", str(path)]
    assert agent_loop.main(words) == 0
    assert "| off" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())
    assert row["ratio"] == row["rounds_s"] / row["alone_s"]
