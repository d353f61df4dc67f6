"""verl's parquet files and the report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.data.files import read_report
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.grades import ProblemGrades


def write_parquet(
    path: Path, problems: Sequence[SourceProblem], grades: Mapping[str, ProblemGrades], split: str
) -> None:
    """Write problems in verl's format, in one piece, and read them back with training's own check.

    Besides verl's columns, `extra_info` holds the problem's hash, its pass rate (null without grades) and
    number of answers, and as JSON text what the source's row had there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

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
                "pass_rate": grades[one.key].pass_rate if one.key in grades else None,
                "answers": grades[one.key].graded if one.key in grades else 0,
                "source": one.extra,
            },
        }
        for index, one in enumerate(problems)
    ]
    partial = path.with_name(f".{path.stem}.{os.getpid()}.parquet")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=_schema(pa)), partial)
        report = read_report(partial, split)
        if report.rows != len(rows) or report.faults:
            raise RuntimeError(f"{path}: training's check of the written file found {report}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _schema(pa: Any) -> Any:
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = [
        ("index", pa.int64()),
        ("split", pa.string()),
        ("problem", pa.string()),
        ("pass_rate", pa.float64()),
        ("answers", pa.int64()),
        ("source", pa.string()),
    ]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct(extra)),
        ]
    )


def histogram(grades: Sequence[ProblemGrades]) -> list[dict[str, Any]]:
    """Number of problems by right answers, the hardest first; problems without a pass rate are left out."""
    rated = [one for one in grades if one.skipped is None and not one.ungraded]
    counts = Counter((one.passes, one.graded) for one in rated)
    return [
        {"right": right, "answers": answers, "pass_rate": right / answers, "problems": counts[right, answers]}
        for right, answers in sorted(counts, key=lambda pair: (pair[0] / pair[1], pair[1]))
    ]


def answer_counts(grades: Sequence[ProblemGrades]) -> dict[str, Any]:
    """All answers together: how they ended, how many could not be graded, their length."""
    every = [grade for one in grades if one.skipped is None for grade in one.grades]
    lengths = [grade.tokens for grade in every if grade.tokens is not None]
    return {
        "answers": len(every),
        "by_finish_reason": dict(sorted(Counter(grade.finish for grade in every).items())),
        "grader_failed": sum(not grade.graded for grade in every),
        "tokens": sum(lengths) if lengths else None,
        "tokens_per_answer": sum(lengths) / len(lengths) if lengths else None,
    }
