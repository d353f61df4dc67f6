"""Report of a run that did not finish: why it ended, what is saved, and the command that continues it."""

from __future__ import annotations

import datetime
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig

from marsrl_verl.evaluation.watch import CollapsedError
from marsrl_verl.reporting.record import resume_command
from marsrl_verl.reporting.run_folder import MARKER, OutputFolderError
from marsrl_verl.reporting.storage import StorageError, storage_error
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.tools.base import ToolUnavailableError
from marsrl_verl.verl_adapter.checkpoint.files import CheckpointError, newest_complete
from marsrl_verl.verl_adapter.rollout_server.engine_watch import origin, reason
from marsrl_verl.verl_adapter.rollout_server.round_watch import SAVABLE_ERRORS
from marsrl_verl.verl_adapter.run.worker_group import TrainerHangsError
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.terminal import chatter_log, terminal
from marsrl_verl.verl_adapter.trainer.finite import NotFiniteError
from marsrl_verl.verl_adapter.trainer.problem_stream import NothingToTrainError

ERROR_LOG = "error.log"
"""File in the run's folder with tracebacks of what ended the run, the newest last."""
FAILED = 1
_SENTENCES = (
    *SAVABLE_ERRORS, NothingToTrainError, CheckpointError, ConfigError, OutputFolderError,
    ToolUnavailableError, CollapsedError, NotFiniteError, StorageError, TrainerHangsError,
)  # fmt: skip
"""Errors whose message says everything to a user."""


def report_end(config: DictConfig, error: BaseException) -> int:
    """Says on the terminal why the run ended; a traceback goes to `error.log` in its folder. The exit status
    is 143 after SIGTERM, 130 after SIGINT, 1 after an error."""
    lines = [""]
    if isinstance(error, StopRequested):
        lines.append(f"The run was ended by {signal.Signals(error.number).name}.")
    else:
        folder = Path(config.marsrl.run.output_dir)
        lines.append(f"The run ended: {_sentence(error, folder)}")
        lines.append(f"Traceback: {_write_traceback(folder, error)}")
    if not isinstance(error, (ConfigError, OutputFolderError)):
        lines += _how_to_go_on(config)
    print("\n".join(lines), file=terminal(), flush=True)
    return error.status if isinstance(error, StopRequested) else FAILED


def _sentence(error: BaseException, folder: Path) -> str:
    cause = origin(error)
    if not isinstance(cause, _SENTENCES):
        cause = storage_error(error, folder) or cause
    return str(cause) if isinstance(cause, _SENTENCES) else reason(cause)


def _write_traceback(folder: Path, error: BaseException) -> Path | str:
    """Writes a traceback to the run's folder, or to stderr where there is none yet or it can't be written;
    returns its place."""
    text = "".join(traceback.format_exception(error))
    path = folder / ERROR_LOG
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    if (folder / MARKER).is_file():
        # What fits of it stays where there is no room.
        with suppress(OSError), path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{now}\n{text}\n")
            return path
    print(text, file=sys.stderr)
    return chatter_log() or "above"


def _how_to_go_on(config: DictConfig) -> list[str]:
    root = Path(str(config.trainer.default_local_dir))
    step = newest_complete(root) if root.is_dir() else None
    if config.marsrl.serve.enabled:
        said = ["To start the server again:"]
    elif config.trainer.val_only:
        said = ["To go on with the evaluation:"]
    elif step is not None:
        said = [f"Saved: {root / f'global_step_{step}'}", f"To go on from step {step}:"]
    elif config.trainer.save_freq <= 0:
        why = f"Nothing is saved, as trainer.save_freq = {config.trainer.save_freq} says."
        said = [why, "To start again:"]
    else:
        said = ["There is no checkpoint yet.", "To start again:"]
    return [*said, *(f"  {line}" for line in resume_command(config, saved=step is not None))]
