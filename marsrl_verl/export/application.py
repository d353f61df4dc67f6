"""The command: `python -m recipe.marsrl.export checkpoint=RUN target=FOLDER`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marsrl_verl.config.command_line import CHECKPOINT, checkpoint_folder
from marsrl_verl.config.hf_folder import is_hub_id, local_folder
from marsrl_verl.config.models import adapters, models
from marsrl_verl.core.policy import SHARED
from marsrl_verl.core.sanitize import printable
from marsrl_verl.evaluation.suite import ALONE, EvaluationRecord
from marsrl_verl.export.model_card import Exported, model_card
from marsrl_verl.reporting.files import refusal, write_atomic
from marsrl_verl.reporting.manifest import CheckpointError, check_before_start
from marsrl_verl.reporting.run_folder import CHECKPOINT_FOLDER, MARKER, read_evaluations
from marsrl_verl.settings.declaration import Settings
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError, ConfigIssue
from marsrl_verl.settings.reading import declared, read

_EVALUATIONS = "evaluations"
PROGRAM = "python -m recipe.marsrl.export"
CARD = "README.md"


class Arguments(Settings):
    """Arguments of an export: the checkpoint and the folder that is made."""

    checkpoint: str
    """A run's folder (its newest checkpoint), or one of its checkpoints/global_step_N."""
    target: str
    """The folder that is made. With several policies it has a folder for each, named as the policy."""
    policy: str | None = None
    """Only this policy, in the target folder itself. Null: all that the run trains."""
    merge_adapters: bool = False
    """LoRA adapters are added to the weights of the model under them, and whole models written."""
    evaluations: tuple[str, ...] = ()
    """Folders of evaluations of this checkpoint (`main_eval checkpoint=…`), as `[outputs/a,outputs/b]`, whose
    tables the model card has."""


