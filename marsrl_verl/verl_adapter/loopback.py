"""A run on a Ray of its own is on one machine: its sockets listen on the loopback interface alone."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from datetime import timedelta
from typing import Any

LOOPBACK = "127.0.0.1"
_OWN_NAMES = (LOOPBACK, "localhost")
_HOST_VARIABLE = "VLLM_HOST_IP"


def stay_on_loopback() -> None:
    """Sets the variables with which Ray, vLLM and gloo use the loopback interface, unless they have values.

    Before Ray is imported, in a process that starts a Ray of its own; what that starts inherits them.

    Upstream behaviour: `ray.init` takes the address that other machines reach, and replaces a loopback
    address that it is given. It stays on the loopback interface where clusters are switched off, as it does
    by itself on macOS and Windows, hence the variable's name.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault(_HOST_VARIABLE, LOOPBACK)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def keep_stores_on_loopback() -> None:
    """Lets torch's stores at the loopback address listen there alone, if this run does.
    Upstream behaviour: a `TCPStore` listens on all interfaces whatever its address, without a password; one
    that is handed a listening socket uses that."""
    if os.environ.get(_HOST_VARIABLE) not in _OWN_NAMES:
        return
    # By its name: the package's attribute of the same name is a function.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    rendezvous._create_c10d_store = create_store  # type: ignore[attr-defined]


def create_store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> Any:
    """Creates a store as torch's `_create_c10d_store`, but for the address at which rank 0 listens."""
    from torch.distributed import TCPStore

    listening: dict[str, Any] = {}
    if rank == 0 and hostname in _OWN_NAMES:
        listening["master_listen_fd"] = socket.create_server((LOOPBACK, port), backlog=1024).detach()
    return TCPStore(
        host_name=hostname,
        port=port,
        world_size=world_size,
        is_master=rank == 0,
        timeout=timeout,
        multi_tenant=True,
        use_libuv=use_libuv,
        **listening,
    )
