"""The configuration as it is written to files, printed and sent to loggers: without anybody's secrets."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

HIDDEN = "(not written down)"
SHOWN_VARIABLES = frozenset(
    {
        "VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM", "VLLM_CPU_KVCACHE_SPACE", "TORCHDYNAMO_DISABLE",
        "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_OMP_THREADS_BIND", "OMP_WAIT_POLICY",
        "OMP_NUM_THREADS",
    }
)  # fmt: skip
"""The variables of our presets; the value of any other is somebody's own, and may be a key."""
_VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"
_COMMAND = "marsrl.run.command"
"""The words of the command line."""
_PASSWORD = "ray_kwargs.ray_init._redis_password"


def recorded(config: DictConfig) -> DictConfig:
    """A copy without the values of environment variables that the command line set for the workers.

    A resume does not compare them (`config.resume_rules`). Ray itself writes them into its own logs.
    """
    copy: Any = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    hidden: list[str] = []
    variables = OmegaConf.select(copy, _VARIABLES)
    for name in variables or ():
        if name not in SHOWN_VARIABLES:
            hidden.append(str(variables[name]))
            variables[name] = HIDDEN
    if OmegaConf.select(copy, _PASSWORD) is not None:
        hidden.append(str(copy.ray_kwargs.ray_init._redis_password))
        copy.ray_kwargs.ray_init._redis_password = HIDDEN
    words = OmegaConf.select(copy, _COMMAND) or []
    for index, word in enumerate(words):
        key, _, value = str(word).partition("=")
        if key.lstrip("+").startswith("ray_kwargs") and any(text in value for text in hidden):
            words[index] = f"{key}={HIDDEN}"
    return copy
