"""What dies, hangs or is told to end in a real run: Ray, FSDP2 and vLLM on CPU with the tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from training_runs import (
    REPEATABLE,
    REPOSITORY,
    START_TIMEOUT_S,
    STEPS,
    TrainingRun,
    command,
    train,
    train_and_kill,
    wait_for_step,
)

from marsrl_verl.verl_adapter.checkpoint import sealed as checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.slow]

LIMIT_S = 10
TRAINING_LIMIT_S = 30
"""A start on a busy machine takes some of it."""
IDLE_PERCENT = 5.0
SETTINGS = (
    *REPEATABLE,
    "trainer.save_freq=100",  # what is saved before the last step is saved because of a fault
    f"marsrl.run.engine_timeout_s={LIMIT_S}",
    f"marsrl.run.sync_timeout_s={LIMIT_S}",
)
RESUME = "marsrl.run.existing=resume"
RECORD = "MARSRL_FAULTS"
"""A file to which each fault writes a line, for `benchmarks.faults`."""


def note(fault: str, status: int, output: str, seconds: float) -> None:
    """Write down what came of a fault, if a file is asked for."""
    if RECORD in os.environ:
        said = [
            line for line in output.splitlines() if line.startswith(("The run ended: ", "The run was ended"))
        ]
        row = {"fault": fault, "status": status, "seconds": round(seconds, 1), "said": said}
        with open(os.environ[RECORD], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def engine_core(launcher: psutil.Process) -> psutil.Process:
    """vLLM's core. Every process of a run is a fork of one template and looks like it; those of Ray have a
    name, and of the other two the driver is the older one."""
    forks = [
        one for one in launcher.children(recursive=True) if "preload import serve" in " ".join(one.cmdline())
    ]
    template, driver, *cores = sorted(forks, key=lambda one: one.create_time())
    assert template.ppid() == launcher.pid and driver.ppid() == template.pid
    (core,) = cores
    return core


def interrupt(
    root: Path, name: str, after_step: int, fault: Callable[[psutil.Process], None], *overrides: str
) -> tuple[int, str, float]:
    """Start or resume a run and let something happen after a step; its status, its output, and the seconds
    that it took to end. No process of it may be left."""
    log = root / f"{name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command(root, name, *SETTINGS, *overrides),
            cwd=REPOSITORY,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for_step(root / name, after_step, process, log)
            launcher = psutil.Process(process.pid)
            family = launcher.children(recursive=True)
            began = time.monotonic()
            fault(launcher)
            status = process.wait(LIMIT_S + 60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = time.monotonic() - began
    note(fault.__name__.replace("_", " "), status, log.read_text(), seconds)
    _, left = psutil.wait_procs(family, timeout=10)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    return status, log.read_text(), seconds


def stop_core(launcher: psutil.Process) -> None:
    engine_core(launcher).suspend()


def kill_core(launcher: psutil.Process) -> None:
    engine_core(launcher).kill()


def ray_process(launcher: psutil.Process, kind: str) -> psutil.Process:
    """The first one of a class of actors; the trainer has one."""
    return next(
        one for one in launcher.children(recursive=True) if one.cmdline()[:1] and kind in one.cmdline()[0]
    )


def rank(launcher: psutil.Process) -> psutil.Process:
    return ray_process(launcher, "ray::WorkerDict")


def kill_rollout_worker(launcher: psutil.Process) -> None:
    ray_process(launcher, "ray::RolloutWorker").kill()


def kill_core_while_the_trainer_computes(launcher: psutil.Process) -> None:
    while_the_trainer_computes(launcher, psutil.Process.kill)


def stop_core_while_the_trainer_computes(launcher: psutil.Process) -> None:
    while_the_trainer_computes(launcher, psutil.Process.suspend)


def while_the_trainer_computes(launcher: psutil.Process, fault: Callable[[psutil.Process], None]) -> None:
    """The trainer is held until vLLM's server, whose engine does nothing meanwhile, can know it."""
    trains = rank(launcher)
    trains.suspend()
    try:
        core = engine_core(launcher)
        deadline = time.monotonic() + START_TIMEOUT_S
        while core.cpu_percent(interval=1.0) > IDLE_PERCENT:  # the round is decoded to its end
            assert time.monotonic() < deadline
        fault(core)
    finally:
        trains.resume()


def batches(run: TrainingRun) -> dict[int, dict]:
    """What each step decoded; log-probabilities, which differ by rounding, are left out."""
    return {
        step: {row["trajectory"]: (row["token_ids"], row["reward"]) for row in run.rollouts(step)}
        for step in range(1, STEPS + 1)
    }