def main(argv: list[str]) -> int:
    """Runs one command line; 0: the folder is written, 2: rejected."""
    if {"-h", "--help"} & set(argv):
        print(_help())
        return 0
    try:
        export(_read(argv))
    except ConfigError as error:
        print(printable(error), file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION
    return 0


def _help() -> str:
    lines = [f"{PROGRAM} checkpoint=RUN target=FOLDER [key=value …]", ""]
    for one in declared(Arguments, ""):
        lines += textwrap.wrap(f"{one.key.lstrip('.')}: {one.documentation}", 100, subsequent_indent="    ")
    return "\n".join(lines)


def _read(argv: list[str]) -> Arguments:
    if wrong := [word for word in argv if word.startswith("-") or "=" not in word]:
        fix = f"Write {PROGRAM} checkpoint=RUN target=FOLDER; --help lists the keys."
        raise ConfigError([ConfigIssue(wrong[0], "This is not readable as key=value.", fix)])
    found: dict[str, Any] = dict(word.split("=", 1) for word in argv)
    if text := found.get(_EVALUATIONS):
        found[_EVALUATIONS] = [one.strip() for one in text.strip("[]").split(",") if one.strip()]
    return read(Arguments, found, "")


def export(arguments: Arguments) -> None:
    """Writes the target folder, whole or not at all. ConfigError: the checkpoint or the target can't be
    used, or there is no such policy."""
    checkpoint = checkpoint_folder(arguments.checkpoint)
    run = _run_of(checkpoint, arguments)
    config: Any = OmegaConf.load(run / "config.yaml")
    node = config.actor_rollout_ref
    own_adapters = adapters(node.rollout)
    known = own_adapters or tuple(models(node.rollout)) or (SHARED,)
    if arguments.policy not in (None, *known):
        raise _refused(
            "policy", "The run trains no such policy.", f"Use one of: {', '.join(known)}.", arguments
        )
    if arguments.merge_adapters and not own_adapters:
        what = "The run trains no adapters: its weights are whole models."
        raise _refused("merge_adapters", what, "Leave it out.", arguments)
    base = str(node.model.path)
    if arguments.merge_adapters and not (is_hub_id(base) or local_folder(base)):
        what = f"The model under the adapters is not here: {base}."
        raise _refused("merge_adapters", what, "Leave it out, or put the model there.", arguments)
    wanted = known if arguments.policy is None else (arguments.policy,)
    target = Path(arguments.target).expanduser().absolute()
    adapter = bool(own_adapters) and not arguments.merge_adapters
    made = Exported(run, config, checkpoint, adapter, _tables(checkpoint, arguments))
    with _unfinished(target, arguments) as work:
        try:
            if own_adapters:
                _write_adapters(made, work, wanted, arguments.merge_adapters)
            else:
                _write_models(made, work, wanted)
        except CheckpointError as error:
            raise _refused(CHECKPOINT, f"{error}.", "Name another checkpoint.", arguments) from error
        several = len(wanted) > 1
        for policy in wanted:
            name = f"{target.name}/{policy}" if several else target.name
            card = work / policy / CARD
            write_atomic(card, model_card(made, policy, name))
            for path in card.parent.rglob("*"):
                if path.is_file():  # safetensors writes files that only their owner may read
                    shutil.copymode(card, path)
        (work if several else work / wanted[0]).rename(target)
    print(printable(f"{', '.join(wanted)} of {checkpoint}: {target}"))


def _refused(key: str, what: str, fix: str, arguments: Arguments) -> ConfigError:
    return ConfigError([ConfigIssue(key, what, fix, getattr(arguments, key))])


def _run_of(checkpoint: Path, arguments: Arguments) -> Path:
    """The folder of the run that wrote a complete checkpoint."""
    run, place = checkpoint.parent.parent, f"RUN/{CHECKPOINT_FOLDER}/global_step_N"
    if not checkpoint.is_dir():
        raise _refused(CHECKPOINT, "There is no such folder.", f"Name a run's folder, or {place}.", arguments)
    if not (run / MARKER).is_file():
        what = f"It does not lie in a run's folder: {run} has no {MARKER}."
        raise _refused(
            CHECKPOINT, what, f"Name a run's folder, or {place}, where the run left it.", arguments
        )
    try:
        check_before_start(checkpoint, one_node=True)
    except CheckpointError as error:
        fix = "Name a complete checkpoint; a run's folder stands for its newest."
        raise _refused(CHECKPOINT, f"{error}.", fix, arguments) from error
    return run


def _tables(checkpoint: Path, arguments: Arguments) -> dict[str, EvaluationRecord]:
    """The records of evaluations of a checkpoint, by the names of their folders."""
    found = {}
    for named in arguments.evaluations:
        folder = Path(named).expanduser()
        records = {record.tag: record for record in read_evaluations(folder)}
        if ALONE not in records:
            what = f"{folder} holds no finished evaluation alone."
            fix = "Name the folder that main_eval checkpoint=… left."
            raise _refused(_EVALUATIONS, what, fix, arguments)
        of = OmegaConf.select(OmegaConf.load(folder / "config.yaml"), "trainer.resume_from_path")
        if of is None or Path(of).resolve() != checkpoint.resolve():
            what = f"{folder} is an evaluation of {of or 'a model as it began'}, not of {checkpoint}."
            raise _refused(_EVALUATIONS, what, "Leave it out, or export that checkpoint.", arguments)
        found[folder.absolute().name] = records[ALONE]
    return found


@contextmanager
def _unfinished(target: Path, arguments: Arguments) -> Iterator[Path]:
    """A folder beside the target, of which nothing is left at the end; what a killed export left there is
    removed first."""
    if target.exists():
        fix = "Name another folder, or remove this one."
        raise _refused("target", "It exists, and nothing is overwritten.", fix, arguments)
    if why := refusal(target.parent):
        raise _refused("target", f"Nothing can be written there: {why}.", "Name another folder.", arguments)
    work = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_models(made: Exported, work: Path, policies: Sequence[str]) -> None:
    # Imported late: torch takes seconds, and what is rejected never gets here.
    from marsrl_verl.verl_adapter.checkpoint.trained_weights import MERGED_FROM, merge_models

    found = merge_models(
        made.checkpoint, work, policies, made.dtype, trust_remote_code=made.trust_remote_code
    )
    for folder in found.values():
        (folder / MERGED_FROM).unlink()


def _write_adapters(made: Exported, work: Path, policies: Sequence[str], merge: bool) -> None:
    from marsrl_verl.verl_adapter.checkpoint.trained_weights import merge_adapter, write_adapter

    with tempfile.TemporaryDirectory() as folder:
        for policy in policies:
            peft = write_adapter(made.checkpoint, policy, Path(folder) / policy if merge else work / policy)
            if merge:
                base, code = made.base(policy), made.trust_remote_code
                base = str(local_folder(base) or base)
                merge_adapter(base, peft, work / policy, made.dtype, trust_remote_code=code)
