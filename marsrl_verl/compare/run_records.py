"""Runs that are finished before a comparison starts: its own, and equal ones of comparisons beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import marsrl_verl
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.results import Finished, ResultError, read_finished
from marsrl_verl.reporting.files import write_json_atomic

_ENDING = ".done.json"
"""Of `Run.record_path`."""
_PLACE = frozenset(("name", "marsrl.run.output_root"))
"""Overrides that say where a run lies, and nothing of what it does."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What is noted of a run that has ended well."""

    overrides: tuple[str, ...]
    seconds: float
    source: str | None
    """`source_fingerprint` when it ended; None: of an earlier version."""
    copied_from: str | None = None

    @property
    def work(self) -> frozenset[tuple[str, str]]:
        """What it does: the last value of each override, wherever it lies."""
        parts = (one.partition("=") for one in self.overrides)
        last = {key: value for key, _, value in parts if key not in _PLACE}
        return frozenset(last.items())


def write_record(run: Run, seconds: float, copied_from: Path | None = None) -> None:
    """Note that a run has ended well."""
    facts = {"overrides": list(run.overrides), "seconds": seconds, "source": source_fingerprint()}
    write_json_atomic(run.record_path, facts | ({"copied_from": str(copied_from)} if copied_from else {}))


def _record(path: Path) -> _Record | None:
    """None: there is none, or it was cut off or is another program's."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        overrides = tuple(plain["overrides"])
        if not all(isinstance(one, str) for one in overrides):
            return None
        return _Record(overrides, float(plain["seconds"]), plain.get("source"), plain.get("copied_from"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recorded_result(run: Run) -> Finished | None:
    """The result of an earlier start of the same run: it ended, with the same overrides."""
    record = _record(run.record_path)
    if record is None or record.overrides != run.overrides:
        return None
    try:
        return read_finished(run, record.seconds)
    except ResultError:
        return None


def copied_from(run: Run) -> str | None:
    """The folder of the other comparison's run that this one is a copy of."""
    record = _record(run.record_path)
    return None if record is None else record.copied_from


def copy_equal_runs(runs: Iterable[Run]) -> None:
    """Copy what comparisons in the same folder have finished with the same overrides and the same source, so
    that a method that two suites share is trained once."""
    missing = [run for run in runs if recorded_result(run) is None]
    beside = _beside(missing[0].root) if missing else []
    for run in missing:
        target = _Record(run.overrides, 0.0, source_fingerprint())
        for path, record in beside:
            if (record.work, record.source) == (target.work, target.source) and _copy(path, record, run):
                break


def _beside(root: Path) -> list[tuple[Path, _Record]]:
    """The records of the comparisons beside one."""
    paths = sorted(root.parent.parent.glob(f"*/{root.name}/*{_ENDING}"))
    found = [(path, _record(path)) for path in paths if path.parent != root]
    return [(path, record) for path, record in found if record is not None and record.copied_from is None]


def _copy(path: Path, record: _Record, run: Run) -> bool:
    source = path.with_name(path.name.removesuffix(_ENDING))
    method, _, seed = source.name.rpartition("-seed")
    fresh = run.root / f".{run.name}.copy"
    try:
        read_finished(Run(method, int(seed), record.overrides, path.parent))
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)
        run.record_path.unlink(missing_ok=True)
        shutil.rmtree(run.folder, ignore_errors=True)
        fresh.rename(run.folder)
    except (OSError, ValueError):  # gone meanwhile, or not whole: the run is carried out
        shutil.rmtree(fresh, ignore_errors=True)
        return False
    write_record(run, record.seconds, source)
    return True


@cache
def source_fingerprint() -> str:
    """Of the package's files and its configuration, as they were when this was first asked."""
    package = Path(marsrl_verl.__file__).parent
    found = hashlib.sha256()
    for folder in (package, package.parent / "configs"):
        for path in sorted(_sources(folder)):
            found.update(f"{path.relative_to(package.parent)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _sources(folder: Path) -> Sequence[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if path.suffix != ".pyc"]
