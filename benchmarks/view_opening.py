"""Seconds until the page that shows runs can list a gigabyte of rollouts, with the indexes that the run wrote
and without.

    python -m benchmarks.view_opening                      # lines of 10 kB, as those of a small model
    python -m benchmarks.view_opening --line-kb 1 --gb 1   # as those of the tiny model

The rollouts are made up. Read once before, so that the disk's cache has them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import machine
from marsrl_verl.reporting.rollout_files import rollout_files, write_rollouts
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.settings.run_logs import RolloutLogConfig
from marsrl_verl.view.run import Filter, ViewedRun

LINES_A_STEP = 512
GROUP = 8


def make_lines(step: int, kilobytes: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A step's lines: half of a line is token ids, the rest text."""
    tokens = max(int(kilobytes * 500 / 6), 4)
    lines = []
    for number in range(LINES_A_STEP):
        problem, k = divmod(number, GROUP)
        ids = rng.integers(1000, 100_000, tokens).tolist()
        text = " ".join(f"word{one % 997}" for one in ids)[: int(kilobytes * 500)]
        group = f"p{step:05d}{problem:03d}/solver/0"
        lines.append(
            {
                "schema_version": 2, "step": step, "role": "solver", "stage": "solver", "group": group,
                "trajectory": f"{group}#{k}", "sequence": 0, "policy": "shared", "parent": None, "fork": None,
                "problem": {
                    "id": group.split("/")[0], "question": text[:200], "ground_truth": "1", "data_source": "x"
                },
                "prompt": "", "response": text, "final": "", "prompt_tokens": 100, "tokens": tokens,
                "token_ids": ids, "masked": [], "external": False, "reward": float(k % 2), "graded": True,
                "finish_reason": "stop", "policy_version": step, "versions": [[tokens, step]], "error": None,
                "prefix_tokens": 0, "events": [], "answer": str(k),
            }
        )  # fmt: skip
    return lines


def seconds_to_list(folder: Path) -> float:
    """Of a new process's page: the first problems and what can be chosen among."""
    begun = time.perf_counter()
    run = ViewedRun(folder)
    run.choices()
    assert run.problems(Filter(), 0, 200)["rows"]
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--line-kb", type=float, default=10.0)
    parser.add_argument("--compress", action="store_true")
    given = parser.parse_args()
    print(machine(), flush=True)
    rng, settings = (
        np.random.default_rng(1),
        RolloutLogConfig(compress_above_mb=0 if given.compress else 10**6),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.create(Path(name) / "run")
        size = step = 0
        while size < given.gb * 1e9:
            step += 1
            lines = make_lines(step, given.line_kb, rng)
            write_rollouts(folder.path / "rollouts", f"step_{step}", lines, settings)
            size += int(LINES_A_STEP * given.line_kb * 1000)
        on_disk = sum(path.stat().st_size for path in rollout_files(folder.path / "rollouts"))
        index = sum(path.stat().st_size for path in (folder.path / "index").iterdir())
        print(
            f"{step} files, {step * LINES_A_STEP:,} lines, {on_disk / 1e9:.2f} GB, "
            f"indexes {index / 1e6:.1f} MB"
        )
        print(f"with indexes: {seconds_to_list(folder.path):.2f} s", flush=True)
        run = ViewedRun(folder.path)
        run.table()
        begun = time.perf_counter()
        found = run.lines(Filter(low=1.0, role="solver"), 0, 200, "-tokens")
        print(
            f"a filter of rewards: {time.perf_counter() - begun:.2f} s ({found['total']:,} lines)", flush=True
        )
        row = found["rows"][-1]
        begun = time.perf_counter()
        run.line(row["file"], row["row"])
        print(f"one rollout: {time.perf_counter() - begun:.3f} s", flush=True)
        begun = time.perf_counter()
        found = run.lines(Filter(text="word123 word"), 0, 200)
        print(
            f"a search of all text: {time.perf_counter() - begun:.1f} s ({found['total']:,} lines)",
            flush=True,
        )
        shutil.rmtree(folder.path / "index")
        print(f"without: {seconds_to_list(folder.path):.1f} s", flush=True)


if __name__ == "__main__":
    main()
