"""Where an error comes from: the line of the user's code that led to it, if there is one."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    Path(found).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (found := sysconfig.get_path(name))
)


def users_line(error: BaseException) -> str | None:
    """`file.py, line 12` of the innermost frame that is neither this package's nor a library's; None where
    there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None


def blamed(error: BaseException) -> str:
    """What was raised, and where: the user's line, else the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    place = users_line(error) or inner
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")


def _is_users(name: str) -> bool:
    if name.startswith("<"):
        return False
    path = Path(name).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PACKAGE, *_LIBRARIES))
