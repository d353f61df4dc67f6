"""Problems: the tiny world's chains, of four to seven terms."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.demo import problems as tiny
from marsrl_verl.demo.problems import Difficulty, Split

DIFFICULTY = Difficulty(min_terms=4, max_terms=7)


def write_parquet(path: str | Path, split: Split, count: int, seed: int) -> Path:
    """See `demo.problems.write_parquet`."""
    return tiny.write_parquet(path, split, count, seed, DIFFICULTY)
