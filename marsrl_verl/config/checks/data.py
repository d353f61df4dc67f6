"""Checks of the data files: there, readable, with a question and an answer in every row."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.data_files import (
    MAX_NAMED_ROWS,
    FileReport,
    UnreadableFileError,
    as_list,
    read_report,
)
from marsrl_verl.config.errors import Problem

_FORMAT = "verl's format: columns `prompt` (chat messages), `data_source`, `reward_model` with `ground_truth`"


def check_data(ctx: Context) -> list[Problem]:
    """Every file of `data.train_files` and `data.val_files`; fills `ctx.files`."""
    problems: list[Problem] = []
    for split in ("train", "val"):
        key = f"data.{split}_files"
        if OmegaConf.is_missing(ctx.config.data, f"{split}_files") or ctx.get(key) in (None, "", []):
            problems += _unset(ctx, key)
            continue
        names = as_list(ctx.get(key))
        if not names or not all(isinstance(name, str) for name in names):
            what = "Expected the path of a file, or a list of paths."
            problems.append(Problem(key, what, f"Write {key}=file.parquet or '{key}=[a,b]'.", ctx.get(key)))
            continue
        for name in names:
            problems += _check_file(ctx, key, split, name)
    return problems


def _unset(ctx: Context, key: str) -> list[Problem]:
    if ctx.dry_run:
        ctx.notes.append(f"{key} is not set: the data was not looked at.")
        return []
    return [Problem(key, "No file is named.", f"Give one: {key}=path/to/file.parquet ({_FORMAT}).", None)]


def _check_file(ctx: Context, key: str, split: str, name: str) -> list[Problem]:
    if "://" in name:
        ctx.notes.append(f"{name} lies on another file system: not looked at.")
        return []
    path = Path(name).expanduser()
    if not path.is_file():
        what = (
            "This is a folder, expected a file."
            if path.is_dir()
            else f"There is no such file{_nearby(path)}."
        )
        return [Problem(key, what, "Give the path of a .parquet, .jsonl or .json file that exists.", name)]
    required = (str(ctx.config.data.prompt_key), "reward_model", "data_source")
    try:
        report = read_report(path, split, required[0], required)
    except UnreadableFileError as error:
        return [Problem(key, f"The file can't be used: {error}.", f"Convert it to {_FORMAT}.", name)]
    ctx.files.append(report)
    return _row_problems(key, name, report)


def _row_problems(key: str, name: str, report: FileReport) -> list[Problem]:
    problems: list[Problem] = []
    for rows, what, fix in (
        (report.without_answer, "have no answer", "fill in reward_model.ground_truth"),
        (report.without_question, "have no question", "give the prompt a user message with text"),
    ):
        if rows:
            listed = ", ".join(str(row) for row in rows[:MAX_NAMED_ROWS])
            more = ", …" if len(rows) > MAX_NAMED_ROWS else ""
            problems.append(
                Problem(
                    key,
                    f"{len(rows)} of {report.rows} rows {what} (row {listed}{more}, counted from 0).",
                    f"Remove these rows, or {fix}.",
                    name,
                )
            )
    return problems


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {path.parent})"
    names = sorted(
        item.name for item in path.parent.iterdir() if item.suffix in (".parquet", ".jsonl", ".json")
    )
    return f"; its folder has {', '.join(names[:4])}" if names else ""
