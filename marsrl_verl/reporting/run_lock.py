"""One process at a time writes into a run's folder.

The lock is `flock` on the file `.lock` in the folder. The kernel gives it back when the process ends, however
that happens, so nothing has to be removed after a crash. The file says who holds it.

On NFS, `flock` holds between nodes (Linux makes it a lock of the server), unless the mount says `nolock` or
`local_lock=flock`; Lustre needs the mount option `flock`. Where the file system has no locks, the run goes on
with a warning.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".lock"
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_held: dict[Path, int] = {}
"""Folders that this process holds, and the descriptors of their lock files."""


class RunLockedError(RuntimeError):
    """Another process writes into the folder; the message says which."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Holds a folder as `acquire` does; given back at the end unless it was held before."""
    before = folder.resolve() in _held
    acquire(folder)
    try:
        yield
    finally:
        if not before:
            release(folder)


def acquire(folder: Path) -> None:
    """Holds a folder, which is made where it is missing, until `release` or the end of this process; nothing
    happens where it is held already. RunLockedError if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if folder in _held:
        return
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(descriptor)
        os.close(descriptor)
        raise RunLockedError(f"{folder} is being written by {owner}") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
        warnings.warn(
            f"The file system of {folder} has no locks ({error}): a second run of this name would not be "
            "noticed. Start none before this one has ended.",
            stacklevel=2,
        )
    _write_owner(descriptor)
    _held[folder] = descriptor


def release(folder: Path) -> None:
    """Gives a folder back; another process that took the lock over (`adopt`) keeps it."""
    descriptor = _held.pop(folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


def held() -> dict[Path, int]:
    """Folders that this process holds, and the descriptors that `adopt` takes in another process."""
    return dict(_held)


def adopt(descriptors: Mapping[Path, int]) -> None:
    """Holds what another process held and passed on as open descriptors: the folders stay held until both
    have ended."""
    for folder, descriptor in descriptors.items():
        os.set_inheritable(descriptor, False)
        _held[folder] = descriptor


def _forget() -> None:
    """Lets go of the folders in a fork: a worker that outlives the run must not keep its folder."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def _write_owner(descriptor: int) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # which has not written its name yet
