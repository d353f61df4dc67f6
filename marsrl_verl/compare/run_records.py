"""Runs that are finished before a comparison starts: its own, and equal ones of other comparisons."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import marsrl_verl
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.record import Known, RecordError, finished_of, read_record, run_json, shared_json
from marsrl_verl.compare.results import Finished, ResultError, read_finished
from marsrl_verl.compare.suite import FOLDER, Suite
from marsrl_verl.reporting.files import write_json_atomic

_ENDING = ".done.json"
"""Ending of `Run.record_path`."""


def write_record(done: Finished) -> None:
    """Notes that a run has ended well, and what it measured."""
    facts = {
        "overrides": list(done.run.overrides),
        "seconds": done.seconds,
        "source": done.source,
        "copied_from": done.copied_from,
        "shared": shared_json([done]),
        "result": run_json(done),
    }
    write_json_atomic(done.run.record_path, facts)


def _facts(path: Path) -> dict[str, Any] | None:
    """None: there is no record, or it was cut off or is another program's."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        named = all(isinstance(one, str) for one in plain["overrides"])
        return dict(plain) if named and isinstance(plain["seconds"], int | float) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recorded_result(run: Run, suite: Suite) -> Finished | None:
    """The result of an earlier start of the same run: it ended, with the same overrides."""
    facts = _facts(run.record_path)
    if facts is None or _work(facts) != run.work:
        return None
    return _result(run, suite, facts) or _of_folder(run, suite, facts)


def _work(facts: dict[str, Any]) -> str:
    return Run("", 0, tuple(facts["overrides"]), Path()).work


def _result(run: Run, suite: Suite, facts: dict[str, Any]) -> Finished | None:
    """Returns the result that the record itself holds; None if it lacks the suite's curve or a figure."""
    try:
        done = finished_of(run, facts["result"], facts["shared"])
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration):
        return None
    if done.curve.metric != suite.curve or not set(suite.figures) <= set(done.figures):
        return None
    return replace(done, copied_from=facts.get("copied_from"))


def _of_folder(run: Run, suite: Suite, facts: dict[str, Any]) -> Finished | None:
    """Returns the result that the run's folder holds; None if it holds none."""
    try:
        return replace(read_finished(run, suite, facts["seconds"]), source=facts.get("source"))
    except ResultError:
        return None


def known_runs(runs: Iterable[Run], known: Sequence[Path]) -> dict[str, tuple[Path, Known]]:
    """The runs of records, by what they did, with the record's file; RecordError where a file is no record,
    or none of its runs did what one of `runs` does."""
    planned = {run.work for run in runs}
    named: dict[str, tuple[Path, Known]] = {}
    for path in known:
        found = {one.work: (path, one) for one in read_record(path) if one.work is not None}
        if not found.keys() & planned:
            raise RecordError(
                f"{path}: {len(found)} of its runs say what they did (`work`), and none did what a run of "
                "this comparison does: overrides, budget or seeds are others; leave the file out"
            )
        named |= found
    return named


def take_equal_runs(runs: Iterable[Run], suite: Suite, known: Sequence[Path] = ()) -> None:
    """Takes over what was done elsewhere, so that it is done once: runs with the same overrides, of the
    records that are named (`known_runs`), and, made by the same source too, of comparisons in the same
    folder."""
    runs = list(runs)
    named = known_runs(runs, known)
    missing = [run for run in runs if recorded_result(run, suite) is None]
    beside = dict(_beside(missing[0].root)) if missing else {}
    for run in missing:
        done = None
        if run.work in named:
            path, one = named[run.work]
            facts = {"result": one.plain, "shared": one.shared, "copied_from": str(path)}
            done = _result(run, suite, facts)
        if done is None and run.work in beside:
            path = beside[run.work]
            facts = _facts(path) or {}
            name = path.name.removesuffix(_ENDING)
            method, _, seed = name.rpartition("-seed")
            there = Run(method, int(seed), run.overrides, path.parent)
            done = _result(run, suite, facts) or _of_folder(there, suite, facts)
            done = done and replace(done, copied_from=str(path.with_name(name)))
        if done is not None:
            write_record(replace(done, run=run))


def _beside(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields work and record of each run that comparisons beside this one made from the same source."""
    for path in sorted(root.parent.parent.glob(f"*/{root.name}/*{_ENDING}"), reverse=True):
        facts = _facts(path) if path.parent != root else None
        if facts and facts.get("source") == source_fingerprint() and not facts.get("copied_from"):
            yield _work(facts), path


@cache
def source_fingerprint() -> str:
    """Returns the hash of the files that a training run may read (the package's, its configuration and the
    studies'), as they were at the first call. The code that compares runs is left out."""
    package = Path(marsrl_verl.__file__).parent
    found = hashlib.sha256()
    for folder in (package, package.parent / "configs", package.parent / "studies"):
        for path in sorted(_sources(folder)):
            found.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _sources(folder: Path) -> Sequence[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return [path for path in files if not {Path(__file__).parent, FOLDER} & {*path.parents}]
