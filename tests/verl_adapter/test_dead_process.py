"""What is said of a process that has died."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray's errors")

from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError

from marsrl_verl.verl_adapter.rollout_server import dead_process
from marsrl_verl.verl_adapter.rollout_server.engine_watch import reason

KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force "
    "was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error. If the "
    "process was killed by the kernel OOM killer (verifiable by checking for OOM in dmesg of the OOMing "
    "node), consider enabling resource isolation via --enable-resource-isolation to prevent node deaths by "
    "resource contention and significant loss of progress by uninformed kernel OOM killing."
)
"""What Ray 2.60 says of a process that was sent SIGKILL."""


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(dead_process, "logs_folder", lambda: tmp_path)
    return tmp_path


def died(class_name: str, message: str = KILLED, pid: int = 123, name: str = "") -> ActorDiedError:
    context = ActorDiedErrorContext(
        class_name=class_name, actor_id=b"0" * 16, pid=pid, node_ip_address="10.0.0.1", error_message=message,
        name=name,
    )  # fmt: skip
    return ActorDiedError(context)


@pytest.mark.parametrize(
    ("kind", "whose"),
    [
        ("WorkerDict", "a rank of the trainer"),
        ("create_colocated_worker_cls.<locals>.WorkerDict", "a rank of the trainer"),
        ("MarsRLvLLMServer", "a vLLM server"),
        ("RewardLoopWorker", "a reward worker"),
        ("Other", "a process of the run"),
    ],
)
def test_a_dead_process_is_named_with_its_log(logs, kind, whose):
    log = logs / "worker-abc-01000000-123.err"
    log.write_text(":job_id:01\nloading\nCUDA error: device-side assert\n:actor_name:WorkerDict\n")
    assert reason(died(kind)) == (
        f"{whose} ({kind}, process 123, on 10.0.0.1) has died: it crashed or was killed, often by the system "
        f"for want of memory; its log is {log}, which ends: CUDA error: device-side assert"
    )


def test_its_name_says_which_of_several_it_was():
    said = reason(died("MarsRLvLLMServer", name="vllm_server_3_0"))
    assert said.startswith("a vLLM server (vllm_server_3_0, process 123, on 10.0.0.1) has died")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("Task was killed due to the node running low on memory: usage above the threshold", "memory was"),
        ("The actor died because its node has died. Node Id: 12", "its node is gone"),
        ("The actor is dead because it was killed by `ray.kill`.", "ended on purpose"),
        ("something new", "something new"),
    ],
)
def test_the_cause_is_told_as_far_as_ray_knows_it(logs, message, why):
    said = reason(died("WorkerDict", message))
    assert why in said and f"its log is on its node, in {logs}" in said


def test_one_that_nothing_is_known_of(monkeypatch):
    monkeypatch.setattr(dead_process, "logs_folder", lambda: None)
    assert reason(ActorDiedError()).startswith("a process of the run has died: The actor died unexpectedly")


def test_one_that_could_not_start():
    task = RayTaskError("__init__", "Traceback\nValueError: no model", ValueError("no model"))
    assert "it could not start" in reason(ActorDiedError(task))


def test_one_that_hangs_is_named_with_its_log(logs, monkeypatch):
    log = logs / "worker-abc-01000000-123.err"
    log.write_text("a warning\n")
    known = {"ab": {"Name": "xyWorkerDict_0:1", "Pid": 123, "Address": {"IPAddress": "10.0.0.1"}}}
    monkeypatch.setattr("ray._private.state.actors", lambda actor_id: known.get(actor_id, {}))

    def handle(actor_id: str) -> SimpleNamespace:
        return SimpleNamespace(_ray_actor_id=SimpleNamespace(hex=lambda: actor_id))

    said = dead_process.running_process(handle("ab"))
    assert said == f" (xyWorkerDict_0:1, process 123, on 10.0.0.1); its log is {log}"
    assert dead_process.running_process(handle("cd")) == ""
