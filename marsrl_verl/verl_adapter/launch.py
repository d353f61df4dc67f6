"""From a checked configuration to a finished training run."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.verl_adapter.environment import prepare_environment


def run(config: DictConfig) -> int:
    """Start Ray unless this process already belongs to a cluster job, train, and return 0.

    The trainer runs in this process: under `ray job submit` that is the job's entry point on the
    cluster, locally it saves a process that would import everything once more.
    """
    env_vars = prepare_environment(config)
    quiet_third_parties()
    start_ray(config, env_vars)
    from marsrl_verl.verl_adapter.task_runner import MarsRLTaskRunner

    MarsRLTaskRunner().run(config)
    return 0


def quiet_third_parties() -> None:
    """Keep import-time chatter of the libraries below the run's own output."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(verl|ray)\b")
    logging.getLogger("ray").setLevel(logging.WARNING)


def start_ray(config: DictConfig, env_vars: dict[str, str]) -> None:
    """`ray.init` with the configured resources and the run's environment variables."""
    import ray

    if ray.is_initialized():
        return
    settings: dict[str, Any] = dict(OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True))
    runtime_env: dict[str, Any] = dict(settings.pop("runtime_env", None) or {})
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **env_vars}
    settings.setdefault("logging_level", logging.WARNING)
    if os.environ.get("RAY_ADDRESS"):
        # An existing cluster has its own resources.
        settings = {key: value for key, value in settings.items() if key not in ("num_cpus", "num_gpus")}
    ray.init(runtime_env=runtime_env, **{k: v for k, v in settings.items() if v is not None})
