"""The kernel's calls that Python has no function for, or has only in newer versions."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct

CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ANY_NAMESPACE = 0x7E020000
"""All flags of `clone` that make a namespace, cgroups' included."""
SPACES = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
"""Namespaces that the server and every sandbox have."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 1024, 2048, 4096, 16384
MS_PRIVATE, MS_RELATIME = 1 << 18, 1 << 21
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522

MACHINE = platform.machine()
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}
_LANDLOCK = 444
"""The first of Landlock's three calls, on every machine."""

_libc = ctypes.CDLL(None, use_errno=True)
_holding_lock = ctypes.PyDLL(None, use_errno=True)
"""The same, for calls in which the interpreter's lock must be kept."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def unshare(flags: int) -> None:
    """Gives this process namespaces of its own."""
    _checked(_libc.unshare(flags), "unshare")


def fork(namespaces: int) -> int:
    """Forks as `os.fork` does, with the child in new namespaces, process namespaces included. For processes
    with one thread; the C library takes the child for its parent, until the child forks by `os.fork`."""
    if not namespaces:
        return os.fork()
    number, flags = ctypes.c_long(_CLONE[MACHINE]), ctypes.c_ulong(namespaces | signal.SIGCHLD)
    nothing = ctypes.c_long(0)
    ctypes.pythonapi.PyOS_BeforeFork()
    process = int(_holding_lock.syscall(number, flags, nothing, nothing, nothing, nothing))
    if process == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _checked(process, "clone")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """See mount(2)."""
    arguments = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(_libc.mount(*arguments), f"mount {target}")


def pivot_root(folder: str) -> None:
    """Makes a mount the root of the file system, and lets go of all others."""
    os.chdir(folder)
    here = ctypes.c_char_p(b".")
    _syscall("pivot_root", _PIVOT_ROOT[MACHINE], here, here)
    _checked(_libc.umount2(here, MNT_DETACH), "umount2")
    os.chdir("/")


def prctl(option: int, *values: int) -> int:
    """See prctl(2)."""
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(option, *padded), f"prctl {option}")


def end_with_parent() -> None:
    """Has the kernel end this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, 9)


def drop_bounds() -> None:
    """Lets no file that is executed give any capability; before the last one is dropped."""
    try:
        for number in range(64):
            prctl(PR_CAPBSET_DROP, number)
    except OSError:
        return  # EINVAL: there are no more; EPERM: this process has none to give


def drop_capabilities() -> None:
    """Gives up every capability, for good."""
    try:
        prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError:
        if has_capabilities():
            raise
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(struct.pack("=6I", 0, 0, 0, 0, 0, 0))
    _checked(_libc.capset(header, nothing), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def has_capabilities() -> bool:
    """True if this process may mount and make namespaces by itself."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, data), "capget")
    return bool(struct.unpack("=6I", data.raw[:24])[0] & 1 << _CAP_SYS_ADMIN)


def install_filter(program: bytes) -> None:
    """Puts a seccomp filter (an array of `struct sock_filter`) on this process and all that it starts."""

    class _Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    instructions = ctypes.create_string_buffer(program, len(program))
    filter_program = _Program(len(program) // 8, ctypes.cast(instructions, ctypes.c_void_p))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    address = ctypes.addressof(filter_program)
    _checked(_libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_ulong(address), 0, 0), "seccomp")


_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Execute, read files, read folders."""
_READ_FILE = 1 << 0 | 1 << 2
_ALL_OF = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""Accesses, as bits, that each version of Landlock can forbid."""
_ALL = (1 << 16) - 1


def landlock(readable: list[str]) -> None:
    """Forbids this process, and all that it starts, every file but those below some folders, which it may
    read; where the kernel knows of them, TCP, signals to others and their sockets too."""
    version = _libc.syscall(ctypes.c_long(_LANDLOCK), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        raise OSError("the kernel has no Landlock")
    files = _ALL_OF.get(version, _ALL)
    attributes = struct.pack("=Q", files)
    if version >= 4:
        attributes += struct.pack("=Q", 3)
    if version >= 6:
        attributes += struct.pack("=Q", 3)
    buffer, size = ctypes.create_string_buffer(attributes, len(attributes)), ctypes.c_size_t(len(attributes))
    no_flags = ctypes.c_uint32(0)
    ruleset = _syscall("landlock_create_ruleset", _LANDLOCK, buffer, size, no_flags)
    try:
        for path in readable:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = _READ if os.path.isdir(path) else _READ_FILE
                rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place), 12)
                below = (ctypes.c_int(ruleset), ctypes.c_int(1), rule)
                _syscall(f"landlock_add_rule {path}", _LANDLOCK + 1, *below, no_flags)
            finally:
                os.close(place)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        _syscall("landlock_restrict_self", _LANDLOCK + 2, ctypes.c_int(ruleset), no_flags)
    finally:
        os.close(ruleset)
