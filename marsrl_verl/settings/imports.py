"""Classes that a configuration names as `package.module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


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
        return importlib.import_module(module_name), class_name
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            fix = "Check the spelling, install it, or put its folder on PYTHONPATH."
            raise ImportTargetError(f"There is no module {missing!r}.", fix) from error
        what = f"Importing {module_name} failed with {type(error).__name__}: {error}{_place(error)}."
        raise ImportTargetError(what, "Repair the module, or install what it needs.") from error


def _place(error: BaseException) -> str:
    """Where an import failed: the last frame of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
