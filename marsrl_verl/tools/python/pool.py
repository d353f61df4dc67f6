"""The client of a server of sandboxes."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.tools.python.jail import server
from marsrl_verl.tools.python.jail.rules import Rules, framed, receive, send

START_S = 60.0
"""Most seconds until the server has imported what it is to preload."""
READY_S = 30.0
"""Most seconds until a sandbox is ready."""
MOST = server.SLOTS // 2
"""Most sandboxes at a time: a number is not given again at once."""
_ORDER_S = 2.0
"""Most seconds until a server takes an order. Others wait in its socket for it."""
GRACE_S = 0.4
"""After a program's time, until its supervisor is no longer waited for. It needs milliseconds."""
_BOOT = "import sys; sys.path.insert(0, {folder!r}); from jail import {module}; {module}.main(*{arguments})"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
}  # fmt: skip
"""The variables that servers and programs find in their environment."""
JAIL_FOLDER = str(Path(__file__).resolve().parent)
"""The folder in which the package `jail` lies."""


class SandboxError(Exception):
    """There is no sandbox, or it is gone; the message says how."""


class _SilentError(SandboxError):
    """Nothing was said in time."""


def boot_command(interpreter: str, folder: str, module: str, arguments: str = "[]") -> list[str]:
    """A command that starts a module of `jail` with an interpreter that does not know this package."""
    code = _BOOT.format(folder=folder, module=module, arguments=arguments)
    return [interpreter, "-s", "-S", "-B", "-c", code]


@dataclass(slots=True, eq=False)
class _Sandbox:
    """A supervisor with a sandbox that is ready or about to be."""

    place: socket.socket
    slot: int
    server: subprocess.Popen[bytes]
    """Server that was asked for it."""


