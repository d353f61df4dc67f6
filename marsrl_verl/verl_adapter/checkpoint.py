"""Checkpoints that a crash cannot spoil: the plugin's own part, and a seal on the whole folder.

`global_step_N/marsrl.pt` holds the plugin's state. After verl has written weights, optimizer and data
state beside it, `global_step_N/sealed.json` lists every file with its size and checksum: a folder without
it was interrupted and is passed over, a file that differs from it is refused by name. Each rank reads the
files that it wrote, the trainer's process reads the others. verl's tracker file, which names the step to
resume from, is written in place; it is set anew from the seals before verl reads it.

The seal is the last thing that is written and the first that is removed: whatever is deleted or written
again is unsealed before.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from marsrl_verl.reporting.files import free_name, write_atomic, write_bytes_atomic, write_json_atomic

FILE_NAME = "marsrl.pt"
SEAL_NAME = "sealed.json"
TRACKER_NAME = "latest_checkpointed_iteration.txt"
STATE_VERSION = 4
SET_ASIDE = "replaced"
"""Folder beside the checkpoints; `auto` never looks into it."""
_STEP_FOLDER = re.compile(r"global_step_(\d+)")
_RANK_FILE = re.compile(r"_rank_(\d+)\.pt")
_BLOCK_BYTES = 8 * 2**20
_THREADS = 8

Facts = dict[str, object]
"""What a seal says about a file: `bytes` and `sha256`."""
Shards = Callable[[Path], Mapping[str, Facts]]
"""Has every rank describe the files that it wrote into a folder; the result has them all, by name."""

_log = logging.getLogger(__name__)
# Some of what the trainer imports sets the root's level to ERROR.
_log.setLevel(logging.WARNING)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which file and why."""


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the plugin's state into a checkpoint folder."""
    buffer = io.BytesIO()
    torch.save({"version": STATE_VERSION, **state}, buffer)
    write_bytes_atomic(folder / FILE_NAME, buffer.getvalue())


