"""The sockets of a run: of its own, out of reach of others, gone when it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marsrl_verl.verl_adapter.rollout_server import weight_sockets
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import (
    FOLDER_VARIABLE,
    own_folder,
    own_socket,
    socket_folder,
    use_own_engine_sockets,
    use_own_sockets,
)

VERL_NAME = "ipc:///tmp/rl-colocate-zmq-02000000-replica-0-rank-1.sock"


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    return os.environ


def test_each_run_has_its_own_folder_which_goes_with_it(environment):
    first, second = {}, {}
    with socket_folder(first):
        name = own_socket(VERL_NAME)
        with socket_folder(second):
            assert own_socket(VERL_NAME) != name, "as in another run, whose job has the same number"
    folder = Path(first[FOLDER_VARIABLE])
    assert name == f"ipc://{folder}/rl-colocate-zmq-02000000-replica-0-rank-1.sock"
    assert len(name) - len("ipc://") < 107
    assert not folder.exists() and not Path(second[FOLDER_VARIABLE]).exists()
    assert FOLDER_VARIABLE not in environment


def test_another_node_makes_the_folder_for_this_user_alone(environment, tmp_path, monkeypatch):
    environment[FOLDER_VARIABLE] = str(tmp_path / "there")
    assert own_folder().stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patch, pytest.raises(PermissionError):
        patch.setattr(weight_sockets.os, "getuid", lambda: 12345)
        own_folder()  # it is somebody else's
    (tmp_path / "there").chmod(0o755)
    with pytest.raises(PermissionError, match="this user alone can enter"):
        own_folder()
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    environment[FOLDER_VARIABLE] = str(tmp_path / "link")
    with pytest.raises(PermissionError):
        own_folder()


def test_a_process_of_no_run(environment):
    with pytest.raises(RuntimeError, match=f"{FOLDER_VARIABLE} is not set"):
        own_socket(VERL_NAME)


def test_sender_and_receiver_meet(environment, tmp_path, monkeypatch):
    from verl.workers.rollout import base
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    monkeypatch.setattr(base, "_ROLLOUT_REGISTRY", dict(base._ROLLOUT_REGISTRY))
    environment[FOLDER_VARIABLE] = str(tmp_path / "sockets")
    monkeypatch.setattr(ServerAdapter, "__init__", lambda self, **_: setattr(self, "zmq_handle", VERL_NAME))
    monkeypatch.setattr(vLLMColocateWorkerExtension, "_get_zmq_handle", lambda self: VERL_NAME)
    use_own_sockets()
    sender = get_rollout_class("vllm", "async")(config={})
    module, _, name = weight_sockets.EXTENSION.rpartition(".")
    extension = getattr(__import__(module, fromlist=[name]), name)
    receiver = object.__new__(type("Worker", (extension,), {"__new__": object.__new__}))
    assert sender.zmq_handle == receiver._get_zmq_handle() == own_socket(VERL_NAME)


def test_the_engines_own_sockets_lie_there_too(environment, tmp_path):
    environment[FOLDER_VARIABLE] = str(tmp_path / "sockets")
    use_own_engine_sockets()
    from vllm.utils.network_utils import get_open_zmq_ipc_path

    assert get_open_zmq_ipc_path().startswith(f"ipc://{tmp_path}/sockets/")


def test_checkpoints_leave_no_lock_file(tmp_path, monkeypatch):
    import tempfile

    from verl.utils import fs
    from verl.utils.checkpoint import fsdp_checkpoint_manager

    from marsrl_verl.verl_adapter.checkpoint.files import without_lock_files

    modules = (fs, fsdp_checkpoint_manager)
    for module in modules:
        monkeypatch.setattr(module, "local_mkdir_safe", module.local_mkdir_safe)  # undone in the end
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    without_lock_files()
    monkeypatch.chdir(tmp_path)
    for module in modules:
        for _ in range(2):
            assert module.local_mkdir_safe("a/b") == str(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