def test_a_run_goes_on_exactly_after_every_fault(tmp_path, whole_run):
    """Killed, with an engine that stopped, with one that died, and ended by a signal."""
    checkpoints = tmp_path / "broken/checkpoints"

    train_and_kill(tmp_path, "broken", 1, *SETTINGS, "trainer.save_freq=1")
    killed = checkpoint.newest_sealed(checkpoints)
    assert (
        killed is not None and checkpoint.load_state(checkpoints / f"global_step_{killed}")["step"] == killed
    )

    status, output, seconds = interrupt(tmp_path, "broken", killed + 1, stop_core, RESUME)
    assert status == 1
    assert "The run ended: " in output and "To go on from step" in output, output
    assert "Traceback (most recent" not in output
    assert seconds < LIMIT_S + 60
    first = checkpoint.newest_sealed(checkpoints)
    assert first is not None and first > killed

    status, output, seconds = interrupt(tmp_path, "broken", first + 1, kill_core, RESUME)
    assert status == 1
    assert "vLLM server" in output and "To go on from step" in output, output
    assert seconds < 60
    second = checkpoint.newest_sealed(checkpoints)
    assert second is not None and second > first

    status, output, seconds = interrupt(tmp_path, "broken", second + 1, psutil.Process.terminate, RESUME)
    assert status == 128 + signal.SIGTERM
    assert "The run was ended by SIGTERM." in output, output
    assert seconds < 30
    third = checkpoint.newest_sealed(checkpoints)
    assert third is not None and third > second

    resumed = train(tmp_path, "broken", *SETTINGS, RESUME)
    assert sorted(resumed.metrics()) == list(range(1, STEPS + 1))
    assert batches(resumed) == batches(whole_run)
    for step, whole in whole_run.metrics().items():
        for name in ("actor/reward_kl_penalty", "actor/reward_kl_penalty_coeff"):
            found = resumed.metrics()[step].get(name)
            assert found == pytest.approx(whole.get(name), rel=1e-3, abs=1e-7), f"step {step}"
    rows = [row for step in range(1, STEPS + 1) for row in resumed.rollouts(step)]
    assert len(rows) == len({row["trajectory"] for row in rows})


def test_what_dies_or_hangs_while_the_trainer_computes(tmp_path):
    """An engine that has nothing to do, the trainer's rank itself, and a rollout worker at any time."""
    checkpoints = tmp_path / "computes/checkpoints"
    status, output, seconds = interrupt(
        tmp_path, "computes", 1, kill_core_while_the_trainer_computes, f"trainer.total_training_steps={STEPS}"
    )
    assert status == 1
    assert "The run ended: vLLM server 0 is gone" in output and "its log is" in output, output
    assert seconds < 60
    saved = checkpoint.newest_sealed(checkpoints)
    assert saved is not None, "the step that was trained meanwhile is not lost"

    status, output, seconds = interrupt(
        tmp_path, "computes", saved + 1, stop_core_while_the_trainer_computes, RESUME
    )
    assert status == 1
    assert f"engine_timeout_s = {LIMIT_S})" in output and "To go on from step" in output, output
    assert "Traceback (most recent" not in output
    assert seconds < LIMIT_S + 60
    after = checkpoint.newest_sealed(checkpoints)
    assert after is not None and after > saved
    saved = after

    stopped = []

    def stop_rank(launcher: psutil.Process) -> None:
        stopped.append(rank(launcher).pid)
        rank(launcher).suspend()

    limit = f"marsrl.run.training_timeout_s={TRAINING_LIMIT_S}"
    status, output, seconds = interrupt(
        tmp_path, "computes", saved + 1, stop_rank, limit, "marsrl.run.sync_timeout_s=600", RESUME
    )
    assert status == 1
    assert f"training_timeout_s = {TRAINING_LIMIT_S} s" in output and f"process {stopped[0]}" in output, (
        output
    )
    assert f"To go on from step {saved}" in output and "Traceback (most recent" not in output
    assert checkpoint.newest_sealed(checkpoints) == saved

    # Step saved + 1 is in the metrics of the run that hung.
    status, output, seconds = interrupt(tmp_path, "computes", saved + 2, kill_rollout_worker, RESUME)
    assert status == 1 and seconds < 60
    assert "a rollout worker (agent_loop_worker_" in output and "has died: it crashed or was killed" in output
    newest = checkpoint.newest_sealed(checkpoints)
    assert newest is not None and newest > saved
