from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.kill_and_resume import first_difference


def row(sample: str, **changes) -> dict:
    return {
        "trajectory": sample,
        "group": sample.partition("#")[0],
        "parent": None,
        "problem": {"id": "p0"},
        "prompt": "1+1",
        "token_ids": [1, 2],
        "versions": [[2, 0]],
        "finish_reason": "stop",
        "reward": 1.0,
        "log_probs": [-0.1, -0.2],
        **changes,
    }


def write_run(folder: Path, second: list[dict], trained: list[str]) -> Path:
    """A run of two steps; the first is the same in all."""
    for kind in ("rollouts", "trained"):
        (folder / kind).mkdir(parents=True)
    for number, rows in ((1, [row("a#0"), row("a#1")]), (2, second)):
        lines = "".join(json.dumps(one) + "\n" for one in rows)
        (folder / f"rollouts/step_{number}.jsonl").write_text(lines)
        names = ["a#1", "a#0"] if number == 1 else trained
        (folder / f"trained/step_{number}.json").write_text(
            json.dumps({name: [[[4, 0.5]]] for name in names})
        )
    return folder


CHANGES = {
    "a token": ([row("b#0", token_ids=[1, 3]), row("b#1")], ["b#0"], "token_ids of b#0"),
    "a reward": ([row("b#0"), row("b#1", reward=0.0)], ["b#0"], "reward of b#1"),
    "the weights of a segment": ([row("b#0", versions=[[2, 1]]), row("b#1")], ["b#0"], "versions of b#0"),
    "another sample": ([row("b#0"), row("c#1")], ["b#0"], "samples ['b#1', 'c#1']"),
    "a sample too few": ([row("b#0")], ["b#0"], "samples ['b#1']"),
    "what was trained": ([row("b#0"), row("b#1")], ["b#1"], "what was trained"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_difference_is_named(tmp_path, name):
    second, trained, what = CHANGES[name]
    one = write_run(tmp_path / "one", [row("b#0"), row("b#1")], ["b#0"])
    other = write_run(tmp_path / "other", second, trained)
    assert first_difference(one, other, 2) == (2, what)
    assert first_difference(one, other, 1) is None


def test_order_and_the_engines_last_digits_are_no_difference(tmp_path):
    one = write_run(tmp_path / "one", [row("b#0"), row("b#1")], ["b#0", "b#1"])
    other = write_run(
        tmp_path / "other", [row("b#1", log_probs=[-0.1, -0.2000001]), row("b#0")], ["b#1", "b#0"]
    )
    assert first_difference(one, other, 2) is None
