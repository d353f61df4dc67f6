"""The tools of a rollout worker as its workflows see them: every call ends with a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tenacity import retry_if_result

from marsrl_verl.core.sanitize import one_line, valid_unicode
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Plain, check_plain
from marsrl_verl.machine.retry import repeated
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolConfig,
    ToolOutcome,
    ToolResult,
    ToolUnavailableError,
    head_and_tail,
)
from marsrl_verl.tools.registry import NODE, tool_class

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

LONGEST_PAUSE_S = 30.0
"""Most seconds between two attempts."""
GRACE_S = 0.5
"""Seconds beyond its time limit after which a call is cancelled that its tool has not ended itself."""
_CLEAN_UP_S = 1.0
"""Seconds for a cancelled call to release what it holds."""
LIMITED = "limited"
"""Key in `ToolResult.info`: the tool was not called because of its own limit of calls."""
_SHOWN = 120
"""Most characters of what a model wrote that a message repeats."""


class Toolbox:
    """The tools of one rollout worker.

    Args:
        tools: each with its settings.
        seed: the run's: pauses between attempts derive from it and from the call's id.
    """

    def __init__(self, tools: Sequence[tuple[Tool, ToolConfig]] = (), *, seed: int = 0) -> None:
        self._places = {tool.name: _Place(tool, config) for tool, config in tools}
        self._seed = seed
        if len(self._places) < len(tools):
            names = [tool.name for tool, _ in tools]
            raise ValueError(f"two tools have one name: {', '.join(sorted(names))}")

    @classmethod
    def from_settings(
        cls, tools: Mapping[str, ToolConfig], *, seed: int, secrets: Mapping[str, Mapping[str, str]]
    ) -> Toolbox:
        """The tools of `marsrl.tools`, not started.

        Args:
            tools: the entries by name.
            seed: the run's.
            secrets: by entry, what `read_all_secrets` has found.
        """
        made = []
        for name, config in tools.items():
            kind, own = tool_class(name, config.target), secrets.get(name, {})
            made.append((kind.from_settings(name, config, seed=seed, secrets=own), config))
        return cls(made, seed=seed)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that can be called."""
        return tuple(self._places)

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The OpenAI schemas, for chat templates."""
        return tuple(one.schema for one in self._places.values())

    async def start(self) -> None:
        """Starts all tools.

        Raises:
            ToolUnavailableError: one can't; those that could are closed.
        """
        starting = [one.start() for one in self._places.values()]
        ends = await asyncio.gather(*starting, return_exceptions=True)
        if any(ends):
            await self.close()
        for error in ends:
            if error is not None and not isinstance(error, Exception):
                raise error
        for name, error in zip(self._places, ends, strict=True):
            if error is not None:
                known = isinstance(error, ToolUnavailableError)
                what = str(error) if known else f"it failed to start with {type(error).__name__}: {error}"
                raise ToolUnavailableError(f"{NODE}.{name}: {what}")

    def about(self) -> dict[str, Plain]:
        """Facts about the started tools, by name."""
        return {name: dict(one.tool.about()) for name, one in self._places.items()}

    async def close(self) -> None:
        """Closes all tools, whatever one of them raises."""
        closing = [one.tool.close() for one in self._places.values()]
        for one in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, Exception):
                raise one

    async def call(self, call: ToolCall) -> ToolResult:
        """Does one call.

        Raises:
            asyncio.CancelledError: whoever waits for it was cancelled; the call is over then.
            ValueError: the tool's calls are limited, and the workflow does not count them.
        """
        place = self._places.get(call.name)
        if place is None:
            known = f"tools: {', '.join(self._places)}" if self._places else "there are none"
            note = f"There is no tool '{_short(call.name)}'; {known}."
            return ToolResult(note, ToolOutcome.REFUSED, attempts=0)
        if (wrong := place.misfit(call.arguments)) is not None:
            note = f"{call.name} was not called: {wrong}"
            return ToolResult(note, ToolOutcome.REFUSED, attempts=0)
        if (most := place.config.max_calls) is not None:
            if call.earlier is None:
                raise ValueError(f"{NODE}.{call.name}.max_calls: the program does not set ToolCall.earlier")
            if call.earlier >= most:
                note = f"No call of {call.name} is left (at most {most}). Go on without it."
                return ToolResult(note, ToolOutcome.REFUSED, attempts=0, info={LIMITED: True})
        submitted = time.monotonic()
        async with place.free:
            began = time.monotonic()
            result = await self._attempts(place, call)
            return replace(result, waited=result.waited + began - submitted)

    def fork(self, parent: str, child: str, calls: int) -> None:
        """Has trajectory `child` go on from where `parent` had made so many calls (`Tool.fork`)."""
        for place in self._places.values():
            if place.tool.keeps_state:
                place.tool.fork(parent, child, calls)

    async def _attempts(self, place: _Place, call: ToolCall) -> ToolResult:
        """Makes as many attempts as it takes; the place is kept during pauses, so that an overloaded back end
        gets fewer requests."""
        config, seconds, waited = place.config, 0.0, 0.0

        async def attempt() -> ToolResult:
            nonlocal seconds, waited
            began = time.monotonic()
            result = await place.attempt(call)
            seconds += time.monotonic() - began - result.waited
            waited += result.waited
            return result

        attempts = repeated(
            config.retries,
            config.backoff_s,
            longest_s=LONGEST_PAUSE_S,
            share=lambda number: derive_generator(self._seed, "tool pause", call.call_id, number).random(),
            again=retry_if_result(lambda result: result.outcome is ToolOutcome.FAILED),
        )
        result: ToolResult = await attempts(attempt)
        number = attempts.statistics["attempt_number"]
        return replace(result, seconds=seconds, waited=waited, attempts=number)


class _Place:
    """A tool with what limits it."""

    def __init__(self, tool: Tool, config: ToolConfig) -> None:
        self.tool, self.config = tool, config
        self.schema: Mapping[str, Any] = {}
        self.free = asyncio.Semaphore(config.max_concurrency)
        self._validator: Draft202012Validator | None = None

    async def start(self) -> None:
        """Starts the tool; ToolUnavailableError if it can't, or if nobody could call it by its schema."""
        await self.tool.start()
        self.schema = self.tool.schema()
        function = self.schema["function"]
        if function["name"] != self.tool.name:
            raise ToolUnavailableError(f"its schema names it {function['name']!r}: give the entry that name.")
        parameters = dict(function.get("parameters") or {"type": "object", "properties": {}})
        # What a schema does not name, a tool does not take: a slip of the model's that it should be told of.
        parameters.setdefault("additionalProperties", False)
        # Only runs with tools need them: they take a while to import.
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(parameters)
        except SchemaError as error:
            what = f"the schema of its parameters is none: {error.message}. Correct it."
            raise ToolUnavailableError(what) from error
        self._validator = Draft202012Validator(parameters)

    def misfit(self, arguments: Any) -> str | None:
        """Why arguments do not fit the schema; None where they do."""
        if self._validator is None:
            raise RuntimeError(f"the tool {self.tool.name} was not started")
        if not isinstance(arguments, Mapping):
            return f"expected arguments by name, found {_short(repr(arguments))}"
        from jsonschema.exceptions import best_match

        error = best_match(self._validator.iter_errors(dict(arguments)))
        if error is None:
            return None
        where = ".".join(str(one) for one in error.absolute_path)
        return _short(f"{where}: {error.message}" if where else error.message, 4 * _SHOWN)

    async def attempt(self, call: ToolCall) -> ToolResult:
        """One attempt, whatever the tool does."""
        task = asyncio.ensure_future(self._guarded(call))
        try:
            limit = self.config.timeout_s + self.tool.begin_s + GRACE_S
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            await _end(task)
            raise
        if not done:
            await _end(task)
            note = f"{call.name}: no result within {self.config.timeout_s:g} s"
            return ToolResult(note, ToolOutcome.TIMEOUT)
        if task.cancelled():
            return _failed(call, "it was cancelled")
        if (error := task.exception()) is not None:
            return _failed(call, f"{type(error).__name__}: {error}")
        return self._checked(call, task.result())

    async def _guarded(self, call: ToolCall) -> Any:
        try:
            return await self.tool.call(call)
        except (SystemExit, KeyboardInterrupt) as error:  # these would end the worker's event loop
            raise RuntimeError(f"it raised {type(error).__name__}") from error

    def _checked(self, call: ToolCall, result: Any) -> ToolResult:
        if not isinstance(result, ToolResult) or not isinstance(result.text, str):
            return _failed(call, f"it returned a {type(result).__name__}, expected a ToolResult with a text")
        try:
            check_plain(dict(result.info), f"{call.call_id}: info")
        except (TypeError, ValueError) as error:
            return _failed(call, str(error))
        text, cut = head_and_tail(result.text, self.config.max_output_chars)
        return replace(result, text=text, truncated=result.truncated or cut)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancels a call. One that goes on all the same is left behind: it must not hold up the others."""
    task.cancel()
    await asyncio.wait({task}, timeout=_CLEAN_UP_S)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _failed(call: ToolCall, detail: str) -> ToolResult:
    note = f"{call.name} failed and gave no result."
    return ToolResult(note, ToolOutcome.FAILED, info={"detail": valid_unicode(detail)})


def _short(text: str, limit: int = _SHOWN) -> str:
    shown = one_line(text[: 2 * limit])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


EMPTY = Toolbox()
"""Toolbox of a run without tools."""


def event(call: ToolCall, result: ToolResult) -> dict[str, Plain]:
    """A call as a trajectory's log has it (`Trajectory.events`), and whether the tool ran at all
    (`executed`): the text alone may claim calls that were never made."""
    return {
        "kind": "tool",
        "tool": call.name,
        "call_id": call.call_id,
        "arguments": _plain(call.arguments),
        "outcome": str(result.outcome),
        "executed": result.outcome is not ToolOutcome.REFUSED,
        "seconds": result.seconds,
        "waited": result.waited,
        "attempts": result.attempts,
        "truncated": result.truncated,
        "cached": result.cached,
        "info": dict(result.info),
    }


def _plain(value: Any) -> Plain:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def read_all_secrets(tools: Mapping[str, ToolConfig]) -> Mapping[str, Mapping[str, str]]:
    """The keys of all tools as the driver finds them, by entry, where one is wanted; ToolUnavailableError if
    one is not where the settings say."""
    found = {}
    for name, config in tools.items():
        try:
            found[name] = dict(tool_class(name, config.target).read_secrets(config))
        except ToolUnavailableError as error:
            raise ToolUnavailableError(f"{NODE}.{name}: {error}") from error
    return MappingProxyType({name: one for name, one in found.items() if one})
