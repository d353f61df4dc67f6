"""Launch of a run from a checked configuration."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.checks.machine import unreachable_cluster
from marsrl_verl.config.ray_cluster import LOCAL, cluster_address, joins_cluster
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.environment import over_verls_variables, prepare_environment
from marsrl_verl.verl_adapter.loopback import stay_on_loopback
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import socket_folder
from marsrl_verl.verl_adapter.run.cluster import require_resources
from marsrl_verl.verl_adapter.run.driver import TRAIN, do, report_end
from marsrl_verl.verl_adapter.stop_signals import StopRequested


def run(config: DictConfig, work: str = TRAIN) -> int:
    """Starts Ray unless this process already belongs to a cluster job, does `work` (`driver.do`), and returns
    the exit status.

    The trainer runs in this process: under `ray job submit` that is the job's entry point on the cluster,
    locally it saves a process that would import everything once more.
    """
    with stop_signals.stop_on_signals():
        try:
            env_vars = prepare_environment(config)
            with socket_folder(env_vars):
                return _start(config, work, env_vars)
        except StopRequested as stop:  # while Ray starts
            return report_end(config, stop)


def _start(config: DictConfig, work: str, env_vars: dict[str, str]) -> int:
    own_cluster = not joins_cluster(config)
    quiet_third_parties(own_cluster)
    if own_cluster:
        keep_token_private()
    settings = ray_settings(config, env_vars)
    if wants_template(config):
        from marsrl_verl.verl_adapter.run.template_run import run_in_template

        return run_in_template(config, settings, work)
    import ray

    if ray.is_initialized():
        require_resources(config)
        do(work, config)
    else:
        settings["runtime_env"] = over_verls_variables(config, settings["runtime_env"])
        with stop_signals.while_ray_starts():
            try:
                context = ray.init(**settings)
            except ConnectionError as error:
                if own_cluster:
                    raise
                raise ConfigError([unreachable_cluster(cluster_address(config), error)]) from error
            require_resources(config)
        do(work, config, Path(context.address_info["session_dir"]))
    return 0


def quiet_third_parties(own_cluster: bool) -> None:
    """Keeps import-time chatter of the libraries below the run's own output. A cluster that is already there,
    no `own_cluster`, has its own way of authentication, and its own workers."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if own_cluster:
        # What Ray does by default for a cluster of its own, said explicitly, which spares a warning. Ray
        # reads it when it is imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        stay_on_loopback()
        # Workers in reserve would have the wrong environment for every actor of the run.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        os.environ.setdefault("RAY_enable_worker_prestart", "0")
        # Upstream behaviour: Ray's control store keeps 3.5 kB of each of the last 100,000 calls, for a
        # dashboard that a run does not start. 0: they are not reported.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        # Upstream behaviour: the thread that collects Ray's own metrics now and then takes its process down
        # (SIGSEGV in opentelemetry's buildMetrics), and those of a cluster of ours are not read.
        os.environ.setdefault("RAY_enable_metrics_collection", "0")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(verl|ray)\b")
    logging.getLogger("ray").setLevel(logging.WARNING)


def keep_token_private() -> None:
    """Keeps other users from reading the token of the run's own Ray. Upstream behaviour: Ray writes
    `~/.ray/auth_token`, unless there is one, with the rights of any file."""
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if given or os.environ.get("RAY_AUTH_MODE") != "token":
        return
    token = Path.home() / ".ray" / "auth_token"
    if token.exists():
        if token.stat().st_mode & 0o077:
            print(f"warning: others can read Ray's token: chmod 600 {token}", file=sys.stderr, flush=True)
        return
    token.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=token.parent) as made:  # mode 0600
        made.write(secrets.token_hex(32))
        made.flush()
        with suppress(FileExistsError):
            os.link(made.name, token)  # whole or not at all, for two runs that start together


def wants_template(config: DictConfig) -> bool:
    """True if driver and workers start as forks: only on the CPU platform and on a Ray of our own."""
    if not (config.marsrl.run.fork_server and on_cpu_platform()) or joins_cluster(config):
        return False
    from marsrl_verl.verl_adapter.cpu.template.process import supported

    return supported()


def ray_settings(config: DictConfig, env_vars: dict[str, str]) -> dict[str, Any]:
    """The keyword arguments of `ray.init`: configured resources and the run's environment variables."""
    settings = cast("dict[str, Any]", OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True))
    runtime_env: dict[str, Any] = settings.pop("runtime_env", None) or {}
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **env_vars}
    settings.setdefault("logging_level", logging.WARNING)
    settings.setdefault("log_to_driver", bool(config.marsrl.run.worker_logs))
    if joins_cluster(config):
        settings |= {"num_cpus": None, "num_gpus": None}  # an existing cluster has its own resources
    elif str(config.trainer.device) == "cpu":
        # Without an address Ray would join whatever cluster runs here, and reject the resources.
        settings["address"] = LOCAL
    settings["runtime_env"] = runtime_env
    return {key: value for key, value in settings.items() if value is not None}