def load_state(folder: Path) -> dict[str, Any]:
    """Read the plugin's state from a checkpoint folder.

    Raises:
        CheckpointError: the file is missing, cut off, or of another version.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: the checkpoint was not written by this trainer, or was interrupted. "
            "Resume from an earlier one with trainer.resume_mode=resume_path "
            "trainer.resume_from_path=…/global_step_N"
        )
    try:
        state = torch.load(path, weights_only=False, map_location="cpu")
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {error}); it is damaged"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, expected this trainer's state")
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(f"{path} has version {state.get('version')}, this code reads {STATE_VERSION}")
    return state


def describe_shards(folder: Path, rank: int) -> dict[str, Facts]:
    """Size and checksum of the files that one rank wrote into a checkpoint folder, by relative name."""
    return _describe(folder, [name for name in _files(folder) if _rank_of(name) == rank])


def seal(folder: Path, shards: Shards | None = None) -> None:
    """Declare a checkpoint folder complete.

    Args:
        shards: has the ranks describe their files; None: all are read here.
    """
    found = dict(shards(folder)) if shards is not None else {}
    found |= _describe(folder, [name for name in _files(folder) if name not in found])
    write_json_atomic(folder / SEAL_NAME, {"files": dict(sorted(found.items()))})


def unseal(folder: Path) -> None:
    """Declare a checkpoint folder incomplete, before any of its files changes."""
    (folder / SEAL_NAME).unlink(missing_ok=True)


def check_seal(folder: Path, shards: Shards | None = None) -> None:
    """Raise CheckpointError, naming the file, unless the folder is complete and unchanged.

    Args:
        shards: has the ranks describe their files; None: all are read here.
    """
    recorded = _read_seal(folder)
    found = dict(shards(folder)) if shards is not None else {}
    found |= _describe(folder, [name for name in recorded if name not in found and (folder / name).is_file()])
    for name, expected in recorded.items():
        facts = found.get(name)
        if facts is None or any(facts[key] != value for key, value in expected.items()):
            raise CheckpointError(
                f"{folder / name} is damaged: expected {expected}, found {facts or 'no such file'}. Restore "
                f"it, or remove {folder} to resume from the checkpoint before it"
            )
    if unhashed := [name for name, expected in recorded.items() if "sha256" not in expected]:
        _log.warning(
            "%s was sealed by an earlier version, which recorded the size alone of %s: what is in them can't "
            "be checked",
            folder,
            ", ".join(unhashed),
        )


def _read_seal(folder: Path) -> dict[str, Facts]:
    path = folder / SEAL_NAME
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {SEAL_NAME}: writing it was interrupted, or another trainer wrote it. Resume "
            "from an earlier one with trainer.resume_mode=resume_path "
            "trainer.resume_from_path=…/global_step_N"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); it is damaged") from error
    if not isinstance(recorded, dict) or any(
        not isinstance(facts, dict) or not facts.keys() <= {"bytes", "sha256"} for facts in recorded.values()
    ):
        raise CheckpointError(
            f"{path} is damaged, or of a later version: expected bytes and sha256 of each file, "
            f"found {str(recorded)[:80]}"
        )
    return recorded


def newest_sealed(root: Path) -> int | None:
    """The step of the newest complete checkpoint below `root`; interrupted ones are passed over."""
    return max(_sealed_steps(root), default=None)


def point_tracker_at_newest(root: Path, shards: Shards | None = None) -> int | None:
    """Have verl's tracker name the newest complete checkpoint, which is checked; returns its step.

    Raises:
        CheckpointError: a file of that checkpoint is damaged.
    """
    step = newest_sealed(root)
    if step is not None:
        check_seal(_folder(root, step), shards)
    _write_tracker(root, step)
    return step


def set_aside_after(root: Path, step: int) -> list[Path]:
    """Move the complete checkpoints of later steps into `replaced/`: a run goes on from `step`.

    A resume that takes the newest one would otherwise return to the run that was given up.

    Returns:
        Where they are now.
    """
    moved: list[Path] = []
    for later in sorted(_sealed_steps(root), reverse=True):
        if later <= step:
            break
        folder = _folder(root, later)
        (root / SET_ASIDE).mkdir(exist_ok=True)
        target = free_name(root / SET_ASIDE, folder.name, "")
        os.replace(folder, target)
        moved.append(target)
        _log.warning(
            "Training goes on from step %d: the later checkpoint %s is now %s. Nothing deletes it; to resume "
            "from it, move it back.",
            step,
            folder,
            target,
        )
    if moved:
        _write_tracker(root, newest_sealed(root))
    return moved


def keep_newest(root: Path, number: int | None) -> None:
    """Delete all but the newest `number` complete checkpoints, and what interrupted ones older than the
    newest left; None: keep everything.

    To be called when a checkpoint is sealed. An interrupted deletion is finished by the next call.
    """
    sealed = sorted(_sealed_steps(root))
    if number is None or number < 1 or not sealed:
        return
    kept = sealed[-number:]
    for step in sorted(_steps(root)):
        if step < kept[-1] and step not in kept:
            _delete(_folder(root, step))


def _delete(folder: Path) -> None:
    try:
        unseal(folder)
        shutil.rmtree(folder)
    except OSError as error:
        # Too full a disk is found by what writes to it; training goes on until then.
        _log.warning(
            "The old checkpoint %s can't be deleted as a whole (%s); the next save tries again",
            folder,
            error,
        )


def _write_tracker(root: Path, step: int | None) -> None:
    tracker = root / TRACKER_NAME
    if step is None:
        tracker.unlink(missing_ok=True)
    else:
        write_atomic(tracker, str(step))


def _folder(root: Path, step: int) -> Path:
    return root / f"global_step_{step}"


def _steps(root: Path) -> list[int]:
    found = (_STEP_FOLDER.fullmatch(path.name) for path in root.glob("global_step_*") if path.is_dir())
    return [int(match.group(1)) for match in found if match]


def _sealed_steps(root: Path) -> list[int]:
    return [step for step in _steps(root) if (_folder(root, step) / SEAL_NAME).is_file()]


def _files(folder: Path) -> list[str]:
    """Names of the files below a folder, without the seal."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != SEAL_NAME)
    return sorted(str(path.relative_to(folder)) for path in paths)


def _rank_of(name: str) -> int | None:
    match = _RANK_FILE.search(name)
    return int(match.group(1)) if match else None


def _describe(folder: Path, names: Iterable[str]) -> dict[str, Facts]:
    names = list(names)
    with ThreadPoolExecutor(_THREADS) as pool:  # checksums are computed without Python's lock
        return dict(zip(names, pool.map(_facts, (folder / name for name in names)), strict=True))


def _facts(path: Path) -> Facts:
    checksum, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum.update(block)
            size += len(block)
    return {"bytes": size, "sha256": checksum.hexdigest()}
