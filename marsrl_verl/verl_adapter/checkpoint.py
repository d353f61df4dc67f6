"""Checkpoints that a crash cannot spoil: the plugin's own part, and a seal on the whole folder.

`global_step_N/marsrl.pt` holds the plugin's state. After verl has written weights, optimizer and data
state beside it, `global_step_N/sealed.json` lists every file with its size: a folder without it was
interrupted and is passed over, a file that differs from it is refused by name. verl's tracker file, which
names the step to resume from, is written in place; it is set anew from the seals before verl reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import torch

from marsrl_verl.reporting.files import write_atomic, write_bytes_atomic, write_json_atomic

FILE_NAME = "marsrl.pt"
SEAL_NAME = "sealed.json"
TRACKER_NAME = "latest_checkpointed_iteration.txt"
STATE_VERSION = 3
_STEP_FOLDER = re.compile(r"global_step_(\d+)")
_HASHED_BYTES = 16 * 2**20
"""Files up to this size are sealed with a checksum too; terabytes of weights are not read again."""


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


def seal(folder: Path) -> None:
    """Declare a checkpoint folder complete."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL_NAME]
    write_json_atomic(
        folder / SEAL_NAME, {"files": {str(path.relative_to(folder)): _describe(path) for path in files}}
    )


def check_seal(folder: Path) -> None:
    """Raise CheckpointError, naming the file, unless the folder is complete and unchanged."""
    try:
        recorded = json.loads((folder / SEAL_NAME).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {SEAL_NAME}: writing it was interrupted, or another trainer wrote it. Resume "
            "from an earlier one with trainer.resume_mode=resume_path "
            "trainer.resume_from_path=…/global_step_N"
        ) from None
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / SEAL_NAME} cannot be read ({error}); it is damaged") from error
    for name, expected in recorded.items():
        path = folder / name
        found = _describe(path) if path.is_file() else None
        if found != expected:
            raise CheckpointError(
                f"{path} is damaged: expected {expected}, found {found or 'no such file'}. Restore it, or "
                f"remove {folder} to resume from the checkpoint before it"
            )


def newest_sealed(root: Path) -> int | None:
    """The step of the newest complete checkpoint below `root`; interrupted ones are passed over."""
    steps = [
        int(match.group(1))
        for path in root.glob("global_step_*")
        if (match := _STEP_FOLDER.fullmatch(path.name)) and (path / SEAL_NAME).is_file()
    ]
    return max(steps, default=None)


def point_tracker_at_newest(root: Path) -> int | None:
    """Have verl's tracker name the newest complete checkpoint, which is checked; returns its step.

    Raises:
        CheckpointError: a file of that checkpoint is damaged.
    """
    step, tracker = newest_sealed(root), root / TRACKER_NAME
    if step is None:
        tracker.unlink(missing_ok=True)
        return None
    check_seal(root / f"global_step_{step}")
    write_atomic(tracker, str(step))
    return step


def _describe(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    facts: dict[str, object] = {"bytes": size}
    if size <= _HASHED_BYTES:
        facts["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return facts
