"""The plugin's own part of a checkpoint: `global_step_N/marsrl.pt`.

It is written before verl's tracker file names the step, so a tracker never points at a checkpoint
without it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from marsrl_verl.reporting.files import write_bytes_atomic

FILE_NAME = "marsrl.pt"
STATE_VERSION = 1


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
