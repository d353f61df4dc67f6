"""Code that a configuration names as `package.module:Class`, and where its errors come from."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    Path(found).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (found := sysconfig.get_path(name))
)


class ImportTargetError(Exception):
    """A module can't be had.

    Args:
        what: what was found.
        fix: what to do.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def import_target(target: str) -> tuple[ModuleType, str]:
    """The module of `package.module:Class` and the class's name. It may lie beside where the command is
    given, as with `python script.py`.

    Raises:
        ImportTargetError: there is no such module, or importing it fails.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise _absent(target, f"There is no module {missing!r}.") from error
        place = "" if isinstance(error, SyntaxError) else f" ({raised_at(error)})"  # says it itself
        raised = f"{type(error).__name__}: {error}{place}"
        fix = f"Repair the module; `python -c 'import {module_name}'` shows where."
        if missing:
            fix = f"pip install {missing.partition('.')[0]} (the package may have another name)."
        raise ImportTargetError(f"Importing {module_name} failed with {raised}.", fix) from error
    if _is_folder(module):
        there = ", ".join(one.name for one in pkgutil.iter_modules(module.__path__)) or "none"
        raise _absent(target, f"There is no module {module_name!r}, but a folder with modules: {there}.")
    return module, class_name


def _is_folder(module: ModuleType) -> bool:
    """Whether it is what Python makes of a folder without `__init__.py`."""
    return hasattr(module, "__path__") and not getattr(module, "__file__", None)


def _absent(target: str, what: str) -> ImportTargetError:
    """The error of a module that is not there: it may lie in a folder of its own name, which Python takes for
    the module."""
    module_name, _, member = target.partition(":")
    top = module_name.partition(".")[0]
    taken = sys.modules.get(top)
    for folder in taken.__path__ if taken and _is_folder(taken) else ():
        is_file = Path(folder, f"{top}.py").is_file()
        if is_file or Path(folder, top).is_dir():
            place, named = shlex.quote(os.path.relpath(folder)), top if is_file else module_name
            fix = f"Put it on PYTHONPATH: PYTHONPATH={place} python … {named}:{member}"
            return ImportTargetError(f"`{top}` is a folder here ({folder}), not a module.", fix)
    return ImportTargetError(what, "Check the spelling, install it, or put its folder on PYTHONPATH.")


def raised_at(error: BaseException, counts: Callable[[str], bool] = lambda name: True) -> str | None:
    """`file.py, line 12` of the innermost frame that counts by its file's name; None where there is none."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if counts(one.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def users_line(error: BaseException) -> str | None:
    """The line of the user's code that led to an error: of a file that is neither this package's nor a
    library's."""
    return raised_at(error, _is_users)


def users_place(function: Any) -> str | None:
    """Where a function of the user's is defined, as `users_line` has it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None
    return f"{code.co_filename}, line {code.co_firstlineno}"


def blamed(error: BaseException) -> str:
    """What was raised, and where: the user's line, else the innermost one."""
    place = users_line(error) or Path(raised_at(error) or "").name
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")


def _is_users(name: str) -> bool:
    path = Path(name).resolve()
    return not name.startswith("<") and not any(
        path.is_relative_to(folder) for folder in (_PACKAGE, *_LIBRARIES)
    )
