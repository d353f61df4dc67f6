"""Code that a configuration names as `package.module:Class`, and where its errors come from."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries."""
_named: set[str] = set()
"""Packages that a configuration or a method has named: the user's, also where they are installed."""
_UNTYPED = re.compile(r"(?:A non-annotated attribute was detected: `|Field ')(\w+).*type annotation")
"""Messages of pydantic about a field without a type."""


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
    _named.add(module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise _absent(target, f"There is no module {missing!r}.") from error
        if untyped := _UNTYPED.match(str(error)):
            raise _untyped_field(untyped[1], error) from error
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
    """True for a namespace package: what Python makes of a folder without `__init__.py`."""
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


def _untyped_field(name: str, error: Exception) -> ImportTargetError:
    """The error of a field without a type, which pydantic describes at length, with a line of its own."""
    frames = traceback.extract_tb(error.__traceback__)
    begins = [one for one in frames if "pydantic" not in Path(one.filename).parts][-1]
    line = line_of(begins.filename, name, begins.lineno or 0, sys.maxsize)
    what = f"`{begins.line}` has a setting {name} without a type ({begins.filename}:{line or begins.lineno})."
    return ImportTargetError(
        what, f"Write its type, as in `{name}: int = …`; ClassVar where it is no setting."
    )


def raised_at(error: BaseException, counts: Callable[[str], bool] = lambda name: True) -> str | None:
    """`file.py, line 12` of the innermost frame that counts by its file's name; None where there is none."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if counts(one.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def users_line(error: BaseException) -> str | None:
    """The line of the user's code that led to an error: of a file that is neither this package's nor a
    library's, other than one that `import_target` imported."""
    return raised_at(error, _is_users)


def users_place(function: Any) -> str | None:
    """Returns the place where a function of the user's is defined, as `users_line` has it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None
    return f"{code.co_filename}, line {code.co_firstlineno}"


def running_at(thread: int) -> str:
    """Returns the place where a thread of this process is: the user's line, else the innermost one."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    frames = [one for one in stack if _is_users(one.filename)] or stack
    return f"{frames[-1].filename}, line {frames[-1].lineno}"


def blamed(error: BaseException) -> str:
    """Describes what was raised, and where: the user's line, else the innermost one."""
    place = users_line(error) or Path(raised_at(error) or "").name
    said = f"{type(error).__name__}: {error}"
    return said if not place or place in said else f"{said} ({place})"


def source_of(item: Any, text: str = "") -> str:
    """File and line of a class or a function.

    Args:
        text: a text or name; where the class, or one that it is derived from outside this package, has it in
            its source, this is its line.
    """
    bases = [one for one in getattr(item, "__mro__", ()) if not one.__module__.startswith("marsrl_verl.")]
    for one in bases if text else ():
        file, begin, end = _source(one)
        if (line := line_of(file, text, begin, end)) is not None:
            return f"{file}:{line}"
    file, begin, _ = _source(item)
    return f"{file}:{begin}" if file else repr(item)


def _source(item: Any) -> tuple[str, int, int]:
    """File, first line and the one behind the last; the file is empty where there is none."""
    try:
        lines, begin = inspect.getsourcelines(inspect.unwrap(item))
        return str(inspect.getsourcefile(inspect.unwrap(item))), begin, begin + len(lines)
    except (OSError, TypeError):
        return "", 0, 0


def line_of(file: str, text: str, begin: int, end: int) -> int | None:
    """The first line, from `begin` to before `end`, in which a source file has a text or a name."""
    nodes = ast.walk(ast.parse(Path(file).read_bytes())) if begin < end else ()
    named = (one for one in nodes if text in (getattr(one, name, None) for name in ("value", "id", "name")))
    lines = (int(getattr(one, "lineno", 0)) for one in named)
    return min((line for line in lines if begin <= line < end), default=None)


def _is_users(name: str) -> bool:
    path = Path(name).resolve()
    if name.startswith("<") or path.is_relative_to(_PACKAGE):
        return False
    if library := next((part for parent, part in pairwise(path.parts) if parent in _INSTALLED), None):
        return library.partition(".")[0] in _named
    return not any(path.is_relative_to(folder) for folder in _STANDARD)
