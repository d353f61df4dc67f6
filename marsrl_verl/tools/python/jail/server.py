"""The server: an interpreter inside the mounts that has imported what programs need, and forks sandboxes.

Its standard input is a Unix socket. The client sends the rules (`rules.Rules`) and is told whether they can
be kept. From then on each message of five bytes brings a socket, for which a sandbox is made ready under the
slot that it names, or ends the sandbox of a slot. It lives as long as its client's end of the socket.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import socket
import struct
import sys
from dataclasses import replace

from . import init, mounts, syscalls
from .rules import COMMAND, NAMESPACES, Rules, Site, content, receive, send
from .supervisor import Supervisor

BEGIN, END = b"+", b"x"
"""Kinds of messages: make a sandbox ready, end one."""
MESSAGE = struct.Struct("<cI")
"""A message of the client: its kind, and a slot."""
_USERS, _USERS_FEW = 1_879_048_192, 64_000
"""The first of the users that programs run as, where there are so many, and where there are not."""
SLOTS = 256
"""Sandboxes are numbered below it."""


def main() -> None:
    """Serves until the client is gone."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):  # whatever a library prints or reads must not get between the messages
        os.dup2(nothing, descriptor)
    os.close(nothing)
    settings = receive(control)
    if settings is None:
        return
    try:
        rules, site = _ready(Rules(**settings))
    except BaseException as error:
        send(control, {"failed": f"{type(error).__name__}: {error}"})
        return
    users = site.first_user is not None
    facts = {"python": platform.python_version(), "processes": rules.processes, "own_users": users}
    send(control, {"ready": True, **facts})
    _serve(control, rules, site)


def _ready(rules: Rules) -> tuple[Rules, Site]:
    """Everything that all sandboxes share; the rules as they can be kept."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    first_user = _first_user() if os.geteuid() == 0 else None
    if rules.kind == NAMESPACES:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # or its own entry in /proc is root's
        is_root = os.geteuid() == 0
        proc, as_root = mounts.build(rules.readable)
        site = Site(proc, as_root, first_user if as_root else None)
        if is_root and site.first_user is None:
            rules = replace(rules, processes=0)  # the kernel does not limit how many root has
    else:
        proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
        site = Site(proc, False, None if rules.kind == COMMAND or not _open_to_all(rules) else first_user)
    with socket.socket(socket.AF_UNIX) as one:  # of its own size: the filter lets no program change it
        # As much again may lie in the message that reaches the limit.
        site.socket_bytes = 2 * one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    if rules.alone:
        rules = replace(rules, processes=0)
    if rules.kind != COMMAND:
        init.load(rules)
        status = content(site.proc, "self/status").splitlines()
        threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
        if threads > 1:
            what = f"importing the modules of `preload` started {threads - 1} threads, which no fork has"
            raise OSError(what)
        site.address_space = init.address_space_of(site.proc)
    return rules, site


def _first_user() -> int | None:
    """Users that nobody else has: of each server others, as long as there are enough."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        known = [tuple(map(int, line.split())) for line in lines]
    for first, groups in ((_USERS, 65_536), (_USERS_FEW, 4)):
        if any(begin <= first and first + groups * SLOTS <= begin + count for begin, _, count in known):
            return first + os.getpid() % groups * SLOTS
    return None


def _open_to_all(rules: Rules) -> bool:
    """True if other users than root can import the interpreter's modules."""
    for path in (os.path.realpath(sys.executable), os.path.dirname(os.__file__), *rules.paths):
        while path != "/":
            if not os.stat(path).st_mode & 0o001:
                return False
            path = os.path.dirname(path)
    return True


def _serve(control: socket.socket, rules: Rules, site: Site) -> None:
    supervisors: dict[int, int] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            _forget_ended(supervisors)
        if control not in readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE.size, 1)
        if len(message) < MESSAGE.size:
            break
        what, slot = MESSAGE.unpack(message)
        if what == END:
            _kill(supervisors.get(slot))
            continue
        place = socket.socket(fileno=descriptors[0])
        process = os.fork()
        if process == 0:
            status = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                syscalls.end_with_parent()
                for other in (control, woken, wake):
                    other.close()
                Supervisor(place, rules, site, slot).run()
                status = 0
            finally:
                os._exit(status)
        place.close()
        supervisors[slot] = process
    for process in supervisors.values():
        _kill(process)


def _forget_ended(supervisors: dict[int, int]) -> None:
    slots = {process: slot for slot, process in supervisors.items()}
    while True:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        if (slot := slots.get(process)) is not None:
            del supervisors[slot]


def _kill(process: int | None) -> None:
    """Ends a supervisor, and with it, by the kernel, its sandbox. Not yet reaped, it has its number still."""
    if process is not None:
        os.kill(process, signal.SIGKILL)
