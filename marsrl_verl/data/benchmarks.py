"""Benchmarks by name (`benchmarks.yaml`): read from the Hugging Face hub, or from a copy of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.pairs import COLUMNS, PAIR_FIELDS, collect_pairs
from marsrl_verl.data.problems import SourceProblem, collect, read_problem
from marsrl_verl.data.rows import DataError, Row, RowError, read_rows
from marsrl_verl.data.sources import SOURCES, Source

PAIRS = "pairs"
"""The form of pairs of answers."""
VERL_FORM = Source(Columns(), None)
"""verl's columns, which a copy of one's own may have."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published set of problems with their answers, none of which is for training."""

    problems: int
    """Problems on the hub, or in the copy that papers used."""
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
    own_copy: str | None = None
    """Why it is read from a file of the user's alone."""
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Subsets of each category, of pairs of answers. The score is then the mean over categories, that of
    one with parts (`Reasoning/code`) the mean over these."""
    tried: bool = False
    """A published copy was read in a test."""

    @property
    def pairs(self) -> bool:
        """True if it has pairs of answers to judge, in any of the layouts of `data.pairs`."""
        return self.forms == (PAIRS,)

    def sources(self) -> Iterable[Source]:
        """The ways to read a row that is no pair, the hub's first."""
        for form in () if self.pairs else self.forms:
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
    rows: int
    """Rows of the file, repeated problems included."""
    fields: tuple[str, ...] = ()
    """Texts of `extra_info` that its rows have, of pairs of answers (`PAIR_FIELDS`)."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of questions and answers in their order, 12 hexadecimal digits: results with equal ones can be
        compared."""
        found = hashlib.sha256()
        for one in self.problems:
            more = (str(one.problem.extra_info[field]) for field in self.fields)
            texts = [one.question, one.problem.ground_truth, *more]
            found.update("".join(f"{text}\0" for text in texts).encode("utf-8", "surrogatepass"))
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
    if known.pairs:
        found = collect_pairs(rows, name)
    else:
        source = _form(name, known, rows, where)
        found = collect(rows, replace(source.columns, data_source=name), source.instruction)
    if found.faults:
        what, fault = next(iter(found.faults.items()))
        head = f"Benchmark {name}: {found.bad_rows} of {found.rows} rows are no problem with an answer;"
        fix = "See whether it is the published file; a benchmark is taken whole."
        raise DataError(f"{head} {what} ({fault.places[0]}).", fix)
    fields = PAIR_FIELDS if known.pairs else ()
    return BenchmarkProblems(name, tuple(found.problems.values())[:first], found.rows, fields)


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
    raise DataError(what, "Name a published copy, or make one with prepare_data (docs/guides/data.md).")


def _file_rows(known: Benchmark, path: Path) -> list[Row]:
    names = [name for source in known.sources() for name in source.columns.names]
    names += COLUMNS if known.pairs else ()
    return list(read_rows([path], list(dict.fromkeys(names))))


def _hub_rows(name: str, known: Benchmark) -> list[Row]:
    key = f"marsrl.evaluation.benchmarks.{name}.file"
    if known.hub is None:
        what = f"Benchmark {name} is not read from the hub: {known.own_copy}."
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
