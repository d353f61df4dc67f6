"""Which Ray a run uses: a cluster that is already there, or one of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

LOCAL = "local"
"""The address with which `ray.init` starts a cluster whatever else runs on the machine."""
_AUTO = "auto"


def joins_cluster(config: DictConfig) -> bool:
    """Whether the run connects to a cluster instead of starting its own.

    Ray's rules: an explicit address counts most, then the variable RAY_ADDRESS (which a Ray job has), then
    what `ray start` left on this machine. One exception: a run on the CPU never joins a cluster merely
    because it runs here; it declares ranks of its own, which nobody can do on somebody else's.
    """
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    if address is not None and address != _AUTO:
        return str(address) != LOCAL
    if variable := os.environ.get("RAY_ADDRESS"):
        return variable != LOCAL
    if address == _AUTO:
        return True
    return str(config.trainer.device) != "cpu" and _address_file(config).exists()


def _address_file(config: DictConfig) -> Path:
    """Where `ray start` leaves the address of this machine's cluster."""
    folder = OmegaConf.select(config, "ray_kwargs.ray_init._temp_dir")
    if folder is None:
        folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"
    return Path(str(folder)) / "ray_current_cluster"


_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where Ray tells the entry point of a job what it was submitted with (`ray.init` reads it too)."""


def job_variables() -> dict[str, str]:
    """The environment variables with which the Ray job of this process was submitted; empty without a job."""
    text = os.environ.get(_JOB_CONFIG)
    runtime_env = (json.loads(text).get("runtime_env") or {}) if text else {}
    return {str(name): str(value) for name, value in (runtime_env.get("env_vars") or {}).items()}
