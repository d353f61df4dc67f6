"""The plugin's own part of a checkpoint: `global_step_N/marsrl.pt`.

It is written before verl's tracker file names the step, so a tracker never points at a checkpoint
without it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

FILE_NAME = "marsrl.pt"
STATE_VERSION = 1


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which file and why."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the plugin's state into a checkpoint folder."""
    import io

    buffer = io.BytesIO()
    torch.save({"version": STATE_VERSION, **state}, buffer)
    write_atomically(folder / FILE_NAME, buffer.getvalue())


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
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(f"{path} has version {state.get('version')}, this code reads {STATE_VERSION}")
    return state
