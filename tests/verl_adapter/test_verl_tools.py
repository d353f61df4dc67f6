"""Tools written for verl, as its users write them, behind our interface."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

from verl.experimental.agent_loop import tool_agent_loop
from verl.tools import tool_registry

from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.registry import tool_class
from marsrl_verl.tools.toolbox import Toolbox
from marsrl_verl.verl_adapter.rollout_server import verl_tools

MODULE = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

LOG = []
ERRORS = {"boom": ValueError("no such word"), "gone": ConnectionError("back end gone"),
          "file": FileNotFoundError(2, "No such file"), "locked": PermissionError("locked")}

class Counter(BaseTool):
    async def create(self, instance_id=None, create_kwargs=None, **kwargs):
        LOG.append(("create", create_kwargs))
        return await super().create(instance_id)

    async def execute(self, instance_id, parameters, **kwargs):
        LOG.append(("execute", parameters, kwargs["agent_data"].request_id))
        if parameters["word"] in ERRORS:
            raise ERRORS[parameters["word"]]
        if parameters["word"] == "image":
            return ToolResponse(image=[1]), 0.0, {}
        count = parameters["word"].count(self.config["letter"])
        return ToolResponse(text=f"{count}"), 0.5, {"count": count, "what": object}

    async def release(self, instance_id, **kwargs):
        LOG.append(("release",))
"""
CONFIG = """
tools:
  - class_name: own_verl_tools.Counter
    config: {type: native, letter: a}
    tool_schema:
      type: function
      function:
        name: count_a
        description: Counts the letter a.
        parameters:
          type: object
          properties: {word: {type: string, description: A word.}}
          required: [word]
"""
FUNCTIONS = '''
from verl.tools.function_tool import function_tool

@function_tool
def own_add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)

@function_tool
async def own_fail(a: int) -> str:
    """Fail.

    Args:
        a: A number.
    """
    raise RuntimeError("never works")
'''


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verl_tools")
    (folder / "own_verl_tools.py").write_text(MODULE)
    (folder / "tools.yaml").write_text(CONFIG)
    (folder / "functions.py").write_text(FUNCTIONS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


Called = tuple[ToolResult, Toolbox]


def call(name: str, arguments: dict[str, Any], given: Any = None, **settings: Any) -> Called:
    entries = {name: tool_class(name, "verl").Config(target="verl", backoff_s=0.0, **settings)}
    box = Toolbox.from_settings(entries, seed=1, secrets={})

    async def run() -> ToolResult:
        await box.start()
        return await box.call(ToolCall(name, arguments, "p1/agent.0#2/0", given or {}))

    return asyncio.run(run()), box


def count(files: Path, word: str, given: Any = None) -> Called:
    return call("count_a", {"word": word}, given, verl_config_path=str(files / "tools.yaml"), retries=2)


def log() -> list[tuple]:
    return sys.modules["own_verl_tools"].LOG


def test_a_base_tool_lives_for_one_call(files):
    result, box = count(files, "banana")
    assert (result.text, result.outcome) == ("3", ToolOutcome.OK)
    assert result.info["reward"] == 0.5 and result.info["metrics"] == {"count": 3, "what": "<class 'object'>"}
    assert log()[-3:] == [("create", {}), ("execute", {"word": "banana"}, "p1/agent.0#2"), ("release",)]
    assert box.schemas[0]["function"]["parameters"]["required"] == ["word"]
    assert box.about() == {"count_a": {"verl_tool": "own_verl_tools.Counter"}}


@pytest.mark.parametrize(
    ("given", "created"),
    [
        ({"count_a": {"create_kwargs": {"a": 3}}, "other": {"create_kwargs": {"a": 4}}}, {"a": 3}),
        ({"count_a": {"create_kwargs": None}}, {}),
        ({"count_a": None}, {}),
    ],
)
def test_a_tool_is_created_with_what_the_row_says_for_it(files, given, created):
    count(files, "banana", given)
    assert log()[-3] == ("create", created)


@pytest.mark.parametrize(
    ("word", "outcome", "attempts", "says"),
    [
        ("boom", ToolOutcome.ERROR, 1, "Error executing tool 'count_a': no such word"),
        ("gone", ToolOutcome.FAILED, 3, ""),
        ("image", ToolOutcome.ERROR, 1, "images"),
        ("file", ToolOutcome.ERROR, 1, "No such file"),
        ("locked", ToolOutcome.ERROR, 1, "locked"),
    ],
)
def test_the_model_reads_what_a_tool_raises_and_a_back_end_alone_is_asked_again(
    files, word, outcome, attempts, says
):
    result, _ = count(files, word)
    assert (result.outcome, result.attempts) == (outcome, attempts) and says in result.text
    assert log()[-1] == ("release",)


def test_functions_are_tools(files):
    path = str(files / "functions.py")
    result, box = call("own_add", {"a": 2, "b": 40}, verl_function_path=path)
    assert (result.text, result.outcome) == ("42", ToolOutcome.OK)
    assert box.schemas[0]["function"]["description"] == "Add two numbers."
    failed, _ = call("own_fail", {"a": 1}, verl_function_path=path)
    assert failed.outcome is ToolOutcome.ERROR
    assert failed.text == "Error executing tool 'own_fail': never works"
    refused, _ = call("own_add", {"a": 2, "c": 40}, verl_function_path=path)
    assert refused.outcome is ToolOutcome.REFUSED


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "one of them"),
        ({"verl_config_path": "a", "verl_function_path": "b"}, "one of them"),
        ({"verl_config_path": "/no/tools.yaml"}, "there is no file /no/tools.yaml"),
        ({"verl_config_path": "broken.yaml"}, "verl can't load the tools"),
        ({"verl_config_path": "tools.yaml"}, "Name the entry as one of: count_a"),
    ],
)
def test_what_keeps_it_from_starting_is_told(files, settings, told):
    broken = "tools:\n  - class_name: no_such_module.Tool\n    config: {type: native}\n"
    (files / "broken.yaml").write_text(broken)
    settings = {name: str(files / path) if ".yaml" in path else path for name, path in settings.items()}
    with pytest.raises(ToolUnavailableError, match=told):
        call("other", {}, **settings)


def test_verls_own_loop_calls_tools_in_the_same_order(files):
    """Upstream's `_call_tool` on the same tool: what ours stands for."""
    (tool,) = tool_registry.initialize_tools_from_config(str(files / "tools.yaml"))
    loop = tool_agent_loop.ToolAgentLoop.__new__(tool_agent_loop.ToolAgentLoop)
    loop.tools, loop.max_tool_response_length, loop.tool_response_truncate_side = {}, 100, "left"
    data = type("Data", (), {"_active_tools": {"count_a": tool}, "request_id": "r"})()
    asked = tool_agent_loop.FunctionCall(name="count_a", arguments='{"word": "banana"}')
    response, reward, _ = asyncio.run(loop._call_tool(asked, {}, data))
    ours, _ = count(files, "banana")
    assert (response.text, reward) == (ours.text, ours.info["reward"])
    assert [one[0] for one in log()[-6:]] == ["create", "execute", "release"] * 2
    assert verl_tools.VerlTool.starts_in_launcher is False
