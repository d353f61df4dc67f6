"""verl's loggers, with their files in the run's folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.tracking import Tracking

from marsrl_verl.config.checks.loggers import AUTO, default_loggers
from marsrl_verl.reporting.files import free_name
from marsrl_verl.reporting.record import recorded

_log = logging.getLogger(__name__)


def start_tracking(config: DictConfig) -> Tracking:
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
    try:
        return _tracking(config)
    except Exception as error:  # whatever wandb and its server answer
        if not automatic:  # asked for by name
            raise
        _log.warning("Metrics go to metrics.jsonl alone: %s can't be started (%s)", ", ".join(names), error)
        config.trainer.logger = []
        return _tracking(config)


def _tracking(config: DictConfig) -> Tracking:
    return Tracking(
        project_name=config.trainer.project_name,
        experiment_name=config.trainer.experiment_name,
        default_backend=list(config.trainer.logger),
        config=OmegaConf.to_container(recorded(config), resolve=True),
    )


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
