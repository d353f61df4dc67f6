"""The Python tool, which takes a while and notes what it was asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

from marsrl_verl.tools.python.config import PythonConfig
from marsrl_verl.tools.python.tool import PythonTool


class NotedConfig(PythonConfig):
    """Where calls are noted."""

    notes: str
    """A file: `begin ID` and `end ID`, a line each."""


class NotedPython(PythonTool):
    """Half a second a call."""

    Config = NotedConfig

    async def call(self, call):
        notes = Path(self._settings.notes)
        with notes.open("a") as file:
            file.write(f"begin {call.call_id}\n")
        await asyncio.sleep(0.5)
        result = await super().call(call)
        with notes.open("a") as file:
            file.write(f"end {call.call_id}\n")
        return result
