"""The toolbox: every call ends with a result, whatever the tool or the model does."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import check_plain
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.tools import toolbox
from marsrl_verl.tools.base import (
    Tool,
    ToolCall,
    ToolConfig,
    ToolOutcome,
    ToolResult,
    ToolUnavailableError,
    function_schema,
    head_and_tail,
)
from marsrl_verl.tools.registry import tool_class
from marsrl_verl.tools.toolbox import EMPTY, Toolbox, event, read_all_secrets


class Scripted(Tool):
    """Answers as a function says."""

    def __init__(self, answer: Callable[[ToolCall], Any], name: str = "echo", **schema: Any) -> None:
        self.name, self.answer, self.closed, self.calls = name, answer, False, 0
        self.properties = schema or {"text": {"type": "string"}}

    def schema(self) -> Mapping[str, Any]:
        return function_schema(self.name, "Repeats.", self.properties, ("text",))

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls += 1
        found = self.answer(call)
        return await found if asyncio.iscoroutine(found) else found

    async def close(self) -> None:
        self.closed = True


def config(**settings: Any) -> ToolConfig:
    return ToolConfig(target="tests:Scripted", **{"backoff_s": 0.0, "timeout_s": 5.0, **settings})


def repeated(call: ToolCall) -> ToolResult:
    return ToolResult(call.arguments["text"])


def make_call(name: str = "echo", number: int = 0, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments or {"text": "hello"}, f"g#0/{number}")


async def started(tool: Tool, seed: int = 0, **settings: Any) -> Toolbox:
    box = Toolbox([(tool, config(**settings))], seed=seed)
    await box.start()
    return box


def call_once(tool: Tool, call: ToolCall, **settings: Any) -> ToolResult:
    async def run() -> ToolResult:
        return await (await started(tool, **settings)).call(call)

    return asyncio.run(run())


def test_tools_that_keep_state_are_told_of_forks():
    class Remembering(Scripted):
        keeps_state = True

        def fork(self, *given: Any) -> None:
            self.forked = given

    remembering = Remembering(repeated, "remembers")
    Toolbox([(Scripted(repeated), config()), (remembering, config())]).fork("g#0", "g#4", 2)
    assert remembering.forked == ("g#0", "g#4", 2)


def test_a_call_is_answered_and_timed():
    async def slow(call: ToolCall) -> ToolResult:
        await asyncio.sleep(0.05)
        return ToolResult("done", info={"hits": 3})

    result = call_once(Scripted(slow), make_call())
    assert (result.text, result.outcome, result.attempts) == ("done", ToolOutcome.OK, 1)
    assert 0.05 <= result.seconds < 2 and result.waited < 1
    assert result.info == {"hits": 3}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (make_call("shell"), "There is no tool 'shell'; tools: echo."),
        (make_call("sh\x1b[2Jell\n" * 500), "There is no tool 'sh\\x1b[2Jell sh"),
        (make_call(text=3), "text: 3 is not of type 'string'"),
        (make_call(query="x"), "'text' is a required property"),
        (make_call(text="a", more=1), "'more' was unexpected"),
        (ToolCall("echo", ["a"], "g#0/0"), "expected arguments by name"),
    ],
)
def test_what_does_not_fit_is_refused(call, told):
    tool = Scripted(repeated)
    result = call_once(tool, call)
    assert result.outcome is ToolOutcome.REFUSED
    assert told in result.text
    assert len(result.text) < 700 and "\x1b" not in result.text and "\n" not in result.text
    assert (result.attempts, tool.calls) == (0, 0)


def test_an_empty_toolbox_refuses():
    result = asyncio.run(EMPTY.call(make_call()))
    assert (result.outcome, result.text) == (ToolOutcome.REFUSED, "There is no tool 'echo'; there are none.")
    assert EMPTY.names == EMPTY.schemas == ()


def test_failures_are_repeated_and_errors_are_not():
    failing = Scripted(lambda _: ToolResult("gone", ToolOutcome.FAILED))
    result = call_once(failing, make_call(), retries=3)
    assert (failing.calls, result.attempts, result.outcome) == (4, 4, ToolOutcome.FAILED)

    def recovers(call: ToolCall) -> ToolResult:
        if passing.calls < 3:
            raise ConnectionError("gone")
        return ToolResult("back")

    passing = Scripted(recovers)
    assert call_once(passing, make_call(), retries=3).text == "back"
    wrong = Scripted(lambda _: ToolResult("no such page", ToolOutcome.ERROR))
    assert (call_once(wrong, make_call(), retries=3).attempts, wrong.calls) == (1, 1)


def test_pauses_double_and_derive_from_the_call(monkeypatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(toolbox.asyncio, "sleep", sleep)
    tool = Scripted(lambda _: ToolResult("", ToolOutcome.FAILED))
    for number in (0, 0, 1):
        call_once(tool, make_call(number=number), seed=7, retries=2, backoff_s=4.0)
    shares = [derive_generator(7, "tool pause", "g#0/0", k).random() for k in (1, 2)]
    golden = [4 * (0.5 + 0.5 * shares[0]), 8 * (0.5 + 0.5 * shares[1])]
    assert pauses[:2] == pauses[2:4] == golden
    assert pauses[4:] != golden
    pauses.clear()
    call_once(tool, make_call(), retries=3, backoff_s=1000.0)
    assert pauses == [toolbox.LONGEST_PAUSE_S] * 3


async def cancels_itself(call: ToolCall) -> ToolResult:
    raise asyncio.CancelledError


MISTAKES: dict[str, Callable[[ToolCall], Any]] = {
    "raises": lambda _: 1 / 0,
    "text": lambda _: "just text",
    "nothing": lambda _: None,
    "bytes": lambda _: ToolResult(b"bytes"),
    "info": lambda _: ToolResult("x", info={"what": object()}),
    "exit": lambda _: exit(3),
    "cancels itself": cancels_itself,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_whatever_a_tool_does_is_a_result(mistake):
    result = call_once(Scripted(MISTAKES[mistake]), make_call(), retries=0)
    assert result.outcome is ToolOutcome.FAILED
    assert result.text == "echo failed and gave no result."
    assert result.info["detail"]


def test_a_call_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(toolbox, "GRACE_S", 0.05)
    ended = []

    async def forever(call: ToolCall) -> ToolResult:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(call.call_id)

    result = call_once(Scripted(forever), make_call(), timeout_s=0.05, retries=3)
    assert (result.outcome, result.attempts) == (ToolOutcome.TIMEOUT, 1)
    assert ended == ["g#0/0"] and result.seconds < 2


def test_a_call_that_does_not_heed_its_end_is_left_behind(monkeypatch):
    monkeypatch.setattr(toolbox, "GRACE_S", 0.01)
    monkeypatch.setattr(toolbox, "_CLEAN_UP_S", 0.01)

    async def deaf(call: ToolCall) -> ToolResult:
        for _ in range(20):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return ToolResult("late")

    assert call_once(Scripted(deaf), make_call(), timeout_s=0.01).outcome is ToolOutcome.TIMEOUT


def test_whoever_waits_may_be_cancelled_and_the_call_is_over():
    running: set[str] = set()

    async def forever(call: ToolCall) -> ToolResult:
        running.add(call.call_id)
        try:
            await asyncio.sleep(60)
        finally:
            running.discard(call.call_id)

    async def run() -> None:
        box = await started(Scripted(forever), max_concurrency=1)
        for k, waits in enumerate([asyncio.ensure_future(box.call(make_call(number=k))) for k in (0, 1)]):
            await asyncio.sleep(0.01)
            assert running == {f"g#0/{k}"}  # when the first one is over its place is free
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
        assert not running

    asyncio.run(run())


@given(st.integers(1, 4), st.integers(1, 9))
def test_no_more_calls_at_a_time_than_allowed(max_concurrency, calls):
    at_once, most = 0, 0

    async def counted(call: ToolCall) -> ToolResult:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return repeated(call)

    async def run() -> list[ToolResult]:
        box = await started(Scripted(counted), max_concurrency=max_concurrency)
        return await asyncio.gather(*[box.call(make_call(number=k, text=str(k))) for k in range(calls)])

    results = asyncio.run(run())
    assert [one.text for one in results] == [str(k) for k in range(calls)]
    assert most == min(max_concurrency, calls)


@given(st.text(), st.integers(64, 200))
def test_long_texts_keep_head_and_tail(text, limit):
    short, cut = head_and_tail(text, limit)
    assert len(short) <= limit
    assert cut == (len(text) > limit)
    short.encode()
    head, tail = (short.split("\n[…")[0], short.rsplit("…]\n", 1)[1]) if cut else (short, text)
    assert text.startswith(head) and text.endswith(tail)


def test_output_is_cut_to_the_tools_limit():
    result = call_once(
        Scripted(lambda _: ToolResult("a" * 500 + "b" * 500)), make_call(), max_output_chars=100
    )
    assert result.truncated and len(result.text) == 100
    assert result.text.startswith("aaaa") and result.text.endswith("bbbb") and "900 characters" in result.text


def test_a_tool_that_cannot_start_says_so_and_the_others_are_closed():
    class Broken(Scripted):
        async def start(self) -> None:
            raise self.answer

    unavailable = ToolUnavailableError("there is no corpus. Build one.")
    raised = (unavailable, "there is no corpus"), (KeyError("x"), "it failed to start with KeyError")
    for error, told in raised:
        good = Scripted(repeated, "good")
        box = Toolbox([(good, config()), (Broken(error, "broken"), config())])
        with pytest.raises(ToolUnavailableError, match=rf"marsrl\.tools\.broken: {told}"):
            asyncio.run(box.start())
        assert good.closed


def test_schemas_and_names_that_do_not_fit_are_refused():
    with pytest.raises(ToolUnavailableError, match="the schema of its parameters is none"):
        asyncio.run(started(Scripted(repeated, text={"type": "no such type"})))
    tool = Scripted(repeated)
    tool.schema = lambda: function_schema("other", "", {})
    with pytest.raises(ToolUnavailableError, match="its schema names it 'other'"):
        asyncio.run(started(tool))
    with pytest.raises(ValueError, match="two tools have one name"):
        Toolbox([(tool, config()), (tool, config())])


def test_events_are_plain_and_tell_what_was_executed():
    call = ToolCall("echo", {"text": "x", "list": (1, {"a": None})}, "g#0/3")
    line = event(call, ToolResult("y", ToolOutcome.TIMEOUT, seconds=1.5, info={"n": 1}))
    check_plain(line, "event")
    assert json.loads(json.dumps(line)) == {
        "kind": "tool", "tool": "echo", "call_id": "g#0/3",
        "arguments": {"text": "x", "list": [1, {"a": None}]}, "outcome": "timeout", "executed": True,
        "seconds": 1.5, "waited": 0.0, "attempts": 1, "truncated": False, "cached": False, "info": {"n": 1},
    }  # fmt: skip
    assert event(call, ToolResult("", ToolOutcome.REFUSED))["executed"] is False


class Whole(Scripted):
    @classmethod
    def from_settings(cls, name, settings, *, seed, secrets):
        return cls(repeated, name)

    @classmethod
    def read_secrets(cls, settings):
        return {"key": "k"} if settings.max_concurrency == 1 else {}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (f"{__name__}:config", "is no tool"),
        (f"{__name__}:Scripted", "does not define from_settings"),
        ("no_such_module_here:Tool", "There is no module"),
    ],
)
def test_what_is_no_tool_is_told_with_its_key(target, told):
    with pytest.raises(ConfigError) as refused:
        tool_class("mine", target)
    (problem,) = refused.value.problems
    assert problem.key == "marsrl.tools.mine.target" and problem.value == target
    assert told in f"{problem.what} {problem.fix}"


def test_a_toolbox_is_made_from_settings_and_secrets():
    target = f"{__name__}:Whole"
    tools = {"a": ToolConfig(target=target, max_concurrency=1), "b": ToolConfig(target=target)}
    assert read_all_secrets(tools) == {"a": {"key": "k"}}
    box = Toolbox.from_settings(tools, seed=1, secrets={})
    asyncio.run(box.start())
    assert box.names == ("a", "b")
    assert [one["function"]["name"] for one in box.schemas] == ["a", "b"]
    assert asyncio.run(box.call(make_call("b", text="x"))).text == "x"


def test_the_documentations_tool_works():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "tools.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from.*?)```", text, re.DOTALL)
    module = ModuleType("documented_tool")
    exec(compile(code, "docs/guides/tools.md", "exec", dont_inherit=True), vars(module))
    sys.modules["documented_tool"] = module
    try:
        kind = tool_class("die", "documented_tool:Die")
        config = kind.Config(target="documented_tool:Die", sides=2)
        box = Toolbox.from_settings({"die": config}, seed=1, secrets={})
        asyncio.run(box.start())
        rolled = asyncio.run(box.call(make_call("die", times=9)))
        assert set(rolled.text.split()) <= {"1", "2"} and len(rolled.text.split()) == 9
        assert asyncio.run(box.call(make_call("die", times=0))).outcome is ToolOutcome.ERROR
    finally:
        del sys.modules["documented_tool"]
