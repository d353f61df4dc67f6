"""The driver's work once it is connected to Ray: training, and a report of how it ended."""

from __future__ import annotations

import os
import pkgutil
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from omegaconf import DictConfig

from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.terminal import library_output_to

END_SECONDS = 30.0
"""Seconds that a run which did not finish has to end in order."""
TRAIN = "marsrl_verl.verl_adapter.run.driver:train"


def do(work: str, config: DictConfig, session: Path | None = None) -> None:
    """Calls `package.module:function` with the arguments of `train`."""
    pkgutil.resolve_name(work)(config, session)


def train(config: DictConfig, session: Path | None = None) -> None:
    """Trains in this process, which is connected to Ray; SystemExit: the run did not finish, and the terminal
    shows why. Unless `marsrl.run.worker_logs` is set, this process logs in Ray's session folder as
    Ray's workers do, and the terminal shows the run's own output alone."""
    with stop_signals.stop_on_signals(), _chatter(config, session):
        try:
            _train(config)
        except (Exception, StopRequested) as error:
            status = report_end(config, error)
            _end_after(END_SECONDS, status)
            raise SystemExit(status) from None


def _chatter(config: DictConfig, session: Path | None) -> AbstractContextManager[None]:
    if session is None or config.marsrl.run.worker_logs:
        return nullcontext()
    return library_output_to(session / "logs" / f"marsrl-driver-{os.getpid()}.log")


def report_end(config: DictConfig, error: BaseException) -> int:
    """`run_end.report_end`, which is imported only when it is needed: it imports verl."""
    from marsrl_verl.verl_adapter.run import run_end

    return run_end.report_end(config, error)


def _end_after(seconds: float, status: int) -> threading.Timer:
    """Ends this process in any case: what ends it in order may wait for threads and processes that hang."""
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()
    return timer


def _train(config: DictConfig) -> None:
    # Imported here: it takes long, and what it prints belongs to the log.
    if config.marsrl.serve.enabled:
        from marsrl_verl.verl_adapter.run.server import serve

        return serve(config)
    if config.trainer.val_only:
        from marsrl_verl.verl_adapter.run.evaluator import evaluate

        return evaluate(config)
    from marsrl_verl.verl_adapter.run.task_runner import MarsRLTaskRunner

    MarsRLTaskRunner().run(config)
