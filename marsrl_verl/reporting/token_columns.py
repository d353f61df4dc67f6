"""`trained/step_N.parquet`: what a step knew of each token that it trained, as float16."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from marsrl_verl.core.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa


def write_token_columns(path: Path, rows: Rows, names: Sequence[str]) -> None:
    """Writes a row for each of the trained sequences: `trajectory`, `sequence`, and each column's values,
    (T,) for T response tokens. What the step has no column of is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {
        "trajectory": pa.array([rows.trajectory(row).trajectory_id for row in range(len(rows))], pa.string()),
        "sequence": pa.array([ref.sequence for ref in rows.refs], pa.int32()),
    }
    for name in (name for name in names if name in rows.columns):
        values = rows.columns[name].astype(np.float16)
        table[name] = pa.ListArray.from_arrays(pa.array(rows.offsets, pa.int32()), pa.array(values))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(pa.table(table), temporary, compression="zstd")
    temporary.replace(path)


def read_token_columns(path: Path, trajectory: str, sequence: int) -> dict[str, list[float | None]]:
    """A sequence's columns by name, null for a NaN; empty where it was not trained or nothing is kept."""
    if not path.is_file():
        return {}
    table, rows = _table(path, path.stat().st_mtime_ns)
    row = rows.get((trajectory, sequence))
    found = {} if row is None else table.slice(row, 1).to_pylist()[0]
    return {name: [None if one != one else float(one) for one in values] for name, values in found.items()}


@lru_cache(maxsize=1)
def _table(path: Path, time: int) -> tuple[pa.Table, dict[tuple[str, int], int]]:
    """A file as it was at that time, and the row of each sequence: readers read one after the other."""
    import pyarrow.parquet as pq

    table, key = pq.read_table(path), ("trajectory", "sequence")
    names = zip(*(table[name].to_pylist() for name in key), strict=True)
    return table.drop_columns(list(key)), {name: row for row, name in enumerate(names)}
