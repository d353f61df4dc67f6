"""Turns a fork of the template into the interpreter that was requested."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from contextlib import suppress
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
READ_AT_IMPORT = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Variables that Ray's native library reads once, when it is loaded: a fork can't give them another value."""
_FLAGS_WITH_VALUE = ("-X", "-W")


@dataclass(slots=True)
class Request:
    """One process to start: the arguments of a Python interpreter and its surroundings."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    descriptors: list[int]
    """Descriptor numbers as the client had them."""
    received: list[int]
    """The same open files under this process's numbers."""


def become(request: Request, template_pid: int) -> None:
    """Runs the request in this process, a fresh fork; never returns."""
    status = 1
    try:
        _leave_template(template_pid)
        _take_descriptors(request)
        # Before the environment is the request's. What does not fit becomes a fresh interpreter.
        env = request.env
        fits = all(env[name] == os.environ.get(name) for name in READ_AT_IMPORT if name in env)
        _take_surroundings(request)
        if not fits:
            os.execv(sys.executable, [sys.executable, *request.argv])
        _run(request.argv)
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = (end.code or 0) & 0xFF
        else:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(status)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _leave_template(template_pid: int) -> None:
    die_with_parent(template_pid)
    # A session of its own, so that Ctrl-C in the launcher's terminal reaches the launcher alone.
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_descriptors(request: Request) -> None:
    """Gives the received files the numbers they had in the client, and closes everything else."""
    clear = max([*request.descriptors, *request.received]) + 1
    # First out of the way, then in place: a received number may be another one's destination.
    parked = [os.dup2(descriptor, clear + index) for index, descriptor in enumerate(request.received)]
    for source, target in zip(parked, request.descriptors, strict=True):
        os.dup2(source, target, inheritable=True)
    needed = set(request.descriptors)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in needed:
            with suppress(OSError):  # the listing's own descriptor
                os.close(int(name))


def _take_surroundings(request: Request) -> None:
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.env)
    for entry in reversed(request.env.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
    # Tell the libraries that read the environment when the template imported them.
    if (raylet := sys.modules.get("ray._raylet")) is not None:
        raylet.Config.initialize("")  # Ray's settings, the worker's job among them
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(request.env.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # a fresh interpreter draws its own seed; `random` does so after a fork


def _run(argv: list[str]) -> None:
    """Runs what the interpreter's arguments name as `__main__`."""
    arguments = list(argv)
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        flag = arguments.pop(0)
        if flag in _FLAGS_WITH_VALUE:
            arguments.pop(0)
    if not arguments:
        raise SystemExit("the template runs a script, -c or -m; it has no interactive mode")
    first, rest = arguments[0], arguments[1:]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        runpy.run_path(first, run_name="__main__")


def _end(status: int) -> None:
    """The interpreter's own end: threads, exit handlers, streams. Does not unwind the launcher's stack."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
