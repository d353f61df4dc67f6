"""Let something happen to a real run: what dies, hangs or is told to end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from training_runs import REPEATABLE, START_TIMEOUT_S, started, wait_for_step

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
RESUME = "marsrl.run.if_exists=resume"
RECORD = "MARSRL_FAULTS"
"""A file to which each fault writes a line, for `benchmarks.faults`."""


def note(fault: str, status: int, output: str, seconds: float) -> None:
    """Writes down what came of a fault, if a file is asked for."""
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
    """Starts or resumes a run and lets something happen after a step; its status, its output, and the seconds
    that it took to end. No process of it may be left."""
    with started(root, name, *SETTINGS, *overrides) as (process, log):
        wait_for_step(root / name, after_step, process, log)
        launcher = psutil.Process(process.pid)
        family = launcher.children(recursive=True)
        began = time.monotonic()
        fault(launcher)
        status = process.wait(LIMIT_S + 60)
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
