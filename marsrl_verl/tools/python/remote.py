"""Programs on a server with the API of SandboxFusion: `POST <url>/run_code`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from marsrl_verl.core.sequence import Plain
from marsrl_verl.endpoints.client import JsonClient, RequestError
from marsrl_verl.tools.base import ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python.config import PythonConfig

BESIDE_S = 10.0
"""Most seconds of a request beside the program's: to connect, to wait for a place, to answer."""
_START_S = 15.0
_MAX_BYTES = 2**26
"""Most bytes of an answer; a longer one counts as none."""
_NOTE = 300
_FINISHED, _OVER_TIME = "Finished", "TimeLimitExceeded"
"""Values of `run_result.status` in the server's answer; a third one is Error."""


class RemoteRunner:
    """Sends each program to the next of the servers. In one event loop."""

    def __init__(self, settings: PythonConfig, key: str | None) -> None:
        self._settings = settings
        self._client = JsonClient(key=key, max_bytes=_MAX_BYTES)
        self._numbers = itertools.count()
        self._failed: dict[str, tuple[int, int]] = {}
        """Failures of calls that will be repeated: the server that failed last, and their number so far."""

    async def start(self) -> None:
        """Asks every server to run a first program; ToolUnavailableError if one does not."""
        urls = self._settings.remote.urls
        if not urls:
            raise ToolUnavailableError("remote.urls names no server. Set it to [http://host:8080].")
        self._client.open()
        for url in urls:
            result = await self._ask(url, "print(6 * 7)", _START_S)
            if result.outcome is not ToolOutcome.OK or result.text.strip() != "42":
                await self.close()
                found = result.info.get("detail") or result.text[:_NOTE]
                raise ToolUnavailableError(
                    f"{url} does not run a first program ({found}). Start SandboxFusion there, or correct "
                    "remote.urls."
                )

    async def run(self, code: str, call_id: str) -> ToolResult:
        """Runs a program on the next server; a repeated one on the server after the one that failed."""
        urls = self._settings.remote.urls
        last, times = self._failed.pop(call_id, (None, 0))
        at = (next(self._numbers) if last is None else last + 1) % len(urls)
        result = await self._ask(urls[at], code, self._settings.timeout_s + BESIDE_S)
        if result.outcome is ToolOutcome.FAILED and times < self._settings.retries:
            self._failed[call_id] = (at, times + 1)
        return result

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    async def _ask(self, base: str, code: str, limit_s: float) -> ToolResult:
        """Sends a program to a server. Its time limit is the server's to keep: one that does not answer in
        time has failed, whatever the program."""
        url, settings = f"{base.rstrip('/')}/run_code", self._settings
        body = {
            "code": code,
            "language": "python",
            "run_timeout": settings.timeout_s,
            "compile_timeout": settings.remote.compile_timeout_s,
            "memory_limit_MB": settings.memory_mb,
        }
        try:
            answer = await asyncio.wait_for(self._client.ask("POST", url, body=body), limit_s)
        except asyncio.TimeoutError:
            return self._no_run(f"{url} gave no answer within {limit_s:g} s")
        except RequestError as error:
            return self._no_run(str(error))
        return self._read(url, answer)

    def _read(self, url: str, answer: Any) -> ToolResult:
        """The result in an answer of the server."""
        run = answer.get("run_result") if isinstance(answer, Mapping) else None
        if not isinstance(run, Mapping):
            message = answer.get("message") if isinstance(answer, Mapping) else answer
            return self._no_run(f"{url} answered no run: {str(message)[:_NOTE]}")
        status, code = run.get("status"), run.get("return_code")
        parts = [run.get("stdout") or "", run.get("stderr") or ""]
        if not all(isinstance(one, str) for one in parts):
            return self._no_run(f"{url} answered something else than text")
        text = "".join(parts).rstrip("\n")
        seconds = run.get("execution_time")
        info: dict[str, Plain] = {"ended": str(status)[:_NOTE]}
        if isinstance(seconds, int | float):
            info["program_seconds"] = float(seconds)
        if status == _OVER_TIME:
            note = f"[the program was ended after {self._settings.timeout_s:g} s]"
            return ToolResult(f"{text}\n{note}".lstrip(), ToolOutcome.TIMEOUT, info=info)
        if status != _FINISHED or not isinstance(code, int):
            return self._no_run(f"{url} could not run it: {status}: {text[:_NOTE]}")
        info["exit_code"] = code
        return ToolResult(text, ToolOutcome.ERROR if code else ToolOutcome.OK, info=info)

    def _no_run(self, detail: str) -> ToolResult:
        info: dict[str, Plain] = {"detail": self._client.note(detail)}
        return ToolResult("python failed and gave no result.", ToolOutcome.FAILED, info=info)
