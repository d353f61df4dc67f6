"""Faults of a disk or a folder, in words: full, read-only, gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (errno.EROFS, errno.EIO, errno.ESTALE)
_NO_SPACE = ("unexpected pos", "PytorchStreamWriter", "No space left")
"""Parts of torch's messages on a file that was not fully written; they lose the system's error number."""


class StorageError(RuntimeError):
    """An output of the run can't be written, or is gone; the message says what to do."""


class FolderLostError(StorageError):
    """A run's folder is not there any more."""

    def __init__(self, message: str, *, taken: bool) -> None:
        super().__init__(message)
        self.taken = taken
        """True if another run's is in its place, which must not be touched."""


def is_full(error: BaseException) -> bool:
    """True if an error says that there is no space left."""
    return getattr(error, "errno", None) in _FULL or any(text in str(error) for text in _NO_SPACE)


def storage_error(error: BaseException, folder: Path) -> StorageError | None:
    """Turns an error about the disk into one that says what to do; None: it is about something else. `folder`
    is where the run writes, for errors that name no file."""
    for one in _chain(error):
        if isinstance(one, StorageError):
            return one
        if not isinstance(one, OSError) or not (is_full(one) or one.errno in _BROKEN):
            continue
        path = Path(os.fsdecode(one.filename)) if isinstance(one.filename, (str, bytes)) else folder
        why = "there is no space left" if is_full(one) else os.strerror(one.errno or 0).lower()
        fix = "Make room" if is_full(one) else "Repair the disk"
        return StorageError(
            f"{path} can't be written: {why}. {free_space(path)}. Complete checkpoints are as they were. "
            f"{fix}, then continue with marsrl.run.if_exists=resume"
        )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def free_space(path: Path) -> str:
    """Names the first existing folder on the way up from a path, and how much is free in it."""
    return f"{_there(path)} has {size_text(free_bytes(path))} free"


def free_bytes(path: Path) -> int:
    """Returns the free bytes of the first existing folder on the way up from a path."""
    return shutil.disk_usage(_there(path)).free


def _there(path: Path) -> Path:
    return next((one for one in (path, *path.absolute().parents) if one.is_dir()), Path("/"))


def size_text(number: int) -> str:
    """Bytes for people."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
