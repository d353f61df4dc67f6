"""The folder of one run.

run.json                 marks the folder as a run's: format version, when it was created
.lock                    held by the process that writes here (run_lock)
config.yaml              the resolved configuration
view.json                what the method says of how its rollouts are shown (core.method.View)
tools.json               what the rollouts' tools said of themselves when the run was started last
metrics.jsonl            one line per training step (metrics_log)
metrics.replaced.jsonl   lines that a resumed run made obsolete
rollouts/step_N.jsonl    every trajectory of step N (rollout_log), or step_N.jsonl.gz (rollout_files)
trained/step_N.json      advantages of the trajectories that entered the loss of step N, by their ids
trained/step_N.parquet   other columns of their tokens, where they are kept (token_columns)
rollouts/eval_TAG.jsonl  every call of an evaluation, or eval_TAG.jsonl.gz
index/                   an index of each file of rollouts (rollout_index)
evaluations/TAG.json     an evaluation's record
evaluations/samples.jsonl  what each sample of an evaluation alone came to (samples)
replaced/                rollouts and evaluations that a resumed run made obsolete
checkpoints/             global_step_N, unless trainer.default_local_dir says otherwise; below it replaced/
summary.json             before, after, change and the run's facts
learning_curve.png, report.md
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from marsrl_verl.core.method import View
from marsrl_verl.core.rows import Rows, TokenAdvantages
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX
from marsrl_verl.evaluation.suite import ALONE, EvaluationRecord, EvaluationResult
from marsrl_verl.reporting.files import (
    free_name,
    to_json,
    write_atomic,
    write_bytes_atomic,
    write_json_atomic,
)
from marsrl_verl.reporting.metrics_log import METRICS_FILE, REPLACED_FILE, MetricsLog
from marsrl_verl.reporting.rollout_files import found, remove_oldest, write_rollouts
from marsrl_verl.reporting.rollout_index import index_path
from marsrl_verl.reporting.rollout_log import Line, evaluation_lines
from marsrl_verl.reporting.run_lock import LOCK_NAME, RunLockedError, acquire
from marsrl_verl.reporting.samples import write_samples
from marsrl_verl.reporting.storage import FolderLostError
from marsrl_verl.reporting.token_columns import write_token_columns
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.run_logs import RolloutLogConfig

MARKER = "run.json"
FORMAT_VERSION = 1
_STEP_FILE = re.compile(r"step_(\d+)\.(json|jsonl|jsonl\.gz|parquet)")
_ROLLOUT_FOLDER = "rollouts"
_TRAINED_FOLDER = "trained"
_EVALUATION_FOLDER = "evaluations"
CHECKPOINT_FOLDER = "checkpoints"
_SET_ASIDE = "replaced"
SUMMARY_FILE = "summary.json"
_RESULT_FILES = (METRICS_FILE, REPLACED_FILE, SUMMARY_FILE)
_RESULT_FOLDERS = (_ROLLOUT_FOLDER, _TRAINED_FOLDER, _EVALUATION_FOLDER, _SET_ASIDE, CHECKPOINT_FOLDER)
_TO_DELETE = ".to_delete"
"""Folder of what `if_exists=replace` deletes, first moved out of sight."""


class IfExists(Choice):
    """Action when the folder already holds a run (`marsrl.run.if_exists`). A run that ended before it trained
    or evaluated anything does not count."""

    FAIL = "fail"
    """Stop with a message."""
    RESUME = "resume"
    """Continue in it; a folder that does not exist yet is created."""
    REPLACE = "replace"
    """Delete it and start anew; only a folder that a run created is ever deleted."""


class OutputFolderError(ValueError):
    """The output folder can't be used as configured; the message says what to change."""


def has_results(path: Path) -> bool:
    """True if a run's folder holds more than its settings: something was evaluated, trained or saved."""
    files = (path / name for name in _RESULT_FILES)
    folders = (path / name for name in _RESULT_FOLDERS)
    return any(file.is_file() and file.stat().st_size > 0 for file in files) or any(
        found.is_file() for folder in folders for found in folder.rglob("*")
    )


def read_evaluations(path: Path) -> list[EvaluationRecord]:
    """The records of all evaluations in a run's folder, ordered by step."""
    found = [_read_record(one) for one in sorted((path / _EVALUATION_FOLDER).glob("*.json"))]
    return sorted(found, key=lambda record: record.step)


def check_output_folder(path: Path | str, if_exists: IfExists | str = IfExists.FAIL) -> None:
    """Raises OutputFolderError if `RunFolder.create` would, unless the folder is locked; touches nothing."""
    path, policy = Path(path), _policy(if_exists)
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputFolderError(f"marsrl.run.output_dir={path} is a file; give a folder's name")
    if all(entry.name.startswith(".") for entry in path.iterdir()):
        return
    if not (path / MARKER).exists():
        raise OutputFolderError(
            f"marsrl.run.output_dir={path} holds files that no run of this program left there "
            f"(there is no {MARKER}); nothing was touched. Choose another marsrl.run.name, or move the "
            "files away."
        )
    if policy is IfExists.FAIL and has_results(path):
        raise OutputFolderError(
            f"marsrl.run.output_dir={path} already holds a run and marsrl.run.if_exists=fail. Choose another "
            "marsrl.run.name, or set marsrl.run.if_exists=resume to continue it or "
            "marsrl.run.if_exists=replace to delete it and start anew."
        )


