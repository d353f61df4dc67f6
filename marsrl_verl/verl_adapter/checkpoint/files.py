"""Checkpoints that a crash cannot spoil: the plugin's own part, and a manifest on the whole folder.

`global_step_N/marsrl.pt` holds the plugin's state, plain values and arrays alone. After verl has written
weights, optimizer and data state beside it, the folder gets a manifest (`reporting.manifest`): one without
was interrupted and is passed over, a file that differs from it is rejected by name. It is the last thing
that is written and the first that is removed. Each rank reads the files that it wrote, the trainer's process
the others. verl's tracker file, which names the step to resume from, is written in place; it is set anew from
the manifests before verl reads it.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marsrl_verl.core.sequence import PLAIN_SCALARS
from marsrl_verl.reporting import manifest as manifests
from marsrl_verl.reporting.files import free_name, write_atomic, write_bytes_atomic, write_json_atomic
from marsrl_verl.reporting.manifest import MANIFEST_NAME, STATE_NAME, CheckpointError, Facts, newest_complete
from marsrl_verl.reporting.storage import free_space, is_full, size_text

TRACKER_NAME = "latest_checkpointed_iteration.txt"
STATE_VERSION = 7
"""Version of the trainer's state as a whole; a state of another version is rejected."""
SET_ASIDE = "replaced"
"""Folder beside the checkpoints; `auto` never looks into it."""
_THREADS = 8
_PLAIN_TYPES = (*PLAIN_SCALARS, torch.Tensor)

_ARRAY = "numpy.ndarray"
"""Only key of the dictionary that stands for a numpy array; it holds a tensor, which torch reads back without
running code."""

Shards = Callable[[Path], Mapping[str, Facts]]
"""Has every rank describe the files that it wrote into a folder; the result has them all, by name."""

