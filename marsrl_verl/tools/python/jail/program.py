"""Run a program as `python program.py` would, and show the value of its last line as a notebook would."""

from __future__ import annotations

import ast
import atexit
import linecache
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import NoReturn

_NAME = "<program>"


def run(source: str, seed: int, echo: bool) -> NoReturn:
    """Runs the program to its end in this process, with a seed for the generators of `random` and, where it
    is preloaded, of `numpy.random`; `echo`: print the value of a last line that is an expression."""
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    for name, number in (("stdout", 1), ("stderr", 2)):
        # Line by line: what a program wrote before its time was up is shown.
        stream = os.fdopen(number, "w", 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [_NAME]
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed % 2**32)
    status, end = 1, os._exit  # which the program may replace
    try:
        status = _finished(lambda: _execute(source, echo))
        # As the interpreter does at its end; whatever takes too long is ended from outside.
        status = _finished(lambda: threading._shutdown()) or status  # type: ignore[attr-defined]
        status = _finished(lambda: atexit._run_exitfuncs()) or status
        for written in (sys.stdout, sys.stderr):
            status = _finished(written.flush) or status
    finally:
        end(status)  # nothing of the server's clean-up, in whatever way this ended


def _execute(source: str, echo: bool) -> None:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    linecache.cache[_NAME] = (len(source), None, source.splitlines(keepends=True), _NAME)
    tree = ast.parse(source, _NAME)
    last = tree.body[-1] if echo and tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, _NAME, "exec", dont_inherit=True), main.__dict__)
    if isinstance(last, ast.Expr):
        expression = compile(ast.Expression(last.value), _NAME, "eval", dont_inherit=True)
        value = eval(expression, main.__dict__)
        if value is not None:
            print(value)


def _finished(part: Callable[[], object]) -> int:
    """Does a part and returns its exit status; what it raises is shown as the interpreter shows it."""
    try:
        part()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    """The traceback from the program's first line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != _NAME:
        frames = frames.tb_next
    try:
        traceback.print_exception(type(error), error, frames, file=sys.stderr)
    except BaseException:  # its `__str__` raises, the output is closed
        os.write(2, f"{type(error).__name__}\n".encode())