class SandboxPool:
    """Sandboxes of one server: `warm` are ready from the beginning, and later as many as programs were run at
    a time, `most` of them. In one event loop."""

    def __init__(self, rules: Rules, interpreter: str, *, warm: int, most: int = 0) -> None:
        self.rules, self._interpreter, self._warm, self._most = rules, interpreter, warm, max(warm, most)
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: deque[_Sandbox] = deque()
        self._slots: set[int] = set()
        self._last_slot = 0
        self._starting = asyncio.Lock()
        self.facts: Mapping[str, Any] = {}
        """Facts that the server reported about itself."""
        self.starts = 0
        """Number of times that a server was started."""

    async def start(self) -> None:
        """Starts the server, and has sandboxes made ready; SandboxError if it can't keep the rules."""
        async with self._starting:
            if self._server is None or self._server.poll() is not None:
                self._drop_server()
                await asyncio.to_thread(self._start_server)
        self._fill()

    async def run(self, code: str, seed: int) -> dict[str, Any]:
        """Runs a program; what its supervisor tells of it (`why`, `status`, `head`, `tail`, `left_out`), and
        how many seconds it took to have a sandbox (`waited`). SandboxError if there was none to be had, or it
        was ended from outside."""
        submitted = time.monotonic()
        one = await self._take()
        waited = time.monotonic() - submitted
        try:
            answer = await self._ask(one, {"code": code, "seed": seed})
        except BaseException:
            self._give_up(one)
            self._fill()
            raise
        if len(self._idle) < self._most and one.slot in self._slots:
            self._idle.append(one)  # its supervisor makes the next sandbox
        else:
            self._give_up(one)
        return {**answer, "waited": waited}

    def close(self) -> None:
        """Ends the server and all of its sandboxes."""
        while self._idle:
            self._give_up(self._idle.popleft())
        self._drop_server()

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                boot_command(self._interpreter, JAIL_FOLDER, "server"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the run
            )
        self._control = ours
        self.starts += 1
        ours.settimeout(START_S)
        try:
            send(ours, asdict(self.rules))
            answer = receive(ours)
        except TimeoutError:
            answer = {"failed": f"no start within {START_S:g} s"}
        except OSError as error:
            answer = {"failed": str(error)}
        assert self._server.stderr is not None
        if answer is None:
            lines = self._server.stderr.read().decode(errors="replace").strip().splitlines()
            answer = {"failed": lines[-1] if lines else "it ended without a word"}
        self._server.stderr.close()
        if "failed" in answer:
            self._drop_server()
            raise SandboxError(str(answer["failed"]))
        ours.settimeout(_ORDER_S)
        self.facts = {name: value for name, value in answer.items() if name != "ready"}

    def _drop_server(self, hangs: bool = False) -> None:
        """Ends the server, and by the kernel all that it has started."""
        served, self._server = self._server, None
        if self._control is not None:
            self._control.close()  # it ends with this
            self._control = None
        self._idle.clear()
        self._slots.clear()
        if served is not None:
            with suppress(subprocess.TimeoutExpired):
                served.wait(timeout=0.0 if hangs else 2.0)
            served.kill()
            served.wait()

    def _fill(self) -> None:
        while self._server is not None and len(self._idle) < self._warm:
            try:
                self._idle.append(self._ordered())
            except SandboxError:
                return  # the next call says so

    def _ordered(self) -> _Sandbox:
        """One that the server is to make ready."""
        if len(self._slots) >= MOST:
            raise SandboxError(f"there are {MOST} sandboxes already")
        slot = self._last_slot
        while slot == self._last_slot or slot in self._slots:
            slot = (slot + 1) % (2 * MOST)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                if self._control is None or self._server is None:
                    raise OSError("there is no server")
                socket.send_fds(self._control, [server.MESSAGE.pack(server.BEGIN, slot)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxError(f"the server of sandboxes is gone: {error}") from error
        ours.setblocking(False)
        self._slots.add(slot)
        self._last_slot = slot
        return _Sandbox(ours, slot, self._server)

    async def _take(self) -> _Sandbox:
        """A sandbox that is ready; of two that are not, the second one's reason."""
        try:
            return await self._ready()
        except SandboxError:
            if self._server is not None and self._server.poll() is not None:
                self._drop_server()
        return await self._ready()

    async def _ready(self) -> _Sandbox:
        if not self._idle:
            await self.start()
        one = self._idle.popleft() if self._idle else self._ordered()
        try:
            answer = await _within(READY_S, _receive(one.place))
            if not answer.get("ready"):
                raise SandboxError(str(answer.get("failed", answer)))
        except BaseException as error:
            self._give_up(one)
            if isinstance(error, _SilentError) and one.server is self._server:  # none that was started since
                self._drop_server(hangs=True)
            raise
        return one

    async def _ask(self, one: _Sandbox, request: Mapping[str, Any]) -> dict[str, Any]:
        async def exchange() -> dict[str, Any]:
            await asyncio.get_running_loop().sock_sendall(one.place, framed(request))
            return await _receive(one.place)

        return await _within(self.rules.timeout_s + GRACE_S, exchange())

    def _give_up(self, one: _Sandbox) -> None:
        """Ends a sandbox, whatever it is doing. One that has ended is none the worse."""
        one.place.close()  # a supervisor that reads ends everything with this
        if one.server is not self._server:
            return  # it has ended with its server; its number is another one's
        self._slots.discard(one.slot)
        with suppress(OSError):  # there is no server, and so no sandbox
            if self._control is not None:
                self._control.sendall(server.MESSAGE.pack(server.END, one.slot))


async def _within(seconds: float, work: Any) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(work, seconds)
    except (asyncio.TimeoutError, TimeoutError):
        raise _SilentError(f"its supervisor said nothing within {seconds:g} s") from None
    except OSError as error:
        raise SandboxError(f"its supervisor is gone: {error}") from error


async def _receive(place: socket.socket) -> dict[str, Any]:
    head = await _exactly(place, 4)
    return json.loads(await _exactly(place, struct.unpack("<I", head)[0]))


async def _exactly(place: socket.socket, count: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), bytearray()
    while len(parts) < count:
        chunk = await loop.sock_recv(place, count - len(parts))
        if not chunk:
            raise OSError("it closed the connection")
        parts += chunk
    return bytes(parts)