_log = logging.getLogger(__name__)
# Some of what the trainer imports sets the root's level to ERROR.
_log.setLevel(logging.WARNING)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Writes the plugin's state into a checkpoint folder, an array that occurs several times once. TypeError
    if it holds what `load_state` would reject."""
    buffer = io.BytesIO()
    torch.save({"version": STATE_VERSION, **_plain(state, "state", {})}, buffer)
    write_bytes_atomic(folder / STATE_NAME, buffer.getvalue())


def _plain(value: Any, place: str, tensors: dict[int, dict[str, torch.Tensor]]) -> Any:
    """The same values; numpy's scalars become Python's, arrays tensors (`tensors`: by identity, so far)."""
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        if id(value) not in tensors:
            # The arrays live as long as the state is written, so that no other one gets the identity.
            tensors[id(value)] = {_ARRAY: torch.from_numpy(np.array(value))}
        return tensors[id(value)]
    if type(value) is dict:
        return {
            _plain(key, place, tensors): _plain(item, f"{place}.{key}", tensors)
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        items = enumerate(value)
        return type(value)(_plain(item, f"{place}[{index}]", tensors) for index, item in items)
    raise TypeError(
        f"checkpoint: {place} is a {type(value).__module__}.{type(value).__qualname__}, expected plain "
        "values (dictionaries, lists, strings, numbers), arrays of numbers and tensors: nothing else is "
        "loaded again"
    )


def _with_arrays(value: Any, arrays: dict[int, np.ndarray]) -> Any:
    """The inverse of `_plain`; what was one array is one again."""
    if type(value) is dict:
        if value.keys() == {_ARRAY}:
            return arrays.setdefault(id(value[_ARRAY]), value[_ARRAY].numpy())
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_arrays(item, arrays) for item in value)
    return value


def load_state(folder: Path) -> dict[str, Any]:
    """Reads the plugin's state from a checkpoint folder; no code in it is run. CheckpointError if the file is
    missing, cut off, or of another version."""
    path = folder / STATE_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: the checkpoint was not written by this trainer, or was interrupted"
        )
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as plain values ({type(error).__name__}: {error}); it is damaged, or was "
            "not written by this trainer"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, expected this trainer's state")
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(f"{path} has version {state.get('version')}, this code reads {STATE_VERSION}")
    found: dict[str, Any] = _with_arrays(state, {})
    return found


def without_lock_files() -> None:
    """Has verl make the folders of checkpoints in this process without locks. Upstream behaviour: for each,
    `local_mkdir_safe` leaves a file `ckpt_*.lock` in the temporary one. Its name is a hash that differs from
    process to process, so it locks nothing."""
    from verl.utils import fs
    from verl.utils.checkpoint import fsdp_checkpoint_manager

    # The trainer imports it anew at each save.
    fs.local_mkdir_safe = fsdp_checkpoint_manager.local_mkdir_safe = _make_folder


def _make_folder(path: str) -> str:
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)


def describe_shards(folder: Path, rank: int) -> dict[str, Facts]:
    """Size and checksum of the files that one rank wrote into a checkpoint folder, by relative name."""
    return _describe(folder, [name for name in _files(folder) if manifests.rank_of(name) == rank])


def write_manifest(folder: Path, shards: Shards | None = None) -> None:
    """Declares a checkpoint folder complete; CheckpointError if something that a resume needs was not
    written. Without `shards` all files are read here."""
    found = dict(shards(folder)) if shards is not None else {}
    found |= _describe(folder, [name for name in _files(folder) if name not in found])
    if missing := manifests.missing_files(found):
        raise CheckpointError(f"{folder} lacks {', '.join(missing[:4])}: it can't be resumed from")
    write_json_atomic(folder / MANIFEST_NAME, {"files": dict(sorted(found.items()))})


def remove_manifest(folder: Path) -> None:
    """Declare a checkpoint folder incomplete, before any of its files changes."""
    for name in (MANIFEST_NAME, manifests.OLD_NAME):
        (folder / name).unlink(missing_ok=True)


def check_manifest(folder: Path, shards: Shards | None = None) -> None:
    """Raises CheckpointError, naming the file, unless the folder is complete and unchanged."""
    recorded = manifests.read_manifest(folder)
    found = dict(shards(folder)) if shards is not None else {}
    found |= _describe(folder, [name for name in recorded if name not in found and (folder / name).is_file()])
    for name, expected in recorded.items():
        facts = found.get(name)
        if facts is None or any(facts[key] != value for key, value in expected.items()):
            raise manifests.damaged(folder / name, expected, facts)


def give_up(folder: Path, error: Exception) -> CheckpointError:
    """Deletes a checkpoint that could not be written, and says why."""
    root = folder.parent
    free = free_space(root)
    left = _removed(folder)
    with suppress(CheckpointError):  # the resume that reads it says so
        if (needed := manifests.checkpoint_bytes(root)) is not None:
            free += f", and the checkpoint before it takes {size_text(needed)}"
    if is_full(error):
        cause = "there is no space left"
        fix = "Make room (trainer.max_actor_ckpt_to_keep=N keeps the N newest), then continue"
    else:
        cause = f"{type(error).__name__}: {str(error).strip()[-300:]}"
        fix = "Remove the cause, then continue"
    what = f"{folder} can't be written: {cause}. {free}.{left}"
    return CheckpointError(f"{what} {fix} with marsrl.run.if_exists=resume")


def _removed(folder: Path) -> str:
    """Deletes what was written, as far as that is possible; returns a sentence about the rest."""
    try:
        remove_manifest(folder)
    except OSError as error:
        return f" Its manifest can't be removed either ({error}): remove {folder}."
    shutil.rmtree(folder, ignore_errors=True)
    return " What was written of it can't be deleted as a whole." if folder.exists() else ""


def point_tracker_at_newest(root: Path, shards: Shards | None = None) -> int | None:
    """Has verl's tracker name the newest complete checkpoint; returns its step. CheckpointError if a file of
    it is damaged."""
    step = newest_complete(root)
    if step is not None:
        check_manifest(manifests.step_folder(root, step), shards)
    _write_tracker(root, step)
    return step


def set_aside_after(root: Path, step: int) -> list[Path]:
    """Moves the complete checkpoints of later steps into `replaced/`, and returns where they are now: a
    resume that takes the newest one would otherwise return to the run that was given up."""
    moved: list[Path] = []
    for later in sorted((one for one in manifests.complete_steps(root) if one > step), reverse=True):
        folder = manifests.step_folder(root, later)
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
        _write_tracker(root, newest_complete(root))
    return moved


def keep_newest(root: Path, number: int | None) -> None:
    """Deletes all but the newest `number` complete checkpoints (None: keeps everything), and what interrupted
    ones older than the newest left, interrupted deletions too."""
    complete = sorted(manifests.complete_steps(root))
    if number is None or number < 1 or not complete:
        return
    kept = complete[-number:]
    for step in sorted(one for one in manifests.steps(root) if one < kept[-1] and one not in kept):
        folder = manifests.step_folder(root, step)
        try:
            remove_manifest(folder)
            shutil.rmtree(folder)
        except OSError as error:
            # Too full a disk is found by what writes to it; training goes on until then.
            text = "The old checkpoint %s can't be deleted as a whole (%s); the next save tries again"
            _log.warning(text, folder, error)


def _write_tracker(root: Path, step: int | None) -> None:
    tracker = root / TRACKER_NAME
    if step is None:
        tracker.unlink(missing_ok=True)
    else:
        write_atomic(tracker, str(step))


def _files(folder: Path) -> list[str]:
    """Names of the files below a folder, without the manifest."""
    manifest = (MANIFEST_NAME, manifests.OLD_NAME)
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in manifest)
    return sorted(str(path.relative_to(folder)) for path in paths)


def _describe(folder: Path, names: Iterable[str]) -> dict[str, Facts]:
    names = list(names)
    with ThreadPoolExecutor(_THREADS) as pool:  # checksums are computed without Python's lock
        return dict(zip(names, pool.map(manifests.describe, (folder / name for name in names)), strict=True))
