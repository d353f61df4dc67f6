"""Problems as verl's parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.data.files import read_report
from marsrl_verl.data.problems import SourceProblem


@dataclass(frozen=True, slots=True)
class PassRate:
    """Pass rate of a start model on a problem."""

    rate: float | None = None
    """Share of right answers; None: there are no grades."""
    answers: int = 0
    """Graded rollouts."""


def write_parquet(
    path: Path,
    problems: Sequence[SourceProblem],
    split: str,
    rates: Mapping[str, PassRate] | None = None,
    fields: Sequence[str] = (),
) -> None:
    """Writes problems in verl's format, in one piece, and reads them back with training's own check.

    Besides verl's columns, `extra_info` holds the problem's hash, its pass rate and number of answers, and as
    JSON text what the source's row had there.

    Args:
        path: of the file.
        problems: in the order of the rows.
        split: `train` or `val`, for `extra_info`.
        rates: by the problem's hash.
        fields: names of texts in the problems' `extra_info` that stand there by themselves.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known, unknown = rates or {}, PassRate()
    rows = [
        {
            "data_source": one.problem.data_source,
            "prompt": list(one.problem.messages),
            "ability": one.problem.ability or None,
            "reward_model": {"style": "rule", "ground_truth": one.problem.ground_truth},
            "extra_info": {
                "index": index,
                "split": split,
                "problem": one.key,
                "pass_rate": known.get(one.key, unknown).rate,
                "answers": known.get(one.key, unknown).answers,
                "source": one.extra,
                **{name: one.problem.extra_info[name] for name in fields},
            },
        }
        for index, one in enumerate(problems)
    ]
    partial = path.with_name(f".{path.stem}.{os.getpid()}.parquet")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=_schema(pa, fields)), partial)
        report = read_report(partial, split)
        if report.rows != len(rows) or report.faults:
            raise RuntimeError(f"{path}: training's check of the written file found {report}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _schema(pa: Any, fields: Sequence[str]) -> Any:
    text, number = pa.string(), pa.int64()
    extra = {"index": number, "split": text, "problem": text, "pass_rate": pa.float64(), "answers": number}
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({**extra, "source": text, **dict.fromkeys(fields, text)}),
        }
    )
