"""What a run's logs, and the page that shows it while it runs, cost a training step.

    python -m benchmarks.logging_cost             # three repeats of runs of 12 steps of the tiny task
    python -m benchmarks.logging_cost --repeat 5 --steps 20 --json rows.json -- algo=attnrl

Three variants of one run, with the same seed, in turn: `without` (marsrl.run.log_rollouts=false), `with`, and
`viewed`: with three columns of every token, and `python -m recipe.marsrl.view` on the run, of which a client
asks what the open page asks for whenever the run has written something. Steps 3 to the last are counted. All
variants must have equal rewards in every step.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import training_runs
from benchmarks.record import machine, options, with_overrides
from benchmarks.tables import table, with_interval

POLL_S = 2.0
FIRST = 3
"""The first counted step: engines and kernels are warm."""
COLUMNS = "marsrl.run.rollout_log.token_columns=[old_log_probs,rollout_log_probs,entropies]"
VARIANTS = {"without": ("marsrl.run.log_rollouts=false",), "with": (), "viewed": (COLUMNS,)}


class Viewer:
    """The page's server on a run that is on its way, and a client that follows it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended = folder, threading.Event()
        self.looks = 0
        """How often something had changed."""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._try)
        self._thread.start()

    def close(self) -> None:
        """Raises RuntimeError: the page could not be followed."""
        self._ended.set()
        self._thread.join()
        if self._error is not None or not self.looks:
            raise RuntimeError("the page was not followed") from self._error

    def _try(self) -> None:
        try:
            self._follow()
        except Exception as error:  # raised again by close()
            self._error = error

    def _follow(self) -> None:
        while not (self._folder / "metrics.jsonl").exists():
            if self._ended.wait(POLL_S):
                return
        command = [sys.executable, "-m", "recipe.marsrl.view", str(self._folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                match = re.match(r"(http://[\d.:]+)/\?token=(\S+)", server.stdout.readline())
                assert match is not None
                address, token = match.groups()
                last = None
                while not self._ended.wait(POLL_S):
                    state = _get(address, token, "state")
                    if state != last:
                        for part in ("overview", "metrics", "choices", "problems"):
                            _get(address, token, part)
                        self.looks += 1
                    last = state
            finally:
                server.terminate()


def _get(address: str, token: str, part: str) -> bytes:
    with urllib.request.urlopen(f"{address}/api/runs/0/{part}?token={token}", timeout=60) as answer:
        found: bytes = answer.read()
        return found


def run(root: Path, variant: str, count: int, overrides: list[str]) -> dict[str, Any]:
    """A run; seconds of its steps, their rewards, bytes of its rollouts."""
    name = f"{variant}-{time.monotonic_ns()}"
    words = ("marsrl.run.seeded_tokens=all", f"trainer.total_training_steps={count}", *VARIANTS[variant])
    viewer = Viewer(root / name) if variant == "viewed" else None
    try:
        folder = training_runs.train(root, name, *words, *overrides)
    finally:
        if viewer is not None:
            viewer.close()
    steps = training_runs.steps(folder)
    rewards = [
        {name: value for name, value in one.metrics.items() if name.endswith("/reward_mean")} for one in steps
    ]
    counted = [one.timings["step"] for one in steps[FIRST - 1 :]]
    size = sum(path.stat().st_size for path in (folder / "rollouts").glob("*"))
    return {
        "variant": variant,
        "seconds": math.fsum(counted) / len(counted),
        "rewards": rewards,
        "rollout_bytes": size,
        "looks": 0 if viewer is None else viewer.looks,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    given, overrides = with_overrides(parser)
    print(machine(), flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="marsrl-logging-") as folder:
        for repeat in range(given.repeat):
            order = list(VARIANTS) if repeat % 2 == 0 else list(VARIANTS)[::-1]
            for variant in order:
                row = {"repeat": repeat, **run(Path(folder), variant, given.steps, overrides)}
                rows.append(row)
                print(f"repeat {repeat + 1}  {variant:<8} {row['seconds']:.3f} s a step", flush=True)
    if any(row["rewards"] != rows[0]["rewards"] for row in rows):
        raise SystemExit("the variants' rewards differ, expected equal ones with the same seeds")
    plain = [row["seconds"] for row in rows if row["variant"] == "without"]
    lines = []
    for variant in VARIANTS:
        mine = sorted((row for row in rows if row["variant"] == variant), key=lambda row: row["repeat"])
        seconds = [row["seconds"] for row in mine]
        ratios = [one / other for one, other in zip(seconds, plain, strict=True)]
        size = sum(row["rollout_bytes"] for row in mine) / len(mine) / given.steps / 1000
        looks = sum(row["looks"] for row in mine) / len(mine)
        lines.append(
            [
                variant,
                with_interval(seconds, 3, 1),
                with_interval(ratios, 3, 1),
                f"{size:,.0f}",
                f"{looks:.0f}",
            ]
        )
    print(table(["variant", "seconds a step", "in parts of without", "kB a step", "looks"], lines))
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
