"""Runs that are finished before a comparison starts: its own, and equal ones of comparisons beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.results import Finished, read_finished, summary_path
from marsrl_verl.reporting.files import write_json_atomic

_ENDING = ".done.json"
"""Of `Run.record_path`."""
_PLACE = ("name=", "marsrl.run.output_root=")
"""Overrides that say where a run lies, and nothing of what it does."""


def write_record(run: Run, seconds: float) -> None:
    """Note that a run has ended well."""
    write_json_atomic(run.record_path, {"overrides": list(run.overrides), "seconds": seconds})


def read_kept(run: Run) -> Finished | None:
    """The result of an earlier start of the same run: it ended, with the same overrides."""
    if not run.record_path.is_file() or not summary_path(run).is_file():
        return None
    try:
        record = json.loads(run.record_path.read_text(encoding="utf-8"))
        same = record["overrides"] == list(run.overrides)
        return read_finished(run, float(record["seconds"])) if same else None
    except (ValueError, KeyError, TypeError):  # ResultError is a ValueError
        return None


def copy_equal_runs(runs: Iterable[Run]) -> dict[str, Path]:
    """Copy what comparisons in the same folder have finished with the same overrides, so that a method that
    two suites share is trained once.

    Returns:
        The folders that were copied, by the name of the run.
    """
    missing = [run for run in runs if read_kept(run) is None]
    found: dict[str, Path] = {}
    beside = _records(missing[0].root) if missing else {}
    for run in missing:
        record_path = beside.get(_work(run.overrides))
        if record_path is None:
            continue
        source = record_path.with_name(record_path.name.removesuffix(_ENDING))
        run.record_path.unlink(missing_ok=True)
        shutil.rmtree(run.folder, ignore_errors=True)
        shutil.copytree(source, run.folder)
        write_record(run, float(json.loads(record_path.read_text(encoding="utf-8"))["seconds"]))
        if read_kept(run) is not None:
            found[run.name] = source
    return found


def _records(root: Path) -> dict[tuple[str, ...], Path]:
    """The finished runs of the comparisons beside one, by what they do."""
    found: dict[tuple[str, ...], Path] = {}
    for path in sorted(root.parent.parent.glob(f"*/{root.name}/*{_ENDING}")):
        if path.parent == root or not path.with_name(path.name.removesuffix(_ENDING)).is_dir():
            continue
        try:
            overrides = json.loads(path.read_text(encoding="utf-8"))["overrides"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # another program's, or cut off
        found.setdefault(_work(overrides), path)
    return found


def _work(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in overrides if not one.startswith(_PLACE))
