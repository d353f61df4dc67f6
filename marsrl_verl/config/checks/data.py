"""Checks of the data files: there, readable, with a question and an answer in every row, short enough to ask;
and what their user should know: repeated problems, and held-out ones that are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from omegaconf import OmegaConf

from marsrl_verl.config.checks.classes import Look, remarks_of, row_looks
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.resume import trained_files
from marsrl_verl.core.prompts import NO_PROBLEM
from marsrl_verl.core.request import Problem
from marsrl_verl.data.contamination import EvaluationSet
from marsrl_verl.data.files import (
    MAX_NAMED_ROWS,
    FileReport,
    PromptLengths,
    Seen,
    as_list,
    read_report,
    splits_read,
)
from marsrl_verl.data.problems import Fault
from marsrl_verl.data.rows import DataError
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.settings.issues import ConfigIssue

SPLITS = ("train", "val")
_FORMAT = "verl's format: columns `prompt` (chat messages), `data_source`, `reward_model` with `ground_truth`"
_MAKE = "`python -m recipe.marsrl.prepare_data` makes it of other columns (docs/guides/data.md)"
_OF_WORLDS = ("marsrl_verl.demo.", "studies.")
"""Prompts of the toy tasks, in few words and for few tokens."""
_FILTER = "data.filter_overlong_prompts"


def check_data(ctx: Context) -> list[ConfigIssue]:
    """Every data file that the run reads; fills `ctx.files` and `ctx.warnings`."""
    with ExitStack() as closing:
        problems = list(_check_files(ctx, row_looks(ctx, closing)))
    if problems := [*problems, *remarks_of(ctx)]:
        return problems
    ctx.warnings += broken_commands(ctx.files)
    ctx.warnings += [*repeated(ctx.files), *shared(ctx.files), *asked_otherwise(ctx.files)]
    ctx.warnings += trained_before(ctx.files, trained_files(ctx), str(ctx.config.data.prompt_key))
    return list(_check_prompt_lengths(ctx))


def _check_files(ctx: Context, look: Look) -> Iterator[ConfigIssue]:
    lengths = prompt_lengths(ctx)
    for split in splits_read(ctx.config):
        key, seen = f"data.{split}_files", Seen()
        value = None if OmegaConf.is_missing(ctx.config.data, f"{split}_files") else ctx.get(key)
        names = as_list(value)
        if value in (None, "", []):
            if ctx.dry_run:
                ctx.notes.append(f"{key} is not set: the data was not looked at.")
            else:
                fix = f"Give one: {key}=path/to/file.parquet ({_FORMAT})."
                yield ConfigIssue(key, "No file is named.", fix, None)
        elif not all(isinstance(name, str) for name in names):
            what = "Expected the path of a file, or a list of paths."
            yield ctx.issue(key, what, f"Write {key}=file.parquet or '{key}=[a,b]'.")
        else:
            for name in names:
                yield from _check_file(ctx, key, split, name, seen, lengths, look)


def prompt_lengths(ctx: Context) -> PromptLengths | None:
    """Returns the measure of the prompts that decide whether a problem is used; None where none can be
    measured."""
    if (prompts := ctx.usable_prompts()) is None:
        return None
    if (counter := ctx.tokenizer()) is None:
        ctx.notes.append("The model's tokenizer is not here: prompts were not measured.")
        return None
    algo, limits = ctx.settings.algo, ctx.settings.prompt_limits

    def measure(problem: Problem) -> dict[str, int]:
        asked = ctx.method.opening_prompts(algo, prompts, problem)
        own = {role: messages for role, messages in asked.items() if role in limits}
        return {role: counter.chat(messages, enough=limits[role]) for role, messages in own.items()}

    return PromptLengths(measure, limits)


def _check_prompt_lengths(ctx: Context) -> Iterator[ConfigIssue]:
    """Data of which every problem would be skipped is rejected, parts of it are warned of."""
    limits = ctx.settings.prompt_limits
    alone = bool(ctx.config.trainer.val_only)
    for split, required in zip(SPLITS, (not alone, alone or ctx.evaluates), strict=True):
        files = [report for report in ctx.files if report.split == split and report.too_long is not None]
        rows, prompted = sum(one.rows for one in files), sum(one.prompted for one in files)
        if prompted == rows:
            continue
        longest = {
            role: max(one.longest_prompts.get(role, 0) for one in files)
            for role in dict.fromkeys(role for one in files for role in one.longest_prompts)
        }
        keys = {role: f"marsrl.roles.{role}.max_prompt_tokens" for role in longest}
        over = (
            f"{limits[role]:,} tokens of the {role} (the longest {most:,})" for role, most in longest.items()
        )
        what = f"problems of data.{split}_files have prompts over {', or over '.join(over)}"
        if prompted == 0 and required:
            for role, most in longest.items():
                fix = f"Raise it to {most} or more."
                if ctx.settings.prompts.target.startswith(_OF_WORLDS):
                    fix = "Name a model for this data, which the tiny task's isn't: "
                    fix += "model=custom actor_rollout_ref.model.path=… (docs/guides/models.md)."
                yield ConfigIssue(keys[role], f"All {rows:,} {what}.", fix, limits[role])
            continue
        effect = "they are not evaluated."
        if ctx.first_role not in longest:
            effect = "they get no answer there, and are counted as not solved."
        if ctx.config.data.filter_overlong_prompts:
            effect = f"{_FILTER} leaves them out."
        elif split == "train":
            effect = (
                f"they are skipped, and steps that draw them are smaller. {_FILTER}=true takes them out "
                f"beforehand; limits: {', '.join(keys.values())}."
            )
        ctx.warnings.append(f"{rows - prompted:,} of {rows:,} {what}: {effect}")


def broken_commands(files: list[FileReport]) -> list[str]:
    """Sentences about rows whose LaTeX commands are repaired whenever they are read."""
    return [
        f"{report.repaired:,} of {report.rows:,} rows of {report.path} hold LaTeX commands that a string "
        "literal has broken, such as a backspace and `oxed`; they are prompted with the commands repaired."
        for report in files
        if report.repaired
    ]


def repeated(files: list[FileReport]) -> Iterator[str]:
    """Sentences about problems that a split holds twice."""
    for split in SPLITS:
        some = [report for report in files if report.split == split]
        rows, duplicates = sum(one.rows for one in some), sum(one.duplicates for one in some)
        if duplicates:
            yield (
                f"{duplicates:,} of {rows:,} rows of data.{split}_files repeat a problem of an earlier row; "
                "each of them counts (prepare_data takes every problem once)."
            )
        if contradictions := [pair for one in some for pair in one.contradictions]:
            first, second = contradictions[0]
            yield (
                f"{len(contradictions):,} of {rows:,} rows of data.{split}_files give a problem of an "
                f"earlier row another answer, so one of the two is graded wrongly; the first: {first} and "
                f"{second}."
            )


def shared(files: list[FileReport]) -> Iterator[str]:
    """A sentence about held-out problems that are trained."""
    trained, held_out = (
        {key: place for one in files if one.split == split for key, (_, place) in one.problems.items()}
        for split in SPLITS
    )
    if both := [key for key in held_out if key in trained]:
        yield (
            f"{len(both):,} of {len(held_out):,} held-out problems are trained too, so evaluations measure "
            f"memory; the first: {held_out[both[0]]} and {trained[both[0]]}."
        )


def trained_before(files: list[FileReport], trained: list[Path], prompt_key: str) -> Iterator[str]:
    """Sentences about held-out questions that a checkpoint was trained on, however they are typeset."""
    for path in trained:
        known = EvaluationSet.read(path, prompt_key).questions
        for report in files:
            asked = EvaluationSet.read(report.path, prompt_key).questions
            if both := [looks for looks in asked if looks in known]:
                yield (
                    f"{len(both):,} of {len(asked):,} questions of {report.path} were trained by the "
                    f"checkpoint's run, so its figures measure memory; the first: {asked[both[0]]} and "
                    f"{known[both[0]]}."
                )


def asked_otherwise(files: list[FileReport]) -> Iterator[str]:
    """A sentence about system messages that all rows of one split bring along and none of the other."""
    rows = {split: sum(one.rows for one in files if one.split == split) for split in SPLITS}
    with_system = {split: sum(one.with_system for one in files if one.split == split) for split in SPLITS}
    for split, other in (SPLITS, SPLITS[::-1]):
        if rows[other] and not with_system[other] and 0 < rows[split] == with_system[split]:
            yield (
                f"Rows of data.{split}_files bring system messages of their own, those of data.{other}_files "
                "none: where prompts show the chat, the two are prompted in other words. prepare_data "
                "--drop-system leaves the words to marsrl.prompts."
            )


def _check_file(
    ctx: Context, key: str, split: str, name: str, seen: Seen, lengths: PromptLengths | None, look: Look
) -> Iterator[ConfigIssue]:
    path = Path(name).expanduser()
    if "://" in name:
        ctx.notes.append(f"{name} lies on another file system: not looked at.")
        return
    if not path.is_file():
        what = f"There is no such file{_nearby(path)}."
        if path.is_dir():
            what = "This is a folder, expected a file."
        fix = "Give the path of a .parquet, .jsonl or .json file that exists."
        yield ConfigIssue(key, what, fix, name)
        return
    try:
        check = _row_check(ctx) if split == "val" else None
        texts = _row_texts(ctx)
        report = read_report(path, split, str(ctx.config.data.prompt_key), seen, lengths, check, texts, look)
    except DataError as error:
        what = error.what.removeprefix(f"{path}: ").removesuffix(".")
        fix = f"Convert it to {_FORMAT}. {_MAKE}." if _of_prepare_data(error.fix) else error.fix
        yield ConfigIssue(key, f"The file can't be used: {what}.", fix, name)
        return
    ctx.files.append(report)
    if report.faults:
        what = "; ".join(
            f"{one} ({fault.count} of {report.rows} rows: {_places(fault)}, counted from 0)"
            for one, fault in report.faults.items()
        )
        fix = f"Repair these rows or remove them; {_FORMAT}."
        general = [fault for fault in report.faults.values() if fault.count == report.rows]
        if general:
            own = general[0].fix
            fix = f"Give {_FORMAT}. {_MAKE}." if _of_prepare_data(own) else f"{own[0].upper()}{own[1:]}."
        yield ConfigIssue(key, f"{what[0].upper()}{what[1:]}.", fix, name)


def _of_prepare_data(fix: str) -> bool:
    """True for a remedy about columns or formats: `prepare_data` takes others, a run takes verl's."""
    return "--" in fix or fix.startswith(("add ", "Convert it"))


def _row_check(ctx: Context) -> Callable[[Problem], None] | None:
    """The evaluation's check of a held-out row; None where it can't be built."""
    if (prompts := ctx.usable_prompts()) is None:
        return None
    return method_evaluation(ctx.method, ctx.settings.algo, ctx.settings.evaluation, prompts).check_row


def _row_texts(ctx: Context) -> Callable[[Problem], Mapping[str, str]] | None:
    """Function for the texts of a row that prompts show beside its question; None where they show none."""
    prompts = ctx.usable_prompts()
    return prompts.row_texts if prompts is not None and prompts.row_texts(NO_PROBLEM) else None


def _places(fault: Fault) -> str:
    return ", ".join(fault.places[:MAX_NAMED_ROWS]) + (", …" if fault.count > MAX_NAMED_ROWS else "")


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {path.parent})"
    names = sorted(
        item.name for item in path.parent.iterdir() if item.suffix in (".parquet", ".jsonl", ".json")
    )
    return f"; its folder has {', '.join(names[:4])}" if names else ""
