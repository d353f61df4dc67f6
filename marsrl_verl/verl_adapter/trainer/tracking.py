"""verl's loggers, with their files in the run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from verl.utils.tracking import Tracking

from marsrl_verl.reporting.files import free_name
from marsrl_verl.reporting.record import recorded


def start_tracking(config: DictConfig) -> Tracking:
    """verl's `Tracking` for `trainer.logger`.

    Upstream behaviour: each logger has a place of its own choice for its files, below the current folder or
    in the temporary one, unless an environment variable names another.
    """
    names = list(config.trainer.logger or [])
    if names:
        for variable, value in logger_variables(Path(config.marsrl.run.output_dir).absolute()).items():
            os.environ.setdefault(variable, value)
    return Tracking(
        project_name=config.trainer.project_name,
        experiment_name=config.trainer.experiment_name,
        default_backend=names,
        config=OmegaConf.to_container(recorded(config), resolve=True),
    )


def logger_variables(folder: Path) -> dict[str, str]:
    """The environment variables with which loggers write into a run's folder. What the user has set counts
    more."""
    return {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "WANDB_DIR": str(folder),  # wandb makes a folder `wandb` in it
        "SWANLAB_LOG_DIR": str(folder / "swanlog"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlruns.db'}",
        # verl opens it anew: a resumed run would empty the file of the one before.
        "VERL_FILE_LOGGER_PATH": str(free_name(folder, "verl_metrics", ".jsonl")),
    }
