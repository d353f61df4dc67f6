"""A run's sockets lie in a folder of its own, which no other user can enter.

Upstream behaviour: verl names the sockets of its weight sync `/tmp/rl-colocate-zmq-JOB-…` by the number of
the Ray job, which two clusters on one machine have in common: their runs would wait for each other's weights
for ever. And whoever made such a name first would be unpickled. vLLM leaves its sockets in the temporary
folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_VARIABLE = "MARSRL_SOCKET_FOLDER"
"""Environment variable of every process of a run; the folder has the same name on all nodes."""
_PLACE = "/tmp"
"""A socket's path has at most 107 characters, and TMPDIR may be longer."""


@contextmanager
def socket_folder(env_vars: dict[str, str]) -> Iterator[None]:
    """Makes the folder of a run's sockets and puts it into the variables of its processes; removed in the
    end. A run that is killed, and the other nodes of a cluster, leave an empty folder or some sockets."""
    folder = tempfile.mkdtemp(prefix="marsrl-", dir=_PLACE)
    env_vars[FOLDER_VARIABLE] = os.environ[FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)


def own_folder() -> Path:
    """The folder of this run's sockets on this node. RuntimeError: this process belongs to no run;
    PermissionError: somebody else made a folder of this name."""
    name = os.environ.get(FOLDER_VARIABLE)
    if name is None:
        raise RuntimeError(f"{FOLDER_VARIABLE} is not set: the launcher sets it for every process of a run")
    folder = Path(name)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder that this user alone can enter (owner {found.st_uid}, mode "
            f"{stat.filemode(found.st_mode)}); remove it and start again"
        )
    return folder


def own_socket(address: str) -> str:
    """The address of a socket of the same name in the run's own folder."""
    return f"ipc://{own_folder() / address.rpartition('/')[2]}"


def use_own_sockets() -> None:
    """Has this process send weights through the run's own folder."""
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY["vllm", "async"] = (
        "marsrl_verl.verl_adapter.rollout_server.weight_transfer.OwnSocketAdapter"
    )


def use_own_engine_sockets() -> None:
    """Has the vLLM engine that this process is going to start use the run's own folder."""
    os.environ["VLLM_RPC_BASE_PATH"] = str(own_folder())


EXTENSION = "marsrl_verl.verl_adapter.rollout_server.weight_transfer.OwnSocketExtension"
"""The engine's side: vLLM mixes it into its worker."""
