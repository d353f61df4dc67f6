"""Benchmarks by name (`benchmarks.yaml`): read from the Hugging Face hub, or from a copy of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.problems import SourceProblem, collect, read_problem
from marsrl_verl.data.rows import DataError, Row, RowError, read_rows
from marsrl_verl.data.sources import SOURCES, Source

VERL_FORM = Source(Columns(), None)
"""verl's columns, which a copy of one's own may have."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published set of problems with their answers, none of which is for training."""

    problems: int
    """On the hub, or in the copy that papers used."""
    forms: tuple[Any, ...]
    """Names of `SOURCES` or columns; a file has those of one of them."""
    licence: str
    hub: str | None = None
    name: str | None = None
    """The hub's configuration, where there are several."""
    split: str | None = None
    revision: str | None = None
    """The commit of the hub's copy; None: its newest."""
    metric: str = "accuracy"
    """The figure that papers report: `accuracy`, `f1` or `exact_match`."""
    own_copy: bool = False
    """Its origin asks that it is not shared on: it is read from a file of the user's alone."""
    tried: bool = False
    """A published copy was read in a test."""

    def sources(self) -> Iterable[Source]:
        """The ways to read a row, the hub's first."""
        for form in self.forms:
            yield SOURCES[form] if isinstance(form, str) else Source(_columns(form), None)
        yield VERL_FORM


def _columns(form: Mapping[str, Any]) -> Columns:
    return Columns(**{"answer_lists": form["ability"] == "qa", **form, "extra": tuple(form.get("extra", ()))})


_TEXT = Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8")
BENCHMARKS: Mapping[str, Benchmark] = {
    name: Benchmark(**{**one, "forms": tuple(one["forms"])})
    for name, one in yaml.safe_load(_TEXT)["benchmarks"].items()
}


@dataclass(frozen=True)
class BenchmarkProblems:
    """The problems of a benchmark, each once, in its order; their data source is its name."""

    name: str
    problems: tuple[SourceProblem, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Of questions and answers in their order, 12 hexadecimal digits: results of equal ones can be
        compared."""
        found = hashlib.sha256()
        for one in self.problems:
            found.update(f"{one.question}\0{one.problem.ground_truth}\0".encode("utf-8", "surrogatepass"))
        return found.hexdigest()[:12]


def read_benchmark(name: str, file: str | None = None, first: int | None = None) -> BenchmarkProblems:
    """The problems of a benchmark.

    Args:
        name: one of `BENCHMARKS`.
        file: a copy of one's own (.parquet, .jsonl or .json); None: the hub's.
        first: how many problems are taken, from the first on; None: all.

    Raises:
        DataError: it can't be had, or rows are no problems with answers.
    """
    known = BENCHMARKS[name]
    where = f"{known.hub} (split {known.split})" if file is None else file
    rows = _hub_rows(name, known) if file is None else _file_rows(known, Path(file).expanduser())
    source = _form(name, known, rows, where)
    columns = replace(source.columns, data_source=name)
    found = collect(rows, columns, source.instruction)
    if found.faults:
        what, fault = next(iter(found.faults.items()))
        head = f"Benchmark {name}: {found.bad_rows} of {found.rows} rows are no problem with an answer;"
        fix = "See whether it is the published file; a benchmark is taken whole."
        raise DataError(f"{head} {what} ({fault.places[0]}).", fix)
    return BenchmarkProblems(name, tuple(found.problems.values())[:first])


def _form(name: str, known: Benchmark, rows: Sequence[Row], where: str) -> Source:
    """The first form in which the first row is a problem with an answer."""
    first = rows[0] if rows else Row(where, {})
    if isinstance(first.data, RowError):
        raise DataError(f"Benchmark {name}, {first.place}: {first.data.what}.", f"{first.data.fix}.")
    for source in known.sources():
        with suppress(RowError):
            read_problem(first.data, first.place, source.columns, source.instruction)
            return source
    expected = ", or ".join(
        f"{one.columns.question or one.columns.chat} and {one.columns.answer}" for one in known.sources()
    )
    found = ", ".join(first.data) or "none"
    what = f"Benchmark {name}, {where}: found columns {found}, expected {expected}."
    raise DataError(what, "Name a published copy, or make one with prepare_data (docs/data.md).")


def _file_rows(known: Benchmark, path: Path) -> list[Row]:
    names = [name for source in known.sources() for name in source.columns.names]
    return list(read_rows([path], list(dict.fromkeys(names))))


def _hub_rows(name: str, known: Benchmark) -> list[Row]:
    key = f"marsrl.evaluation.benchmarks.{name}.file"
    if known.hub is None:
        what = f"Benchmark {name} is not read from the hub: its origin asks that it is not shared on."
        raise DataError(what, f"Name your copy: {key}=FILE (.parquet, .jsonl or .json).")
    import datasets

    try:
        found = datasets.load_dataset(known.hub, known.name, split=known.split, revision=known.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"Benchmark {name}: {known.hub} can't be had from the hub ({str(error).splitlines()[0]}).",
            f"Name a copy of your own: {key}=FILE (.parquet, .jsonl or .json).",
        ) from error
    return [Row(f"{known.hub} row {number}", dict(row)) for number, row in enumerate(found)]
