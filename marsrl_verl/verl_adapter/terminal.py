"""The terminal belongs to the run's own output; what libraries print goes to a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_terminal: TextIO | None = None
_log_path: Path | None = None


def terminal() -> TextIO:
    """The stream for progress, tables and messages of the run itself."""
    return _terminal or sys.stdout


def chatter_log() -> Path | None:
    """The file that this process prints to; None: the terminal."""
    return _log_path


@contextmanager
def library_output_to(path: Path) -> Iterator[None]:
    """Sends what this process prints to `path`, native libraries' output included, except by `terminal()`.
    Leaving the block restores both streams: an exception that passes through it is printed on the
    terminal."""
    global _terminal, _log_path
    sys.stdout.flush()
    sys.stderr.flush()
    copies = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _terminal = os.fdopen(os.dup(copies[0]), "w", buffering=1, encoding=sys.stdout.encoding)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        _log_path = path
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(copies[0], 1)
        os.dup2(copies[1], 2)
        for descriptor in (*copies, log):
            os.close(descriptor)
        _terminal.close()
        _terminal = _log_path = None
