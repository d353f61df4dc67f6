"""Programs on a server with the API of SandboxFusion: `POST <url>/run_code`."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from marsrl_verl.core.sequence import Plain
from marsrl_verl.tools.base import ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python.config import PythonConfig

_CONNECT_S = 10.0
_START_S = 15.0
_MOST_BYTES = 2**26
"""A longer answer is none."""
_NOTE = 300
_FINISHED, _OVER_TIME = "Finished", "TimeLimitExceeded"
"""What the server says of a run (`run_result.status`); a third value is Error."""


def read_remote_key(settings: PythonConfig) -> str | None:
    """The key of the server, where one is named.

    Raises:
        ToolUnavailableError: the variable is not set, or holds no key.
    """
    name = settings.remote.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise ToolUnavailableError(f"remote.api_key_env: {name} is not set. export {name}=…")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ToolUnavailableError(
            f"remote.api_key_env: {name} is more than one word of printable characters"
        )
    return key


class RemoteRunner:
    """Sends each program to the next of the servers. In one event loop."""

    def __init__(self, settings: PythonConfig, key: str | None) -> None:
        self._settings, self._key = settings, key
        self._session: aiohttp.ClientSession | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Ask every server to run a first program.

        Raises:
            ToolUnavailableError: one does not.
        """
        urls = self._settings.remote.urls
        if not urls:
            raise ToolUnavailableError("remote.urls names no server. Set it to [http://host:8080].")
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ToolUnavailableError(f"remote.urls: {url!r} is no URL; write it as http://host:8080")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else None
        self._session = aiohttp.ClientSession(headers=headers)
        for url in urls:
            try:
                result = await asyncio.wait_for(self._ask(url, "print(6 * 7)"), _START_S)
            except asyncio.TimeoutError:
                result = ToolResult(
                    "", ToolOutcome.FAILED, info={"detail": f"no answer within {_START_S:g} s"}
                )
            if result.outcome is not ToolOutcome.OK or result.text.strip() != "42":
                await self.close()
                found = result.info.get("detail") or result.text[:_NOTE]
                raise ToolUnavailableError(
                    f"{url} does not run a first program ({found}). Start SandboxFusion there, or correct "
                    "remote.urls."
                )

    async def run(self, code: str, call_id: str) -> ToolResult:
        """Run a program on the next server."""
        urls = self._settings.remote.urls
        return await self._ask(urls[next(self._numbers) % len(urls)], code)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, base: str, code: str) -> ToolResult:
        if self._session is None:
            raise RuntimeError("the remote back end was not started")
        url, settings = f"{base.rstrip('/')}/run_code", self._settings
        body = {
            "code": code,
            "language": "python",
            "run_timeout": settings.timeout_s,
            "compile_timeout": settings.remote.compile_timeout_s,
            "memory_limit_MB": settings.memory_mb,
        }
        limit = aiohttp.ClientTimeout(total=settings.timeout_s + 0.4, sock_connect=_CONNECT_S)
        try:
            async with self._session.post(
                url, json=body, timeout=limit, proxy=_proxy_for(url), allow_redirects=False
            ) as response:
                if response.status != 200:
                    note = (await response.content.read(_NOTE)).decode(errors="replace")
                    return self._failed(f"{url} answered HTTP {response.status}: {note}")
                data = await response.content.read(_MOST_BYTES)
                if not response.content.at_eof():
                    return self._failed(f"{url} answered more than {_MOST_BYTES} bytes")
                return self._read(url, _json(data))
        except asyncio.TimeoutError:
            note = f"[the program was ended after {settings.timeout_s:g} s]"
            return ToolResult(note, ToolOutcome.TIMEOUT, info={"ended": "timeout"})
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return self._failed(f"{url}: {type(error).__name__}: {error}")

    def _read(self, url: str, answer: Any) -> ToolResult:
        """The result in an answer of the server."""
        run = answer.get("run_result") if isinstance(answer, Mapping) else None
        if not isinstance(run, Mapping):
            said = answer.get("message") if isinstance(answer, Mapping) else answer
            return self._failed(f"{url} answered no run: {str(said)[:_NOTE]}")
        status, code = run.get("status"), run.get("return_code")
        parts = [run.get("stdout") or "", run.get("stderr") or ""]
        if not all(isinstance(one, str) for one in parts):
            return self._failed(f"{url} answered something else than text")
        text = "".join(parts).rstrip("\n")
        seconds = run.get("execution_time")
        info: dict[str, Plain] = {"ended": str(status)[:_NOTE]}
        if isinstance(seconds, int | float):
            info["program_seconds"] = float(seconds)
        if status == _OVER_TIME:
            note = f"[the program was ended after {self._settings.timeout_s:g} s]"
            return ToolResult(f"{text}\n{note}".lstrip(), ToolOutcome.TIMEOUT, info=info)
        if status != _FINISHED or not isinstance(code, int):
            return self._failed(f"{url} could not run it: {status}: {text[:_NOTE]}")
        info["exit_code"] = code
        return ToolResult(text, ToolOutcome.ERROR if code else ToolOutcome.OK, info=info)

    def _failed(self, detail: str) -> ToolResult:
        shown = detail.replace(self._key, "[api key]") if self._key else detail
        return ToolResult("python failed and gave no result.", ToolOutcome.FAILED, info={"detail": shown})


def _json(data: bytes) -> Any:
    import json

    return json.loads(data)


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
