"""The file system that sandboxes see: the interpreter and the system's libraries, read-only, nothing else."""

from __future__ import annotations

import os
import re

from . import syscalls
from .syscalls import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin")
FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/localtime", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/zero: a shared mapping of it is memory that no limit counts."""
INNER_ID = 1000
"""The user of sandboxes in user namespaces."""
_SCRATCH = "/tmp"
_KEPT = {os.ST_NOSUID: syscalls.MS_NOSUID, os.ST_NODEV: syscalls.MS_NODEV, os.ST_NOEXEC: syscalls.MS_NOEXEC,
         os.ST_NOATIME: syscalls.MS_NOATIME, os.ST_NODIRATIME: syscalls.MS_NODIRATIME,
         os.ST_RELATIME: syscalls.MS_RELATIME}  # fmt: skip


def shown(prefixes: list[str]) -> list[str]:
    """The folders and files that programs may read, those that exist; of a link to a folder both.

    Raises:
        OSError: a prefix of the interpreter or its packages holds the whole machine, or somebody's home.
    """
    homes = {"/", "/home", "/root", os.path.realpath(os.path.expanduser("~"))}
    for prefix in prefixes:
        if os.path.realpath(prefix) in homes:
            raise OSError(f"the interpreter is installed in {prefix}, and programs must not read all of that")
    found: list[str] = []
    named = (*SYSTEM, *prefixes, *FILES)
    for path in dict.fromkeys(path for one in named for path in (one, os.path.realpath(one))):
        inside = any(path == one or path.startswith(f"{one}/") for one in found if not os.path.islink(one))
        if os.path.lexists(path) and not inside:
            found.append(path)
    return found


def build(readable: list[str]) -> tuple[int, bool]:
    """Moves this process into a mount, network, IPC and UTS namespace of its own.

    Without root's capabilities in a user namespace too, in which this process has them. Returns a descriptor
    of the machine's `/proc`, for this process and for supervisors alone; and whether this is root without a
    user namespace.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    as_root = os.geteuid() == 0 and syscalls.has_capabilities()
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.SPACES if as_root else syscalls.SPACES | syscalls.CLONE_NEWUSER)
    if not as_root:
        write_maps(proc, user, group)
    syscalls.mount("none", "/", "", MS_REC | MS_PRIVATE)
    entries = [_Entry(path) for path in readable]
    entries += [_Entry(path, device=True) for path in DEVICES if os.path.exists(path)]
    # What lies in /tmp is hidden by it, but held open.
    syscalls.mount("tmpfs", _SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for entry in entries:
        entry.show()
    for folder in ("/dev", "/tmp"):
        os.makedirs(f"{_SCRATCH}{folder}", exist_ok=True)
    os.symlink("/tmp", f"{_SCRATCH}/dev/shm")
    syscalls.pivot_root(_SCRATCH)
    syscalls.mount("none", "/", "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    return proc, as_root


def mount_scratch(disk_mb: int, readable: list[str]) -> None:
    """A fresh `/tmp` for a sandbox, in which what programs may read of the machine's (an interpreter that is
    installed there) is still seen, read-only as it is."""
    below = [path for path in readable if path.startswith("/tmp/")]
    places = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in below]
    size = f"size={disk_mb}m,nr_inodes=16384,mode=1777"
    syscalls.mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, size)
    for path, place in zip(below, places, strict=True):
        os.makedirs(path, exist_ok=True)
        os.fchdir(place)
        syscalls.mount(".", path, "", MS_BIND | MS_REC)
        os.close(place)
    os.chdir("/")


def write_maps(proc: int, user: int, group: int) -> None:
    """Gives this process, whose ids outside are `user` and `group`, the one user that it has in its new user
    namespace."""
    maps = {"setgroups": "deny", "uid_map": f"{INNER_ID} {user} 1", "gid_map": f"{INNER_ID} {group} 1"}
    for name, text in maps.items():
        place = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        with open(place, "wb", buffering=0) as file:
            file.write(text.encode())


class _Entry:
    """A path that is to be seen in sandboxes."""

    def __init__(self, path: str, device: bool = False) -> None:
        self.path, self.device = path, device
        self.is_folder = os.path.isdir(path)
        # /lib of merged systems is a link, as an environment may be. Its target is shown too.
        self.link = os.path.realpath(path) if self.is_folder and os.path.islink(path) else None
        self.place = -1 if self.link else os.open(path, os.O_PATH | os.O_CLOEXEC)

    def show(self) -> None:
        target = f"{_SCRATCH}{self.path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if self.link is not None:
            os.symlink(self.link, target)
            return
        if self.is_folder:
            os.makedirs(target, exist_ok=True)
        else:
            open(target, "wb").close()
        syscalls.mount(f"/proc/self/fd/{self.place}", target, "", MS_BIND | MS_REC)
        os.close(self.place)
        for place in _mounts_below(target):
            mounted = os.statvfs(place).f_flag
            flags = sum(flag for bit, flag in _KEPT.items() if mounted & bit)
            flags |= MS_NOSUID if self.device else MS_NOSUID | MS_NODEV
            syscalls.mount("none", place, "", flags | MS_BIND | MS_REMOUNT | MS_RDONLY)


def _mounts_below(target: str) -> list[str]:
    """A mount and those below it. Each has to be made read-only by itself."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        places = [_unescaped(line.split(" ")[4]) for line in lines]
    below = [one for one in places if one == target or one.startswith(f"{target}/")]
    return list(dict.fromkeys(below))


def _unescaped(name: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), name)
