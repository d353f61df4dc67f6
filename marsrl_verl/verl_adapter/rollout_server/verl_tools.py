"""Tools written for verl: `BaseTool` in a tool configuration, functions with `@function_tool`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marsrl_verl.core.sequence import Plain
from marsrl_verl.tools.base import Tool, ToolCall, ToolConfig, ToolOutcome, ToolResult, ToolUnavailableError

_BACK_END = (OSError, TimeoutError, asyncio.TimeoutError)
"""Errors of tools whose connection fails: clients of HTTP have errors of their own below `OSError`."""
_FILES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Those among them that a tool's own files raise, as a repeated call would again."""


class VerlToolConfig(ToolConfig):
    """A tool written for verl. The entry's name is the tool's in its schema; of a file with several, each
    that rollouts may call has an entry. One of the two paths is set."""

    verl_config_path: str | None = None
    """verl's tool configuration (YAML with `tools`: `class_name`, `config`, `tool_schema`), in which the tool
    is named."""
    verl_function_path: str | None = None
    """A Python file with functions under verl's `@function_tool`, in place of `verl_config_path`."""


@lru_cache
def _loaded(config_path: str | None, function_path: str | None) -> Mapping[str, Any]:
    """The tools of a file by name, made once in this process however many entries name it."""
    from verl.tools.tool_registry import load_all_tools

    return {one.name: one for one in load_all_tools(config_path, function_path)}


class VerlTool(Tool):
    """One tool of verl's. Upstream behaviour: `ToolAgentLoop._call_tool` makes an instance for each call
    (`create`), executes and releases it; what a tool raises becomes its answer. Functions get the arguments
    alone."""

    Config = VerlToolConfig
    starts_in_launcher = False  # it would import verl, and whatever the tool needs

    def __init__(self, name: str, settings: VerlToolConfig) -> None:
        self.name, self._settings = name, settings
        self._tool: Any = None

    @classmethod
    def from_settings(
        cls, name: str, settings: VerlToolConfig, *, seed: int, secrets: Mapping[str, str]
    ) -> VerlTool:
        """See `Tool`."""
        return cls(name, settings)

    def schema(self) -> Mapping[str, Any]:
        """See `Tool`."""
        return self._tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)

    async def start(self) -> None:
        """See `Tool`."""
        paths = self._settings.verl_config_path, self._settings.verl_function_path
        given_paths = [one for one in paths if one is not None]
        if len(given_paths) != 1:
            raise ToolUnavailableError("set verl_config_path or verl_function_path, one of them.")
        if not Path(given_paths[0]).expanduser().is_file():
            raise ToolUnavailableError(f"there is no file {given_paths[0]}.")
        config_path, function_path = (None if one is None else str(Path(one).expanduser()) for one in paths)
        try:
            known = _loaded(config_path, function_path)
        except Exception as error:
            raise ToolUnavailableError(
                f"verl can't load the tools of {given_paths[0]}: {type(error).__name__}: {error}. "
                "Correct the file."
            ) from error
        if self.name not in known:
            listed = ", ".join(known) or "none"
            raise ToolUnavailableError(
                f"{given_paths[0]} has no tool {self.name!r}. Name the entry as one of: {listed}."
            )
        self._tool = known[self.name]

    def about(self) -> Mapping[str, Plain]:
        """See `Tool`."""
        kind = type(self._tool)
        return {"verl_tool": f"{kind.__module__}.{kind.__qualname__}"}

    async def call(self, call: ToolCall) -> ToolResult:
        """See `Tool`."""
        from verl.tools.function_tool import FunctionTool, normalize_function_tool_return

        arguments = dict(call.arguments)
        try:
            if isinstance(self._tool, FunctionTool):
                response, reward, metrics = normalize_function_tool_return(await self._tool.call(arguments))
            else:
                response, reward, metrics = await self._executed(call, arguments)
        except Exception as error:
            if isinstance(error, _BACK_END) and not isinstance(error, _FILES):
                raise  # a back end that is gone may come back
            text = f"Error executing tool {self.name!r}: {error}"
            detail = f"{type(error).__name__}: {error}"
            return ToolResult(text, ToolOutcome.ERROR, info={"detail": detail})
        if response.image or response.video:
            text = f"Error executing tool {self.name!r}: it answered with images or videos, not with text"
            return ToolResult(text, ToolOutcome.ERROR)
        info = {"reward": float(reward or 0.0), "metrics": _plain(metrics or {})}
        return ToolResult(response.text or "", info=info)

    async def _executed(self, call: ToolCall, arguments: dict[str, Any]) -> tuple[Any, float, Any]:
        # What verl hands over for the trajectory: tools read its id there.
        request_id, tools_kwargs = call.call_id.rpartition("/")[0], dict(call.tools_kwargs)
        agent_data = SimpleNamespace(request_id=request_id, tools_kwargs=tools_kwargs)
        # A column of Parquet has every row's keys: what a row does not say is null.
        own = tools_kwargs.get(self.name) or {}
        instance_id, _ = await self._tool.create(create_kwargs=own.get("create_kwargs") or {})
        try:
            return await self._tool.execute(instance_id, arguments, agent_data=agent_data)
        finally:
            await self._tool.release(instance_id)


def _plain(value: Any) -> Plain:
    """A value that a checkpoint can hold, with anything else in it as text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if type(value) in (str, int, float, bool, type(None)) else str(value)
