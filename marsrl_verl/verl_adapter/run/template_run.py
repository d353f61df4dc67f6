"""A run whose driver and workers are forks of a template process."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig

from marsrl_verl.reporting import run_lock
from marsrl_verl.verl_adapter.cpu.template.client import end_like
from marsrl_verl.verl_adapter.cpu.template.process import STAND_IN, TemplateProcess
from marsrl_verl.verl_adapter.environment import over_verls_variables
from marsrl_verl.verl_adapter.run.driver import do, report_end
from marsrl_verl.verl_adapter.stop_signals import StopRequested, stop_on_signals, while_ray_starts

_RAY_ATTEMPTS = 3
_DRIVER = "from marsrl_verl.verl_adapter.run.template_run import drive; drive({payload})"


def run_in_template(config: DictConfig, ray_settings: dict[str, Any], work: str) -> int:
    """The exit status of `work` (`driver.do`), done in a fork of a new template process. Ray starts here,
    with the keyword arguments of `ray.init`, while the template imports."""
    import ray

    show_output = bool(config.marsrl.run.worker_logs)
    with TemplateProcess(show_output=show_output) as template:
        os.environ.update(template.variables)
        runtime_env = ray_settings.pop("runtime_env")
        runtime_env["env_vars"] = {**runtime_env["env_vars"], **template.variables}
        runtime_env["py_executable"] = str(STAND_IN)
        context = _start_ray(ray_settings)
        print(f"starting; logs: {context.address_info['session_dir']}/logs", flush=True)
        try:
            template.provide(_worker_variables(context.address_info["raylet_socket_name"]))
            connection = {
                "address": context.address_info["gcs_address"],
                "runtime_env": runtime_env,
                "logging_level": ray_settings["logging_level"],
                "log_to_driver": ray_settings["log_to_driver"],
            }
            locks = run_lock.held()
            payload = pickle.dumps((config, connection, work, locks))
            status = template.run(["-c", _DRIVER], payload, list(locks.values()))
        finally:
            ray.shutdown()
    if os.WIFSIGNALED(status):
        end_like(status)
    return os.WEXITSTATUS(status)


def _start_ray(settings: dict[str, Any]) -> Any:
    """`ray.init`, tried again where the machine was too busy. Upstream behaviour: Ray gives its own processes
    30 seconds, without a setting for it, and here they share the processors with the template's imports."""
    import ray

    for attempt in range(1, _RAY_ATTEMPTS + 1):
        try:
            with while_ray_starts():
                return ray.init(**settings)
        except Exception as error:
            if attempt == _RAY_ATTEMPTS or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def _worker_variables(raylet_socket: str) -> dict[str, str]:
    """Variables that Ray's native library reads in a worker when it is loaded: the driver's job and the
    raylet. Jobs are numbered; the driver's is the next one after this process's own."""
    import ray

    own_job = bytes.fromhex(ray.get_runtime_context().get_job_id())
    next_job = (int.from_bytes(own_job, "little") + 1).to_bytes(len(own_job), "little")
    (raylet,) = [
        child.pid
        for child in psutil.Process().children()
        if child.name() == "raylet" and any(raylet_socket in word for word in child.cmdline())
    ]
    return {"RAY_JOB_ID": next_job.hex(), "RAY_RAYLET_PID": str(raylet)}


def drive(payload: int) -> None:
    """The driver: connects to Ray and works. A signal that comes while it connects ends it at once.
    `payload` is the descriptor of the file with the configuration, the arguments of `ray.init`, the work, and
    the locks that the launcher holds: this process holds them too, in case it lives longer."""
    import ray

    with os.fdopen(payload, "rb") as stream:
        config, connection, work, locks = pickle.load(stream)
    run_lock.adopt(locks)
    with stop_on_signals():
        try:
            connection["runtime_env"] = over_verls_variables(config, connection["runtime_env"])
            with while_ray_starts():
                context = ray.init(**connection)
            do(work, config, Path(context.address_info["session_dir"]))
        except StopRequested as stop:  # before the work heeds signals itself
            raise SystemExit(report_end(config, stop)) from None
