"""Checks of a run that continues: the checkpoint must belong to it, and to these settings.

The record of a run's settings is the `config.yaml` in its folder; `config.resume_rules` says which of them
may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from marsrl_verl.config.batching import world_size
from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.models import adapters, models
from marsrl_verl.config.renamed import rename_settings
from marsrl_verl.config.resume_rules import Rule, changed_settings
from marsrl_verl.config.schema import RunConfig
from marsrl_verl.data.files import as_list
from marsrl_verl.reporting.manifest import (
    CheckpointError,
    check_before_start,
    describe,
    newest_complete,
    remedy,
    step_folder,
)
from marsrl_verl.reporting.metrics_log import METRICS_FILE
from marsrl_verl.reporting.run_folder import CHECKPOINT_FOLDER, MARKER, IfExists, has_results
from marsrl_verl.settings.issues import ConfigIssue

_MODE, _PATH, _LOCAL = "trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir"
_MODEL, _ALONE = "actor_rollout_ref.model.path", "trainer.val_only"
_WHY_BOUND = {
    "data.dataloader_num_workers": "the checkpoint has the position in the data worker by worker, and "
    "torchdata's loader refuses that of another number of workers."
}
_TRACKER = "latest_checkpointed_iteration.txt"
_STEP_FOLDER = re.compile(r"global_step_\d+")


def check_resume_mode(ctx: Context) -> Iterator[ConfigIssue]:
    """Checks the settings that say whether the run continues an earlier one, and from where."""
    mode, path, run = str(ctx.get(_MODE)), ctx.get(_PATH), ctx.settings.run
    resumes = run.if_exists is IfExists.RESUME
    if problems := check_choice(_MODE, mode, ("auto", "disable", "resume_path")):
        yield from problems
    elif ctx.get(_ALONE) and resumes and _trained(Path(run.output_dir)):
        what = "It holds a run that trains; an evaluation alone is a run with a folder of its own."
        fix = "Give it another name=…; checkpoint=… names what is evaluated."
        yield ctx.issue("marsrl.run.if_exists", what, fix)
    elif mode == "resume_path":
        example, folder = f"Set {_PATH}=folder/of/the/run/checkpoints/global_step_N.", ctx.path(_PATH)
        if not (isinstance(path, str) and path):
            yield ctx.issue(_PATH, f"{_MODE} = resume_path needs a checkpoint's folder.", example)
        elif not _STEP_FOLDER.fullmatch(folder.name):
            yield ctx.issue(_PATH, "A checkpoint's folder is named global_step_N.", example)
        elif not folder.is_dir():
            yield ctx.issue(_PATH, "There is no such folder.", example)
        elif run.if_exists is IfExists.REPLACE and _inside(folder, Path(run.output_dir)):
            what = f"marsrl.run.if_exists = replace deletes {run.output_dir}, and this checkpoint with it."
            yield ctx.issue(_PATH, what, "Give the new run another name=….")
    elif path is not None:
        what = f"It has no effect with {_MODE} = {mode}."
        yield ctx.issue(_PATH, what, f"Leave it out, or set {_MODE}=resume_path.")
    elif mode == "disable" and resumes:
        what = "marsrl.run.if_exists = resume continues from the last checkpoint, which this setting forbids."
        yield ctx.issue(_MODE, what, "Leave it out, or set marsrl.run.if_exists=replace to start anew.")
    elif resumes and not has_results(Path(run.output_dir)):
        ctx.warnings.append(
            f"marsrl.run.if_exists = resume finds nothing to continue in {run.output_dir}: the run begins "
            "anew."
        )


def _trained(run: Path) -> bool:
    return any((run / name).exists() for name in (METRICS_FILE, CHECKPOINT_FOLDER))


def check_checkpoints(ctx: Context) -> Iterator[ConfigIssue]:
    """A folder of checkpoints outside the run's own may hold those of another run: this one would continue
    from them, overwrite them, or delete them as older ones."""
    local, run = ctx.path(_LOCAL), ctx.settings.run
    if ctx.dry_run or _inside(local, Path(run.output_dir)) or _continues(run):
        return  # the record of a run that is continued says whether they are its own
    if (local / _TRACKER).is_file() or _holds_checkpoints(local):
        what = "The folder holds the checkpoints of another run; this one would take them for its own."
        yield ConfigIssue(_LOCAL, what, "Leave it out, or name an empty folder.", local)


def _holds_checkpoints(folder: Path) -> bool:
    return any(_STEP_FOLDER.fullmatch(path.name) for path in folder.glob("global_step_*"))


def check_record(ctx: Context) -> list[ConfigIssue]:
    """The settings of the run that is continued."""
    problems: list[ConfigIssue] = []
    if ctx.settings.run.if_exists is IfExists.RESUME:
        folder = Path(ctx.settings.run.output_dir)
        places = [folder / "checkpoints", ctx.path(_LOCAL)]
        problems += _compare(ctx, folder, (Rule.BOUND, Rule.FOLDER), places)
    if ctx.get(_MODE) == "resume_path" and not problems:
        place = ctx.path(_PATH).parent
        problems += _compare(ctx, place.parent, (Rule.BOUND,), [place])
    return problems


def check_checkpoint(ctx: Context) -> Iterator[ConfigIssue]:
    """The checkpoint that is going to be loaded: complete, of the sizes that its manifest says, and with the
    content, where files are small. All are read once more when the workers are there."""
    mode, folder = ctx.get(_MODE), None
    if mode == "resume_path":
        folder = ctx.path(_PATH)
    elif mode == "auto" and _continues(ctx.settings.run):
        root = ctx.path(_LOCAL)
        step = newest_complete(root)
        folder = None if step is None else step_folder(root, step)
    if ctx.dry_run or folder is None:
        return
    try:
        check_before_start(folder, one_node=int(ctx.config.trainer.nnodes) == 1)
    except (CheckpointError, OSError) as error:
        fix = f"{remedy(folder, named=mode == 'resume_path')}."
        yield ConfigIssue(str(folder), f"{error}.", fix)


def _compare(ctx: Context, run: Path, refused: tuple[Rule, ...], places: list[Path]) -> list[ConfigIssue]:
    """Settings of the refused classes against the record of a run, whose checkpoints may lie in `places`. An
    evaluation alone takes nothing but the weights."""
    record = run / "config.yaml"
    checkpoints = any(_holds_checkpoints(place) for place in places)
    is_run, alone = (run / MARKER).is_file(), ctx.get(_ALONE)
    if is_run and not checkpoints and not has_results(run):
        return []  # nothing was evaluated, trained or saved: any setting may change
    fix = "Repair the file, or start anew under another name=…."
    if not record.is_file():
        if not is_run or not checkpoints:
            return []  # a run that ended before it wrote one has no checkpoint either
        what = "The record of the run's settings is missing: whether its checkpoints fit these can't be told."
        fix = f"Put it back ({run}/config.N.yaml are earlier ones), or start anew under another name=…."
        return [ConfigIssue(str(record), what, fix)]
    try:
        old = OmegaConf.load(record)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        return [ConfigIssue(str(record), f"The record of the run's settings can't be read: {error}", fix)]
    if not isinstance(old, DictConfig):
        return [ConfigIssue(str(record), f"Expected the run's settings, found {type(old).__name__}.", fix)]
    rename_settings(old, ())
    new = OmegaConf.to_container(ctx.config, resolve=True)
    problems = [
        _changed(key, value, was, record, None if alone else rule)
        for key, value, was, rule in changed_settings(new, ctx.raw, OmegaConf.to_container(old))
        if rule in refused and (not alone or key == _MODEL)
    ]
    sizes = [OmegaConf.select(old, f"trainer.{name}") is not None for name in ("nnodes", "n_gpus_per_node")]
    if all(sizes) and world_size(old) != world_size(ctx.config):
        # Every rank reads the part of the checkpoint that it wrote.
        key = "trainer.n_gpus_per_node"
        problems.append(_changed(key, ctx.get(key), f"{world_size(old)} ranks in all", record))
    return problems + (_compare_policies(ctx, old, record) if alone else _compare_files(ctx, old, record))


def _compare_policies(ctx: Context, old: DictConfig, record: Path) -> list[ConfigIssue]:
    """Weights that an evaluation asks for and a checkpoint has not: adapters of another run's policies, whole
    models in place of adapters, the model of a policy that had none."""
    rollout = OmegaConf.select(old, "actor_rollout_ref.rollout") or {}
    new = ctx.config.actor_rollout_ref.rollout
    was, now = (adapters(one) or tuple(models(one)) for one in (rollout, new))
    same_kind = bool(adapters(rollout)) == bool(adapters(new))
    if same_kind and (set(now) <= set(was) or (len(was) <= 1 == len(now) and not adapters(new))):
        return []
    kinds = ["adapters" if adapters(one) else "whole models" for one in (rollout, new)]
    what = f"The checkpoint has {kinds[0]} of {', '.join(was) or 'one policy'} ({record}), and asked for are "
    what += f"{kinds[1]} of {', '.join(now) or 'one policy'}."
    return [ConfigIssue("policies", what, "Choose algo=… and policies=… as in that run.")]


def _changed(key: str, new: Any, old: Any, record: Path, rule: Rule | None = Rule.BOUND) -> ConfigIssue:
    """A setting that differs from the record's; `rule` None: in an evaluation alone, whose model it is."""
    was = "null" if old is None else old
    if rule is None:
        what = f"The checkpoint's run has {was} ({record}), and its weights fit no other model."
        return ConfigIssue(key, what, f"Set {key}={was}, and algo=… and policies=… as in that run.", new)
    what, fix = f"The run that is continued has {was} ({record}); ", f"Set {key}={was}, or "
    if rule is Rule.FOLDER:
        what += "the evaluations in its folder can't be compared with those of another value."
        fix += f"go on in a folder of its own: another name=…, {_MODE}=resume_path {_PATH}=…/global_step_N."
    else:
        what += _WHY_BOUND.get(key, "its checkpoint does not fit another value.")
        fix += "start anew under another name=…."
    return ConfigIssue(key, what, fix, new)


