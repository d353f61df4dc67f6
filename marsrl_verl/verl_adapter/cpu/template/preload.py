"""The template process and its imports."""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from marsrl_verl.verl_adapter.cpu.template.child import die_with_parent
from marsrl_verl.verl_adapter.cpu.template.server import TemplateServer

SINGLE_THREAD_VARIABLES = {
    # These libraries start threads when they are imported, and a fork must be taken before any exists.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

EARLY_MODULES = ("torch", "transformers", "tensordict", "datasets")
"""Imported while Ray starts; none of them imports ray."""

MODULES = (
    # The driver: trainer, verl, transformers, vLLM's client side.
    "marsrl_verl.verl_adapter.run.task_runner",
    # The trainer's ranks.
    "marsrl_verl.verl_adapter.engine.workers",
    "marsrl_verl.verl_adapter.cpu.ranks",
    # Rollout and reward workers.
    "marsrl_verl.verl_adapter.rollout_server.rollout_manager",
    "marsrl_verl.verl_adapter.rollout_server.reward_manager",
    "verl.experimental.reward_loop.reward_loop",
    "math_verify",
    # vLLM's server, engine and worker processes.
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    # Imports of every process that Ray starts.
    "pydantic.v1",
    "ray.dag.compiled_dag_node",
    "ray._private.workers.default_worker",
)


def method_modules() -> tuple[str, ...]:
    """The modules of the installed methods: every process that reads the settings needs all of them."""
    from marsrl_verl.algos.registry import installed_methods

    return tuple(target.partition(":")[0] for target in installed_methods().values())


class UnsafeTemplateError(RuntimeError):
    """Forks of the template could hang or repeat each other's random ids; the message says why."""


def serve(
    listener_descriptor: int, launcher_pid: int, early_modules: Sequence[str], modules: Sequence[str]
) -> None:
    """The template process: imports, then forks on request until standard input closes. Between the early
    modules and the others it waits for one line on standard input, a JSON object of environment variables.
    UnsafeTemplateError: an import started a thread, or used Ray's random numbers."""
    die_with_parent(launcher_pid)
    os.setsid()
    lifeline = sys.stdin.fileno()
    for module in early_modules:
        importlib.import_module(module)
    os.environ.update(json.loads(_read_line(lifeline)))
    with _own_class_ids():
        for module in modules:
            importlib.import_module(module)
    # Those of native libraries included. A fork could hang on a lock that another thread holds.
    if (count := len(os.listdir("/proc/self/task"))) != 1:
        raise _unsafe(f"has {count} threads after its imports, expected 1")
    if _forks_repeat_ids():
        raise _unsafe("has drawn Ray's random numbers in one of its imports, so its forks would repeat ids")
    # Out of the garbage collector's sight, so that forks keep sharing the pages of all live objects.
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=listener_descriptor)
    TemplateServer(listener, lifeline).serve()
    # Without the interpreter's shutdown, at which some of the imported libraries print at length.
    os._exit(0)


@contextmanager
def _own_class_ids() -> Iterator[None]:
    """Lets modules define Ray actors without Ray's native random numbers.

    Upstream behaviour: `@ray.remote` on a class calls `ActorClassID.from_random`, and the first such call
    seeds a generator of the process. Forks inherit its state: all of them then draw the same ids for their
    objects and tasks, and a worker that starts while another's object of that id exists ends with
    `Check failed: WarmupStore()`.
    """
    import ray.actor

    kind = ray.actor.ActorClassID

    class OwnActorClassID(kind):  # type: ignore[misc, valid-type]
        @staticmethod
        def from_random() -> object:
            return kind(os.urandom(kind.size()))

    ray.actor.ActorClassID = OwnActorClassID
    try:
        yield
    finally:
        ray.actor.ActorClassID = kind


def _forks_repeat_ids() -> bool:
    """True if two forks of this process draw the same random id from Ray's native library."""
    return _id_of_a_fork() == _id_of_a_fork()


def _id_of_a_fork() -> bytes:
    from ray import ObjectRef

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, ObjectRef.from_random().binary())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        drawn = pipe.read()
    if os.waitpid(pid, 0)[1]:
        raise _unsafe("can't draw an id of Ray's in a fork")
    return drawn


def _unsafe(why: str) -> UnsafeTemplateError:
    fix = "set marsrl.run.fork_server=false to start every worker as a fresh interpreter"
    return UnsafeTemplateError(f"the template process {why}: {fix}")


def _read_line(descriptor: int) -> bytes:
    """Reads one line and not a byte more: the server watches what follows."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            sys.exit(0)  # the launcher gave up
        line += byte
    return line
