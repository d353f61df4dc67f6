"""The template process as its launcher sees it."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from marsrl_verl.verl_adapter.cpu.template import client
from marsrl_verl.verl_adapter.cpu.template.preload import (
    EARLY_MODULES,
    MODULES,
    SINGLE_THREAD_VARIABLES,
    method_modules,
)

STAND_IN = Path(__file__).with_name("python")
"""An executable that takes the arguments of a Python interpreter and runs them in a fork."""
_END_SECONDS = 15.0


class TemplateEndedError(RuntimeError):
    """The template process ended before it could serve; the message holds what it printed."""


class TemplateProcess:
    """A running template process; ends with the `with` block, or with this process however it ends. Requests
    made while it still imports wait for it. It leaves no file behind: its socket lives in Linux's abstract
    namespace, and it serves no other user.

    It imports `early_modules` at once and `modules` (None: what a run's processes need) after `provide`. With
    `show_output` it prints to this process's streams; otherwise its output is kept for the error message.
    """

    def __init__(
        self,
        early_modules: Sequence[str] = EARLY_MODULES,
        modules: Sequence[str] | None = None,
        show_output: bool = False,
    ) -> None:
        later = [*MODULES, *method_modules()] if modules is None else list(modules)
        self.name = f"marsrl-template-{os.getpid()}-{secrets.token_hex(8)}"
        # Open as long as the template may print to it; without a name it needs no removal.
        self._output: IO[bytes] | None = None if show_output else tempfile.TemporaryFile()  # noqa: SIM115
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind("\0" + self.name)
            listener.listen(64)
            code = (
                "from marsrl_verl.verl_adapter.cpu.template.preload import serve; "
                f"serve({listener.fileno()}, {os.getpid()}, {list(early_modules)!r}, {later!r})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, **SINGLE_THREAD_VARIABLES},
                pass_fds=[listener.fileno()],
            )

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that `STAND_IN` needs."""
        return {client.SOCKET_VARIABLE: self.name, client.PYTHON_VARIABLE: sys.executable}

    def provide(self, variables: dict[str, str]) -> None:
        """Gives it the environment variables that the later modules read when they are imported; once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(variables).encode() + b"\n")
        self._process.stdin.flush()

    def run(self, argv: list[str], payload: bytes = b"", descriptors: Sequence[int] = ()) -> int:
        """The wait status of an interpreter's command line, run in a fork with this process's streams,
        surroundings and open `descriptors`. Signals that reach this process meanwhile are passed on.
        `{payload}` in an argument becomes the number of an open file that holds `payload`.
        TemplateEndedError: the template is gone."""
        file = os.memfd_create("payload")
        with os.fdopen(file, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.lseek(file, 0, os.SEEK_SET)
            arguments = [argument.replace("{payload}", str(file)) for argument in argv]
            connection = client.connect(self.name)
            client.send_request(connection, arguments, [0, 1, 2, file, *descriptors])
        reply = client.receive_reply(connection)
        if reply is not None:
            with _signals_passed_to(reply[1]):
                reply = client.receive_reply(connection)
        if reply is None:
            raise TemplateEndedError(f"the template process ended:\n{self._printed()}")
        return reply[1]

    def __enter__(self) -> TemplateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the template and every fork of it that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            # Still importing, or a child resists; the kernel ends its children with it.
            self._process.kill()
            self._process.wait()

    def _printed(self) -> str:
        if self._output is None:
            return "(see above)"
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


def supported() -> bool:
    """True if this system has what a template needs (Linux 5.3: abstract sockets, process descriptors)."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and os.access(STAND_IN, os.X_OK)


def use_template_for_multiprocessing() -> None:
    """Lets `multiprocessing`'s spawn method start forks of the template from this process on."""
    if client.SOCKET_VARIABLE in os.environ:
        multiprocessing.set_executable(str(STAND_IN))


@contextmanager
def _signals_passed_to(pid: int) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda received, _frame: os.kill(pid, received))
        for number in client.FORWARDED
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
