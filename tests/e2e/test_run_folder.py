"""Real runs side by side, a second start of a live run, and a resume with another learning rate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from training_runs import REPOSITORY, command, train, wait_for_step

pytestmark = pytest.mark.e2e
RATE = "actor_rollout_ref.actor.optim.lr"


def optimizer_group(folder: Path, step: int) -> dict:
    path = folder / f"checkpoints/global_step_{step}/actor/optim_world_size_1_rank_0.pt"
    return torch.load(path, weights_only=False)["param_groups"][0]


def test_two_runs_at_once_a_second_start_and_a_resume_with_another_rate(tmp_path):
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
        wait_for_step(tmp_path / "a", 1, processes["a"], logs["a"])
        for existing in ("resume", "replace"):
            second = subprocess.run(
                command(tmp_path, "a", f"marsrl.run.existing={existing}"),
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=False,
            )
            said = " ".join(second.stderr.split())
            assert second.returncode == 2 and f"written by process {processes['a'].pid} on" in said
        for name, process in processes.items():
            assert process.wait() == 0, logs[name].read_text()[-6000:]
    finally:
        for process in processes.values():
            process.kill()
    assert not list(Path("/tmp").glob("rl-colocate-zmq-*"))
    assert optimizer_group(tmp_path / "a", 2)["lr"] == pytest.approx(5e-4)
    changes = ("trainer.total_training_steps=3", f"{RATE}=1e-5", "marsrl.run.existing=resume")
    resumed = train(tmp_path, "a", *changes)
    assert set(resumed.metrics()) == {1, 2, 3} and resumed.metrics()[3]["actor/lr"] == pytest.approx(1e-5)
    group = optimizer_group(tmp_path / "a", 3)
    assert group["lr"] == group["initial_lr"] == pytest.approx(1e-5)