def _policy(if_exists: IfExists | str) -> IfExists:
    try:
        return IfExists(if_exists)
    except ValueError:
        known = ", ".join(item.value for item in IfExists)
        raise OutputFolderError(
            f"marsrl.run.if_exists={if_exists!r} is unknown; use one of {known}"
        ) from None


def _move_out_of_sight(path: Path) -> None:
    """Moves what a run left out of sight, to be deleted: its checkpoints first, its mark last, so that an
    interrupted deletion leaves nothing that a later start would continue."""
    entries = [entry for entry in path.iterdir() if entry.name not in (LOCK_NAME, _TO_DELETE)]
    order = {CHECKPOINT_FOLDER: -1, MARKER: 1}
    for entry in sorted(entries, key=lambda entry: order.get(entry.name, 0)):
        _move(entry, path / _TO_DELETE)


def _move(path: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    os.replace(path, free_name(target, path.stem, path.suffix))


class RunFolder:
    """Folder that a run leaves its files in. `create` in the launcher, `attach` in every other process."""

    def __init__(self, path: Path, resumed: bool) -> None:
        self.path = path
        self._mark = (path / MARKER).read_bytes()
        self._config: str | None = None
        self.resumed = resumed
        """True if the folder already held a run that is being continued."""
        self.metrics = MetricsLog(path)
        self.rollout_log = RolloutLogConfig()
        self.config_path, self.summary_path = path / "config.yaml", path / SUMMARY_FILE
        self.curve_path, self.report_path = path / "learning_curve.png", path / "report.md"

    @classmethod
    def create(cls, path: Path | str, if_exists: IfExists | str = IfExists.FAIL) -> RunFolder:
        """Creates the folder, or takes an existing one as the policy says; it stays locked until this process
        ends (`run_lock`).

        Raises:
            OutputFolderError: when the policy forbids it, the folder is not a run's, or another process
                writes into it; nothing is changed then.
        """
        check_output_folder(path, if_exists)
        path, policy = Path(path).resolve(), _policy(if_exists)
        try:
            acquire(path)
        except RunLockedError as error:
            raise OutputFolderError(
                f"{error}; nothing was touched. Choose another marsrl.run.name, or wait for that run to end."
            ) from error
        check_output_folder(path, if_exists)  # nobody else can change it from here on
        holds_run = (path / MARKER).exists()
        if holds_run and policy is IfExists.REPLACE:
            _move_out_of_sight(path)
            holds_run = False
        shutil.rmtree(path / _TO_DELETE, ignore_errors=True)  # of this or of an interrupted start
        if not holds_run:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            write_json_atomic(path / MARKER, {"format_version": FORMAT_VERSION, "created": now})
        return cls.attach(path, resumed=holds_run and policy is IfExists.RESUME)

    @classmethod
    def attach(cls, path: Path | str, resumed: bool = False) -> RunFolder:
        """Opens a folder that `create` made; OutputFolderError if it is none, or one of another format."""
        marker = Path(path) / MARKER
        if not marker.exists():
            raise OutputFolderError(f"{path} is no run's folder: {MARKER} is missing")
        version = json.loads(marker.read_text(encoding="utf-8")).get("format_version")
        if version != FORMAT_VERSION:
            raise OutputFolderError(
                f"{path} was written in format {version}, this version reads {FORMAT_VERSION}; choose "
                "another marsrl.run.name"
            )
        return cls(Path(path).resolve(), resumed)

    def require(self) -> None:
        """Raises FolderLostError if the folder or the file of its metrics was deleted, moved or replaced."""
        mark = self._found_mark()
        if mark == self._mark and not self.metrics.deleted:
            return
        what = self.path if mark != self._mark else self.metrics.path
        taken = mark not in (None, self._mark)
        if taken:
            state = ", and another run has taken its place: nothing more is written, and what it held is gone"
        else:
            state = ": what it held of the steps so far is gone, unless you have it elsewhere"
        raise FolderLostError(f"{what} was deleted or moved while the run wrote into it{state}", taken=taken)

    def restore(self) -> None:
        """Makes the folder anew where it was deleted, so that a checkpoint in it can be continued."""
        self.metrics.close()
        if self._found_mark() is None:
            write_bytes_atomic(self.path / MARKER, self._mark)
        if self._config is not None and not self.config_path.exists():
            write_atomic(self.config_path, self._config)

    def _found_mark(self) -> bytes | None:
        try:
            return (self.path / MARKER).read_bytes()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return None
            raise

    def write_config(self, yaml: str) -> None:
        """Writes the resolved configuration; a resumed run's earlier one is kept as `config.N.yaml`.

        There is a `config.yaml` at every moment: a resume compares its settings with it.
        """
        self._config = yaml
        if self.config_path.exists():
            earlier = self.config_path.read_text(encoding="utf-8")
            if earlier == yaml:
                return
            write_atomic(free_name(self.path, "config", ".yaml"), earlier)
        write_atomic(self.config_path, yaml)

    def write_view(self, view: View) -> None:
        """Writes `view.json`."""
        columns = {name: list(fields) for name, fields in view.columns.items()}
        write_json_atomic(self.path / "view.json", {"columns": columns, "silent": sorted(view.silent)})

    def write_tools(self, tools: Mapping[str, object]) -> None:
        """Writes `tools.json`: by tool, what it says of itself."""
        write_json_atomic(self.path / "tools.json", dict(tools))

    def write_rollouts(self, step: int, lines: list[Line], trained: TokenAdvantages) -> None:
        """Writes a step's `rollouts/step_N.jsonl` (or `.jsonl.gz`) and `trained/step_N.json`.

        Args:
            lines: `rollout_log.step_lines`.
            trained: advantages of the trajectories that entered the loss, by their ids: for each sequence a
                list of (end, advantage) of consecutive parts of the response, in tokens.
        """
        folder, name = self.path / _ROLLOUT_FOLDER, f"step_{step}"
        advantages = to_json(dict(sorted(trained.items()))) + "\n"
        write_atomic(self.path / _TRAINED_FOLDER / f"{name}.json", advantages)
        write_rollouts(folder, name, lines, self.rollout_log, trained)
        if self.rollout_log.keep_gb is not None:
            remove_oldest(folder, self.rollout_log.keep_gb)

    def write_token_columns(self, step: int, rows: Rows) -> None:
        """Writes a step's `trained/step_N.parquet`, if columns are to be kept."""
        if names := self.rollout_log.token_columns:
            write_token_columns(self.path / _TRAINED_FOLDER / f"step_{step}.parquet", rows, names)

    def write_evaluation(self, result: EvaluationResult, *, rollouts: bool = True) -> None:
        """Writes an evaluation's record and, if requested, its calls.

        An earlier end's evaluation, in a run that was resumed with more steps, becomes that of its step.
        """
        record = result.record
        self._relabel_earlier(record.tag, record.step)
        for runs in result.passes:
            if rollouts:
                lines = list(evaluation_lines(record.step, runs, result.evaluation.record))
                every = self.rollout_log.model_copy(update={"max_mb": None})
                write_rollouts(self.path / _ROLLOUT_FOLDER, f"eval_{runs.tag}", lines, every)
        if record.tag == ALONE:
            write_samples(self.path, result.passes)
        write_json_atomic(self.path / _EVALUATION_FOLDER / f"{record.tag}.json", record.to_json())

    def _relabel_earlier(self, tag: str, step: int) -> None:
        old_path = self.path / _EVALUATION_FOLDER / f"{tag}.json"
        earlier = _read_record(old_path) if old_path.exists() else None
        if earlier is None or earlier.step >= step:
            return
        new = f"step_{earlier.step}"
        new_path = old_path.with_name(f"{new}.json")
        if new_path.exists():
            return  # evaluated at that step as well
        write_json_atomic(new_path, replace(earlier, tag=new).to_json())
        old_path.unlink()
        for suffix in ("", GREEDY_SUFFIX):
            calls = found(self.path / _ROLLOUT_FOLDER, f"eval_{tag}{suffix}")
            if calls is not None:
                renamed = calls.with_name(calls.name.replace(f"eval_{tag}", f"eval_{new}", 1))
                index = index_path(calls)
                os.replace(calls, renamed)
                if index.is_file():
                    os.replace(index, index_path(renamed))

    def roll_back(self, step: int) -> int:
        """Puts the folder into the state after `step`, the checkpoint that a run resumes from.

        Later metric lines move to `metrics.replaced.jsonl`; rollouts and evaluations of later steps move
        into `replaced/`. Returns the number of metric lines moved. Checkpoints are set aside before, by
        `verl_adapter.checkpoint.files.set_aside_after`: they need not lie in this folder.
        """
        folders = (self.path / _ROLLOUT_FOLDER, self.path / _TRAINED_FOLDER)
        for half in (path for folder in folders for path in folder.glob(".*.tmp")):
            half.unlink()  # of a run that was killed while it wrote
        for path in sorted(path for folder in folders for path in folder.glob("step_*")):
            match = _STEP_FILE.fullmatch(path.name)
            if match and int(match.group(1)) > step:
                _move(path, self.path / _SET_ASIDE)
                index_path(path).unlink(missing_ok=True)
        for path in sorted((self.path / _EVALUATION_FOLDER).glob("*.json")):
            if _read_record(path).step > step:
                _move(path, self.path / _SET_ASIDE)
                for tag in (path.stem, f"{path.stem}{GREEDY_SUFFIX}"):
                    calls = found(self.path / _ROLLOUT_FOLDER, f"eval_{tag}")
                    if calls is not None:
                        _move(calls, self.path / _SET_ASIDE)
                        index_path(calls).unlink(missing_ok=True)
        return self.metrics.drop_after(step)


def _read_record(path: Path) -> EvaluationRecord:
    return EvaluationRecord.from_json(json.loads(path.read_text(encoding="utf-8")))
