"""Inside of a sandbox: its init process, and what becomes of a fork of it before a program comes.

The init process is a fork of the supervisor, or of a command such as bubblewrap's, and the sandbox's first
process: in a process namespace no signal from inside reaches it, it inherits whatever a program leaves
behind, and with it all of that ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import struct
import sys
from typing import NoReturn

from . import mounts, program, seccomp, syscalls
from .rules import LANDLOCK, MIB, Rules, content, unframed


def keep(rules: Rules, code: int, status: int, run_as: int | None, address_space: int) -> NoReturn:
    """Is the first process of a sandbox: starts the program (which comes from `code`) as another user if one
    is named, waits for its end and ends. `status` is told that the program can come, and how it ended;
    `address_space` is that of `Site`."""
    try:
        syscalls.end_with_parent()
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            _become_program(rules, code, status, run_as, address_space)
        for descriptor in (code, 1, 2):
            os.close(descriptor)
        while True:
            ended, how = os.waitpid(-1, 0)
            if ended == child:
                os.write(status, struct.pack("<i", how))
                break
    finally:
        os._exit(0)


def _become_program(rules: Rules, code: int, status: int, run_as: int | None, address_space: int) -> NoReturn:
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)  # all that it has as standard input
        os.dup2(nothing, 0)
        os.close(nothing)
        syscalls.drop_bounds()
        if run_as is not None:
            os.setgroups([])
            os.setresgid(run_as, run_as, run_as)
            os.setresuid(run_as, run_as, run_as)
        syscalls.drop_capabilities()
        syscalls.end_with_parent()  # again: it does not outlast another user
        if rules.processes and not rules.alone:
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # the supervisor sees what its processes share
        _limit(rules, address_space)
        os.chdir("/" if rules.alone else "/tmp")
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rules.kind == LANDLOCK:
            syscalls.landlock([*rules.readable, *(one for one in mounts.DEVICES if os.path.exists(one))])
        calls = seccomp.build_filter(os.getpid(), alone=rules.alone, processes=rules.processes > 0)
        syscalls.install_filter(calls)
    except BaseException as error:
        os.write(2, f"the sandbox can't be closed: {type(error).__name__}: {error}".encode())
        os._exit(70)
    os.write(status, b"r")
    with open(code, "rb") as pipe:
        request = unframed(pipe.read)
    if request is None:
        os._exit(0)  # nobody wants it any more
    os.closerange(3, 1024)
    program.run(request["code"], request["seed"], rules.echo)


def address_space_of(proc: int) -> int:
    """Bytes of address space that this process has, as `/proc`, of which `proc` is a descriptor, tells."""
    return int(content(proc, "self/statm").split()[0]) * resource.getpagesize()


def _limit(rules: Rules, address_space: int) -> None:
    seconds = int(rules.timeout_s) + 2
    for what, most in (
        (resource.RLIMIT_AS, address_space + rules.memory_mb * MIB),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0 if rules.alone else rules.disk_mb * MIB),
        (resource.RLIMIT_NOFILE, 64 if rules.alone else 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),  # timers count as such
        (resource.RLIMIT_NICE, 0),  # no way back from a low priority
        (resource.RLIMIT_RTPRIO, 0),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    if rules.processes and not rules.alone:
        resource.setrlimit(resource.RLIMIT_NPROC, (rules.processes, rules.processes))


def main(arguments: list[str]) -> None:
    """A sandbox that a command has closed (`Rules.command`): the init process in a fresh interpreter."""
    code, status, rules = int(arguments[0]), int(arguments[1]), Rules(**json.loads(arguments[2]))
    load(rules)
    keep(rules, code, status, None, address_space_of(os.open("/proc", os.O_PATH | os.O_CLOEXEC)))


def load(rules: Rules) -> None:
    """Imports what programs are likely to need; what an import raises comes out."""
    sys.path[:] = [*(one for one in sys.path if one in rules.paths or one.startswith(sys.base_prefix))]
    sys.path += [one for one in rules.paths if one not in sys.path]
    for name in rules.preload:
        importlib.import_module(name)
    if "numpy" in sys.modules:  # which imports this one when it is first asked for
        importlib.import_module("numpy.random")
    gc.collect()
    gc.freeze()  # a collection in a program would copy every page of the modules
