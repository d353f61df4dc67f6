"""Readable text of pages, by processes that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from marsrl_verl.tools.base import ToolUnavailableError

_WORKER = Path(__file__).with_name("extract_worker.py")
_PAGES = 200
"""Pages of a process; then comes a new one, whatever the library has kept of them."""
_LINE = 64 << 20
"""Most bytes of an answer."""


class ExtractionError(Exception):
    """A page that could not be turned into text; the message is for logs."""


@dataclass(frozen=True, slots=True)
class Page:
    """The readable part of a page."""

    title: str
    text: str


@dataclass(slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    pages: int = 0

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class Extractor:
    """Keeps as many processes as pages were read at the same time, each with so much memory, and for a page
    so many processor seconds."""

    def __init__(self, memory_mib: int, cpu_s: int) -> None:
        self._limits = (str(memory_mib), str(cpu_s))
        self._idle: list[_Worker] = []

    async def start(self) -> None:
        """Has a process read a page; ToolUnavailableError if the library is missing, or does not work."""
        if importlib.util.find_spec("trafilatura") is None:
            raise ToolUnavailableError(
                "the package trafilatura is not installed; install marsrl-verl with its extra `browser`"
            )
        try:
            page = await self.read(b"<html><body><p>ready</p></body></html>", "utf-8", html=True, chars=100)
        except (ExtractionError, OSError) as error:
            raise ToolUnavailableError(f"pages can't be turned into text: {error}") from error
        if page.text.strip() != "ready":
            raise ToolUnavailableError(f"pages can't be turned into text: found {page.text!r} for 'ready'")

    async def read(self, content: bytes, charset: str | None, *, html: bool, chars: int) -> Page:
        """The text of a page, `chars` characters at most; one that is not `html` is text already.

        Raises:
            ExtractionError: the process ended, by one of its limits or by a fault of the library.
        """
        worker = self._idle.pop() if self._idle else await self._spawn()
        try:
            answer = await self._ask(worker, content, charset, html, chars)
        except BaseException:
            await worker.end()
            raise
        worker.pages += 1
        if worker.pages < _PAGES:
            self._idle.append(worker)
        else:
            await worker.end()
        if "error" in answer:
            raise ExtractionError(str(answer["error"]))
        return Page(str(answer["title"]), str(answer["text"]))

    async def _ask(
        self, worker: _Worker, content: bytes, charset: str | None, html: bool, chars: int
    ) -> dict[str, object]:
        head = {"bytes": len(content), "charset": charset, "html": html, "chars": chars}
        to, answers = worker.process.stdin, worker.process.stdout
        if to is None or answers is None:
            raise RuntimeError("the process has no pipes")
        try:
            to.write(json.dumps(head).encode("ascii") + b"\n" + content)
            await to.drain()
            line = await answers.readline()
            if line.endswith(b"\n"):
                return json.loads(line)
        except (ConnectionError, ValueError) as error:
            raise ExtractionError(f"{type(error).__name__}: {error}") from error
        raise ExtractionError(f"the process ended ({await worker.process.wait()})")

    async def _spawn(self) -> _Worker:
        """A process with nothing of this one: no environment, no file, a session of its own."""
        command = [sys.executable, "-I", str(_WORKER), *self._limits]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
            limit=_LINE,
        )
        return _Worker(process)

    async def close(self) -> None:
        """Ends the processes."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*[worker.end() for worker in idle])
