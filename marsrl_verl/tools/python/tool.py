"""The Python tool: a program in, what it prints out."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.core.sequence import Plain
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolUnavailableError,
    function_schema,
    read_key,
)
from marsrl_verl.tools.python.config import Backend, PythonConfig
from marsrl_verl.tools.python.isolation import Closed, IsolationError, open_pool
from marsrl_verl.tools.python.pool import READY_S, SandboxError
from marsrl_verl.tools.python.remote import RemoteRunner

_CODE = "code"
_WHY = {
    "timeout": "the program was ended after {0.timeout_s:g} s",
    "cpu": "the program was ended after {0.timeout_s:g} s of processor time",
    "memory": "the program was ended: it took more than {0.memory_mb} MiB of memory",
    "output": "the program was ended: it printed more than {0.output_mb} MiB",
    "killed": "the program was ended by the system",
}


class PythonTool(Tool):
    """Runs programs in sandboxes of this node or on a server."""

    Config = PythonConfig
    begin_s = 2 * READY_S

    def __init__(self, name: str, settings: PythonConfig, *, seed: int, key: str | None = None) -> None:
        self.name, self._settings, self._seed = name, settings, seed
        self._closed: Closed | None = None
        self._remote = RemoteRunner(settings, key) if settings.backend is Backend.REMOTE else None

    @classmethod
    def from_settings(
        cls, name: str, settings: PythonConfig, *, seed: int, secrets: Mapping[str, str]
    ) -> PythonTool:
        return cls(name, settings, seed=seed, key=secrets.get("key"))

    @classmethod
    def read_secrets(cls, settings: PythonConfig) -> Mapping[str, str]:
        return read_key(settings.remote, "remote") if settings.backend is Backend.REMOTE else {}

    def schema(self) -> Mapping[str, Any]:
        description = (
            "Run a Python program and read what it prints. Each call is a new program: nothing is kept from "
            "earlier ones. There is no network."
        )
        echoes = self._settings.echo and self._remote is None
        shown = " The value of a last line that is an expression is printed." if echoes else ""
        code = {"type": "string", "description": f"The program.{shown}"}
        return function_schema(self.name, description, {_CODE: code}, (_CODE,))

    async def start(self) -> None:
        if self._remote is not None:
            await self._remote.start()
            return
        try:
            self._closed = await open_pool(self._settings)
        except (IsolationError, SandboxError, OSError) as error:
            raise ToolUnavailableError(
                f"programs can't be isolated here as min_isolation = {self._settings.min_isolation} wants: "
                f"{error}. Allow what is missing (docs/guides/tools.md), set a lower min_isolation, or run "
                "them elsewhere (backend=remote)."
            ) from error

    def about(self) -> Mapping[str, Plain]:
        if self._closed is None:
            return {"backend": str(self._settings.backend), "urls": list(self._settings.remote.urls)}
        warning = self._closed.warning
        return {
            "backend": str(self._settings.backend),
            "isolation": str(self._closed.isolation),
            **self._closed.pool.facts,
            **({"warning": warning} if warning else {"passed_over": dict(self._closed.passed_over)}),
        }

    async def call(self, call: ToolCall) -> ToolResult:
        code, most = call.arguments[_CODE], self._settings.code_chars
        if len(code) > most:
            note = f"the program has {len(code)} characters and was not run; {most} are the most"
            return ToolResult(note, ToolOutcome.REFUSED)
        if self._remote is not None:
            return await self._remote.run(code, call.call_id)
        if self._closed is None:
            raise RuntimeError(f"the tool {self.name} was not started")
        seed = derive_seed(self._seed, "python", call.call_id)
        try:
            answer = await self._closed.pool.run(code, seed)
        except SandboxError as error:
            note = f"{self.name} failed and gave no result."
            return ToolResult(note, ToolOutcome.FAILED, info={"detail": str(error)})
        return self._result(answer)

    async def close(self) -> None:
        if self._closed is not None:
            self._closed.pool.close()
        if self._remote is not None:
            await self._remote.close()

    def _result(self, answer: Mapping[str, Any]) -> ToolResult:
        """Turns a supervisor's answer into a result that a model can read."""
        settings, why, omitted = self._settings, str(answer["why"]), int(answer["left_out"])
        text = str(answer["head"])
        if omitted:
            text += f"\n[… {omitted} bytes left out …]\n{answer['tail']}"
        info: dict[str, Plain] = {"ended": why, "program_seconds": float(answer["seconds"])}
        outcome = ToolOutcome.OK
        if why == "ended":
            outcome, note = _ending(answer["status"], info)
        else:
            outcome = ToolOutcome.TIMEOUT if why in ("timeout", "cpu") else ToolOutcome.ERROR
            note = _WHY[why].format(settings)
        if note:
            text = f"{text.rstrip()}\n[{note}]".lstrip()
        waited = float(answer["waited"])
        return ToolResult(text.rstrip("\n"), outcome, waited=waited, truncated=omitted > 0, info=info)


def _ending(status: int | None, info: dict[str, Plain]) -> tuple[ToolOutcome, str]:
    """The outcome of a program that ended by itself, and what its output does not say."""
    if status is None:
        return ToolOutcome.ERROR, _WHY["killed"]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {one.value: one.name for one in signal.Signals}
        info["signal"] = number
        return ToolOutcome.ERROR, f"the program ended with {known.get(number, f'signal {number}')}"
    code = os.waitstatus_to_exitcode(status)
    info["exit_code"] = code
    return (ToolOutcome.ERROR if code else ToolOutcome.OK), ""
