"""Tokens of a run's rollouts that its steps trained, wherever their lines lie.

`trained/step_N.json` has the advantages of all that step N trained, `trained/step_N.parquet` the columns
that the run keeps of it (`token_columns`). Most of it is in `rollouts/step_N.jsonl` too; the rest lies in
files of earlier steps, and step N's index says which (`rollout_index.trained_earlier`).
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from marsrl_verl.core.rows import TokenAdvantages
from marsrl_verl.reporting.rollout_files import rollout_files
from marsrl_verl.reporting.rollout_index import read_index, trained_earlier
from marsrl_verl.reporting.token_columns import read_token_columns


class TrainedTokens:
    """Looks up what was trained.

    Args:
        run: its folder.
        later: by trajectory the name of the step (`step_N`) that trained it, where its line is in an earlier
            one's file.
    """

    def __init__(self, run: Path, later: dict[str, str]) -> None:
        self._run, self._later = run, later

    @classmethod
    def of_run(cls, run: Path) -> TrainedTokens:
        """Builds the lookup from the indexes of a run that has ended."""
        later: dict[str, str] = {}
        for path in rollout_files(run / "rollouts"):
            name = stem(path)
            if name.startswith("step_"):
                later |= dict.fromkeys(trained_earlier(read_index(path, advantages(run, name))), name)
        return cls(run, later)

    def advantages(self, file: str, trajectory: str, sequence: int) -> list[tuple[int, float]]:
        """A sequence's [end, advantage] of tokens in a row; empty: it was not trained.

        Args:
            file: that has the line.
            trajectory, sequence: of the line.
        """
        parts = advantages(self._run, self._step(file, trajectory)).get(trajectory) or []
        return list(parts[sequence]) if sequence < len(parts) else []

    def columns(self, file: str, trajectory: str, sequence: int) -> dict[str, list[float | None]]:
        """A sequence's columns, as `token_columns.read_token_columns`."""
        path = self._run / "trained" / f"{self._step(file, trajectory)}.parquet"
        return read_token_columns(path, trajectory, sequence)

    def _step(self, file: str, trajectory: str) -> str:
        return self._later.get(trajectory, stem(Path(file)))


def advantages(run: Path, name: str) -> TokenAdvantages:
    """Advantages of what a step trained; empty where the run has none of it."""
    path = run / "trained" / f"{name}.json"
    return _advantages(path, path.stat().st_mtime_ns) if path.is_file() else {}


@lru_cache(maxsize=16)
def _advantages(path: Path, time: int) -> dict[str, Any]:
    """A file, as it was at that time."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def stem(path: Path) -> str:
    """`step_3` of `step_3.jsonl.gz`."""
    return path.name.partition(".")[0]
