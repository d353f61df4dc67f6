"""verl's loggers, with their files in the run's folder, a run that goes on where it resumes, and tables of
what roles wrote."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.tracking import Tracking, ValidationGenerationsLogger

from marsrl_verl.config.checks.loggers import AUTO, default_loggers
from marsrl_verl.evaluation.runs import Run
from marsrl_verl.evaluation.suite import EvaluationResult
from marsrl_verl.reporting.files import free_name, write_json_atomic
from marsrl_verl.reporting.record import recorded

_log = logging.getLogger(__name__)


RUN_IDS = "tracking.json"
"""File in the run's folder with the ids that loggers know the run by."""
_CONTINUED = {"wandb": ("WANDB_RUN_ID", "WANDB_RESUME"), "swanlab": ("SWANLAB_RUN_ID", "SWANLAB_RESUME")}
_ID_DIGITS = 21
"""Digits of a run's id: swanlab takes no other number."""


class RunTracking:
    """verl's loggers of a run (`Tracking`), and its tables."""

    def __init__(self, config: DictConfig) -> None:
        trainer = config.trainer
        names = list(trainer.logger)
        self._loggers = Tracking(
            project_name=trainer.project_name,
            experiment_name=trainer.experiment_name,
            default_backend=names,
            config=OmegaConf.to_container(recorded(config), resolve=True),
        )
        self._names, self._max_answers = names, trainer.get("log_val_generations") or 0
        self._tables = ValidationGenerationsLogger(trainer.project_name, trainer.experiment_name)

    def log(self, data: dict[str, Any], step: int) -> None:
        """Metrics of a step."""
        self._loggers.log(data, step=step)

    def finish(self) -> None:
        """Ends the loggers."""
        self._loggers.finish()

    def log_evaluation(self, result: EvaluationResult, step: int) -> None:
        """Means of an evaluation, and a table of its first runs (`trainer.log_val_generations`)."""
        if not self._names:
            return
        found = result.record.estimates | result.record.effort
        means = {f"val/{name}": one.mean for name, one in found.items() if one.mean is not None}
        self.log(means, step=step)
        if runs := result.passes[0].runs[: self._max_answers]:
            rows = [list(_row(run)) for run in runs]
            # Upstream behaviour: wandb's table has the columns of the first evaluation for good.
            rows += [["", "", 0.0]] * (self._max_answers - len(rows))
            self._tables.log(self._names, rows, step)


def _row(run: Run) -> tuple[str, str, float]:
    """A run's question, what each stage wrote, and what the answer is worth."""
    said = (f"[{call.request.stage}]\n{call.trajectory.text}" for call in run.calls)
    return run.problem.question, "\n\n".join(said), run.final_reward


def start_tracking(config: DictConfig) -> RunTracking:
    """verl's `Tracking` for `trainer.logger`, with `auto` replaced by what can start in this process.

    Upstream behaviour: each logger has a place of its own choice for its files, below the current folder or
    in the temporary one, unless an environment variable names another.
    """
    named = config.trainer.logger
    automatic = named == [AUTO]
    names = default_loggers(os.environ) if automatic else list(named or [])
    with open_dict(config):
        config.trainer.logger = names
    if names:
        for variable, value in logger_variables(Path(config.marsrl.run.output_dir).absolute()).items():
            os.environ.setdefault(variable, value)
        _go_on(Path(config.marsrl.run.output_dir).absolute(), names)
    try:
        return RunTracking(config)
    except Exception as error:  # whatever wandb and its server answer
        if not automatic:  # asked for by name
            raise
        _log.warning("Metrics go to metrics.jsonl alone: %s can't be started (%s)", ", ".join(names), error)
        config.trainer.logger = []
        return RunTracking(config)


def _go_on(folder: Path, names: Sequence[str]) -> None:
    """Has loggers go on with the run of the folder's first start, where the user names no other."""
    path = folder / RUN_IDS
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    ids = dict(known)
    for name in (name for name in names if name in _CONTINUED):
        variable, resume = _CONTINUED[name]
        ids[name] = os.environ.setdefault(variable, known.get(name) or uuid.uuid4().hex[:_ID_DIGITS])
        os.environ.setdefault(resume, "allow")
    if ids != known:
        write_json_atomic(path, ids)


def logger_variables(folder: Path) -> dict[str, str]:
    """The environment variables with which loggers write into a run's folder, where the user set no other."""
    return {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "WANDB_DIR": str(folder),  # wandb makes a folder `wandb` in it
        "SWANLAB_LOG_DIR": str(folder / "swanlog"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlruns.db'}",
        # verl opens it anew: a resumed run would empty the file of the one before.
        "VERL_FILE_LOGGER_PATH": str(free_name(folder, "verl_metrics", ".jsonl")),
    }
