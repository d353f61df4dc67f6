"""SIGTERM and SIGINT: a batch system takes the machine back, or somebody presses Ctrl-C.

While the run starts there is nothing to lose, and a signal ends it at once. Once it trains, a signal is noted
and comes out of `check`, which the trainer calls where its state is whole; what waits for a generation round
calls it too, so that the round is dropped. A second signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from marsrl_verl.verl_adapter.terminal import terminal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """The run was told to end. No `Exception`, so that nothing takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells give to a process that this signal ended: 143, or 130."""
        return 128 + self.number

    def __str__(self) -> str:
        return f"{signal.Signals(self.number).name} received"


_requested: int | None = None
_deferred = False


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Handles both signals inside the block, in the main thread, which alone receives them."""
    global _requested
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _install()
    try:
        yield
    finally:
        _requested = None
        for number, handler in before.items():
            signal.signal(number, handler)


def _install() -> dict[signal.Signals, Any]:
    return {number: signal.signal(number, _receive) for number in STOP_SIGNALS}


@contextmanager
def while_ray_starts() -> Iterator[None]:
    """Wraps `ray.init` inside `stop_on_signals`. Upstream behaviour: `ray.init` sets a handler for SIGTERM of
    its own, which exits with status 15."""
    ours = threading.current_thread() is threading.main_thread()
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:
            raise StopRequested(signal.SIGTERM) from None
        raise
    finally:
        if ours:
            _install()


@contextmanager
def deferred() -> Iterator[None]:
    """Inside the block a signal interrupts nothing; `check` reports it."""
    global _deferred
    before, _deferred = _deferred, True
    try:
        yield
    finally:
        _deferred = before


def check() -> None:
    """Raises StopRequested if a signal has come."""
    if _requested is not None:
        raise StopRequested(_requested)


def _receive(number: int, _frame: FrameType | None) -> None:
    global _requested
    if _requested is not None:
        # As without a handler, so that whoever waits for this process sees the signal.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _requested = number
    if not _deferred:
        raise StopRequested(number)
    name = signal.Signals(number).name
    text = f"\n{name}: the run saves its state and ends. The same again ends it at once.\n"
    # Past Python's buffers: the signal may have come while this very stream was being written to. Its
    # terminal may be gone, or it has no descriptor.
    with suppress(OSError, ValueError):
        os.write(terminal().fileno(), text.encode())
