"""Real runs side by side, a second start of a live run, and a resume with another learning rate."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch
from training_runs import REPOSITORY, START_TIMEOUT_S, command, ended, train

from marsrl_verl.reporting.run_lock import LOCK_NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
RATE = "actor_rollout_ref.actor.optim.lr"


def optimizer_group(folder: Path, step: int) -> dict:
    path = folder / f"checkpoints/global_step_{step}/actor/optim_world_size_1_rank_0.pt"
    return torch.load(path, weights_only=False)["param_groups"][0]


def wait_until_held(folder: Path, process: subprocess.Popen) -> None:
    """Until the run holds its folder, which it does before Ray starts."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        lock = folder / LOCK_NAME
        if lock.exists() and str(process.pid) in lock.read_text():
            return
        time.sleep(0.05)  # polling a file that another process writes
    raise AssertionError(f"{folder} was not held")


@pytest.fixture
def temporary(monkeypatch):
    """A temporary folder of the runs' own, with a short name: Ray has sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_two_runs_at_once_a_second_start_and_a_resume_with_another_rate(tmp_path, temporary):
    logs = {name: (tmp_path / f"{name}.log") for name in ("a", "b")}
    processes = {}
    for name, log in logs.items():
        with log.open("w") as stream:
            processes[name] = subprocess.Popen(
                command(tmp_path, name, "trainer.total_training_steps=2"),
                cwd=REPOSITORY,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
    try:
        wait_until_held(tmp_path / "a", processes["a"])
        for existing in ("resume", "replace"):
            status, output = ended(tmp_path, "a", f"marsrl.run.if_exists={existing}")
            assert status == 2
            assert f"written by process {processes['a'].pid} on" in " ".join(output.split())
        for name, process in processes.items():
            assert process.wait() == 0, logs[name].read_text()[-6000:]
    finally:
        for process in processes.values():
            process.kill()
    left = [path.name for path in temporary.iterdir()]
    assert not [name for name in left if name.startswith("ckpt_") or (temporary / name).is_socket()], left
    assert optimizer_group(tmp_path / "a", 2)["lr"] == pytest.approx(5e-4)
    changes = ("trainer.total_training_steps=3", f"{RATE}=1e-5", "marsrl.run.if_exists=resume")
    resumed = train(tmp_path, "a", *changes)
    assert set(resumed.metrics()) == {1, 2, 3} and resumed.metrics()[3]["actor/lr"] == pytest.approx(1e-5)
    group = optimizer_group(tmp_path / "a", 3)
    assert group["lr"] == group["initial_lr"] == pytest.approx(1e-5)