def _compare_files(ctx: Context, old: DictConfig, record: Path) -> list[ConfigIssue]:
    """Files of the same name with other content."""
    sizes = OmegaConf.select(old, "marsrl.run.data_bytes") or {}
    sums = OmegaConf.select(old, "marsrl.run.data_sha256") or {}
    issues = []
    for key, path in _files(ctx):
        name, now = str(path), path.stat().st_size
        if name in sizes and sizes[name] != now:
            what = f"The file has {now} bytes; when the run began, it had {sizes[name]} ({record})."
        elif name in sums and sums[name] != (found := describe(path)["sha256"]):
            what = f"The file's SHA-256 is {found}; when the run began, it was {sums[name]} ({record})."
        else:
            continue
        fix = "Put the old file back, or start anew under another name=…."
        issues.append(ConfigIssue(key, what, fix, name))
    return issues


def _files(ctx: Context) -> list[tuple[str, Path]]:
    """Key and absolute path of each file that was looked at."""
    files = [(f"data.{report.split}_files", report.path) for report in ctx.files]
    files += [
        (f"marsrl.policies.{name}.jsonl.path", one.file.path) for name, one in ctx.frozen_answers.items()
    ]
    return [(key, path.absolute()) for key, path in files]


def record_files(ctx: Context) -> None:
    """Writes bytes and SHA-256 of each file that was looked at, by absolute path, into the configuration."""
    found = {str(path): describe(path) for _, path in _files(ctx)}
    with open_dict(ctx.config):
        ctx.config.marsrl.run.data_bytes = {name: facts["bytes"] for name, facts in found.items()}
        ctx.config.marsrl.run.data_sha256 = {name: facts["sha256"] for name, facts in found.items()}


def trained_files(ctx: Context) -> list[Path]:
    """The training files of the run whose checkpoint an evaluation alone takes, as far as they are here with
    the content that they had."""
    if ctx.trains or ctx.get(_MODE) != "resume_path" or not (record := _record(ctx)).is_file():
        return []
    old = OmegaConf.load(record)
    sums = OmegaConf.select(old, "marsrl.run.data_sha256") or {}
    named = [Path(str(one)).absolute() for one in as_list(OmegaConf.select(old, "data.train_files") or [])]
    return [path for path in named if path.is_file() and describe(path)["sha256"] == sums.get(str(path))]


def _record(ctx: Context) -> Path:
    """The record of the run that a checkpoint's folder lies in."""
    return ctx.path(_PATH).absolute().parents[1] / "config.yaml"


def _continues(run: RunConfig) -> bool:
    return run.if_exists is IfExists.RESUME and (Path(run.output_dir) / MARKER).exists()


def _inside(path: Path, folder: Path) -> bool:
    return path.expanduser().resolve().is_relative_to(folder.expanduser().resolve())
