"""Checks of the run's name and of the folders that it writes into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from marsrl_verl.config.checks.batch import training_rows
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.memory import model_shapes
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.config.run_cost import checkpoint_cost, measured_rate, run_length
from marsrl_verl.reporting.manifest import step_folder, steps
from marsrl_verl.reporting.run_folder import IfExists, OutputFolderError, check_output_folder, has_results
from marsrl_verl.reporting.run_lock import RunLockedError, hold
from marsrl_verl.reporting.storage import free_bytes, free_space, size_text
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

_DIRECTORY, _LOCAL = "marsrl.run.output_dir", "trainer.default_local_dir"
_MAX_BYTES = 200
"""Most bytes of a name: file systems take 255, and files beside the folder have names made of it."""


def check_name(ctx: Context) -> Iterator[ConfigIssue]:
    """The run's name is a folder's name, and stands in the report and in the picture."""
    name = ctx.settings.run.name
    found = len(name.encode("utf-8", "surrogatepass"))
    if not name.strip() or set(name) & set("/\\") or name in (".", ".."):
        what = "The name becomes a folder below marsrl.run.output_root: it may not be empty or hold a slash."
    elif not name.isprintable():
        what = "The name becomes a folder and a title: it may not hold line breaks or control characters."
    elif found > _MAX_BYTES:
        what = f"The name becomes a folder: at most {_MAX_BYTES} bytes, found {found}."
    else:
        return
    fix = "Choose a name such as my-run; the place is marsrl.run.output_root."
    yield ConfigIssue("name", what, fix, name)


def check_output(ctx: Context) -> Iterator[ConfigIssue]:
    """An existing run is never overwritten silently."""
    run = ctx.settings.run
    try:
        if not ctx.dry_run:
            check_output_folder(run.output_dir, run.if_exists)
    except OutputFolderError as error:
        what = str(error).removeprefix(f"{_DIRECTORY}={run.output_dir} ")
        fix = "Choose another name=…, or marsrl.run.if_exists=resume | replace."
        if (
            ctx.settings.serve.enabled
            and run.if_exists is IfExists.FAIL
            and has_results(Path(run.output_dir))
        ):
            # `replace` would delete what is to be served.
            what = "It already holds a run; a server needs a folder of its own."
            fix = "Choose another name=…; checkpoint=… names the run to serve."
        yield ConfigIssue(_DIRECTORY, what, fix, run.output_dir)
    except OSError as error:
        yield _unusable(_DIRECTORY, run.output_dir, error)


def check_measured_run(ctx: Context) -> Iterator[ConfigIssue]:
    """The earlier run that the plan's hours are taken from has trained a step."""
    key, machine = "marsrl.hardware.measured_run", ctx.settings.hardware
    if machine.measured_run is None:
        return
    if machine.tokens_per_second is not None:
        what = "marsrl.hardware.tokens_per_second says how fast the run is."
        yield ctx.issue(key, what, "Set one of the two.")
    elif measured_rate(Path(machine.measured_run)) is None:
        what = "The folder has no metrics.jsonl with a finished step."
        yield ctx.issue(key, what, "Name the folder of a run that has trained, such as outputs/NAME.")


def check_disk(ctx: Context) -> list[ConfigIssue]:
    """Warns where checkpoints need more of a disk than is free beside those of the run that are there
    already. A cluster's disk is not looked at."""
    if joins_cluster(ctx.config) or ctx.config.trainer.val_only:
        return []
    shapes, rows = model_shapes(ctx.config), training_rows(ctx)
    length = run_length(ctx.config, rows if ctx.files else None).total
    cost = None if ctx.dry_run or ctx.prepares_data else checkpoint_cost(ctx.config, shapes, length)
    folder, most = ctx.path(_LOCAL), None if cost is None else cost.most
    if cost is not None and most is not None and most > free_bytes(folder) + _checkpoint_bytes(folder):
        ctx.warnings.append(
            f"Checkpoints take up to {size_text(most)}, {size_text(cost.one)} each, and "
            f"{free_space(folder)}: a save that finds no room ends the run. Lower "
            "trainer.max_actor_ckpt_to_keep, or choose another trainer.default_local_dir."
        )
    return []


def _checkpoint_bytes(root: Path) -> int:
    """The size of all checkpoints below a folder, complete or not."""
    total = 0
    for file in (file for step in steps(root) for file in step_folder(root, step).rglob("*")):
        with suppress(FileNotFoundError):  # a run that goes on there deletes older ones
            total += file.lstat().st_size
    return total


@contextmanager
def hold_folders(ctx: Context) -> Iterator[None]:
    """Holds the run's folder, and that of its checkpoints where it lies elsewhere, while the run lasts.

    Raises:
        ConfigError: another process writes into one of them, or has since the checks.
    """
    folders = {_DIRECTORY: Path(ctx.settings.run.output_dir), _LOCAL: ctx.path(_LOCAL)}
    if folders[_LOCAL].resolve().is_relative_to(folders[_DIRECTORY].resolve()):
        del folders[_LOCAL]
    with ExitStack() as stack:
        for key, folder in folders.items():
            try:
                stack.enter_context(hold(folder))
            except RunLockedError as error:
                fix = "Choose another name=…, or wait until that run has ended. Nothing of it was touched."
                raise ConfigError([ConfigIssue(key, f"{error}.", fix, folder)]) from error
            except OSError as error:
                raise ConfigError([_unusable(key, folder, error)]) from error
        if problems := list(check_output(ctx)):
            raise ConfigError(problems)  # it came into being between the check and the lock
        yield


def _unusable(key: str, folder: Path | str, error: OSError) -> ConfigIssue:
    what = f"The folder can't be used: {error.strerror or error}."
    return ConfigIssue(key, what, "Choose another place, or make this one writable.", folder)
