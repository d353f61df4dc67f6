"""Choice of a run's Ray: a cluster that is already there, or one of its own."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

LOCAL = "local"
"""The address with which `ray.init` starts a cluster whatever else runs on the machine."""
AUTO = "auto"
"""The address with which it joins the cluster that it finds on this machine."""
RAY_CLIENT = "ray://"
"""Prefix that an address of a cluster may have."""


def joins_cluster(config: DictConfig) -> bool:
    """True if the run connects to a cluster instead of starting its own.

    Ray's rules (`cluster_in_sight`) with one exception: a run on the CPU never joins a cluster merely because
    it runs on this machine: it declares ranks of its own, which is not possible on a cluster of others.
    """
    return _named(config) or (str(config.trainer.device) != "cpu" and cluster_in_sight(config))


def cluster_in_sight(config: DictConfig) -> bool:
    """True if Ray would find a cluster, whether or not the run joins it.

    An explicit address comes first, then the variable RAY_ADDRESS (which a Ray job has), then what
    `ray start` left on this machine.
    """
    return _named(config) or (_word(config) is None and _address_file(config).exists())


def cluster_address(config: DictConfig) -> str | None:
    """`HOST:PORT` of the cluster that the run joins: what it was given, else what `ray start` left on this
    machine. None: it joins none, or Ray has to look for one."""
    if not joins_cluster(config):
        return None
    word, left = _word(config), _address_file(config)
    if word is None or word == AUTO:
        word = left.read_text().strip() if left.exists() else ""
    return word.removeprefix(RAY_CLIENT) or None


_KNOCK_S = 4.0
"""Seconds for a connection, and for an answer on it."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_FRAME, _HEADER_BYTES = 4, 9
"""gRPC is HTTP/2: both sides begin with a frame of this type (RFC 9113, §3.4)."""


def no_cluster_at(address: str) -> str | None:
    """Why no Ray cluster can be joined at `HOST:PORT`; None where there may be one. Ray itself tries for
    seven minutes, also where something else listens, such as its own dashboard."""
    host, _, port = address.rpartition(":")
    if not (host and "/" not in host and port.isdecimal() and int(port) < 2**16):
        return f"The address of the Ray cluster is {address}; HOST:PORT is expected."
    what = "the Ray cluster that the run is to join"
    try:
        place = host.strip("[]"), int(port)
        tries = len(socket.getaddrinfo(*place, type=socket.SOCK_STREAM))  # a name may have many addresses
        with socket.create_connection(place, timeout=_KNOCK_S / tries) as head:
            head.settimeout(_KNOCK_S)
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return None
            head.sendall(_GREETING)
            answer = _first_bytes(head)
    except OSError as error:
        return f"Nobody answers at {address}, {what}: {error}."
    if answer is None:
        return f"{address}, {what}, accepts connections, but does not answer within {_KNOCK_S:g} s."
    if len(answer) < _HEADER_BYTES or answer[3] != _SETTINGS_FRAME:
        return f"What listens at {address}, {what}, is not a Ray head (whose port is 6379 by default)."
    return None


def _first_bytes(head: socket.socket) -> bytes | None:
    """The head of the first frame, or less where the other side ends; None: it sends nothing."""
    answer = b""
    try:
        while len(answer) < _HEADER_BYTES and (more := head.recv(_HEADER_BYTES - len(answer))):
            answer += more
    except TimeoutError:
        return None
    return answer


def _named(config: DictConfig) -> bool:
    """True if the run was given the address of a cluster, `auto` included."""
    word = _word(config)
    return word is not None and word != LOCAL


def _word(config: DictConfig) -> str | None:
    """The address that the run was given, `auto` included; None without one."""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    if address is not None and address != AUTO:
        return str(address)
    return os.environ.get("RAY_ADDRESS") or address


def _address_file(config: DictConfig) -> Path:
    """The file in which `ray start` leaves the address of this machine's cluster."""
    folder = OmegaConf.select(config, "ray_kwargs.ray_init._temp_dir")
    if folder is None:
        folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"
    return Path(str(folder)) / "ray_current_cluster"


_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable in which Ray tells the entry point of a job what it was submitted with (`ray.init` reads it)."""


def job_variables() -> dict[str, str]:
    """The environment variables with which the Ray job of this process was submitted; empty without a job."""
    text = os.environ.get(_JOB_CONFIG)
    runtime_env = (json.loads(text).get("runtime_env") or {}) if text else {}
    return {str(name): str(value) for name, value in (runtime_env.get("env_vars") or {}).items()}
