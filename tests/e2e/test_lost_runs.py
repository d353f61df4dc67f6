"""Real runs with a learning rate that spoils the weights, a folder that is deleted, a disk that is full: Ray,
FSDP2 and vLLM on CPU with the tiny model."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from faults import RESUME, interrupt, note
from training_runs import TrainingRun, checkpoint_weights, ended

from marsrl_verl.verl_adapter.checkpoint import files as checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.slow]

DISK_MB = 64
SOON = 12
"""Steps in which useless training has to be noticed."""


def told(output: str) -> str:
    """The sentence that a run says about its end; no traceback may stand beside it."""
    assert "Traceback (most recent" not in output, output[-6000:]
    (line,) = [one for one in output.splitlines() if one.startswith("The run ended: ")]
    return line.removeprefix("The run ended: ")


@pytest.mark.parametrize(
    ("decay", "ends"),
    [
        ("1e6", ("no group was trained", "not finite")),  # a million times larger in a step: nonsense, or NaN
        ("1e39", ("actor/weights_max",)),  # beyond float32 in one step
    ],
)
def test_weights_that_are_spoiled_end_the_run(tmp_path, decay, ends):
    optimizer = "actor_rollout_ref.actor.optim"
    # The greatest rate that is accepted.
    settings = (f"{optimizer}.lr=1", f"{optimizer}.weight_decay={decay}", "trainer.total_training_steps=40")
    began = time.monotonic()
    status, output = ended(tmp_path, "spoiled", *settings)
    assert status == 1, output[-6000:]
    note(f"weight_decay={decay}", status, output, time.monotonic() - began)
    sentence = told(output)
    run = TrainingRun(tmp_path / "spoiled", output)
    assert any(one in sentence for one in ends), sentence
    # Nothing is kept of the step that spoiled them.
    assert not (run.folder / "metrics.jsonl").exists() or max(run.metrics()) <= SOON
    assert sentence in (run.folder / "report.md").read_text().replace("\\", "")
    saved = checkpoint.newest_complete(run.folder / "checkpoints")
    if saved is not None:
        weights = checkpoint_weights(run.folder, saved)
        assert all(bool(torch.isfinite(one).all()) for one in weights.values())


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def delete(folder: Path) -> None:
    """All at once, as it looks to the run."""
    gone = folder.with_name("gone")
    folder.rename(gone)
    shutil.rmtree(gone)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        with pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(os.urandom(2**16))
        with pytest.raises(OSError, match="No space left"):
            while True:  # to the last byte
                filler.write(b"x")


def test_a_deleted_folder_and_a_full_disk_end_the_run_and_lose_no_weights(small_disk):
    folder = small_disk / "lost"
    checkpoints = folder / "checkpoints"

    def delete_folder(_: psutil.Process) -> None:
        delete(folder)

    status, output, _ = interrupt(small_disk, "lost", 2, delete_folder)
    assert status == 1
    assert f"{folder} was deleted or moved while the run wrote into it" in told(output)
    first = checkpoint.newest_complete(checkpoints)
    assert first is not None and 3 <= first <= 4, "it is noticed within a step"
    assert f"Saved: {checkpoints}/global_step_{first}" in output and "To go on from step" in output
    checkpoint.check_manifest(checkpoints / f"global_step_{first}")

    # From there it goes on, until the disk is full.
    def fill_disk(_: psutil.Process) -> None:
        fill(small_disk)

    status, output, _ = interrupt(small_disk, "lost", first + 1, fill_disk, RESUME)
    assert status == 1
    sentence = told(output)
    assert "can't be written: there is no space left" in sentence and f"{small_disk}" in sentence
    assert f"Saved: {checkpoints}/global_step_{first}" in output
    checkpoint.check_manifest(checkpoints / f"global_step_{first}")
