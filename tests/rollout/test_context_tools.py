"""`context.tools`: what a workflow may call."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from scripted_client import request, runner

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.tools.base import Tool, ToolCall, ToolConfig, ToolResult, function_schema
from marsrl_verl.tools.toolbox import Toolbox, event

SAMPLING = {"solver": Sampling(max_new_tokens=8, max_prompt_tokens=99)}


class Adder(Tool):
    name = "add"

    def __init__(self) -> None:
        self.running: set[str] = set()

    def schema(self):
        return function_schema(
            "add", "Adds.", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ("a", "b")
        )

    async def call(self, call):
        self.running.add(call.call_id)
        try:
            await asyncio.sleep(0.01)
        finally:
            self.running.discard(call.call_id)
        more = call.tools_kwargs.get("add", {}).get("more", 0)
        return ToolResult(str(call.arguments["a"] + call.arguments["b"] + more))


class Sums:
    """Adds in each trajectory, and logs what was executed."""

    calls_tools = True

    async def run(self, request, context):
        async def one(k: int) -> Trajectory:
            trajectory_id = f"{request.group_id}#{k}"
            call = ToolCall("add", {"a": k, "b": 1}, f"{trajectory_id}/0")
            result = await context.tools.call(call)
            seen = {"names": context.tools.names, **event(call, result)}
            return Trajectory(trajectory_id, [], FinishReason.STOP, text=result.text, events=[seen])

        return RolloutOutput(request.group_id, list(await asyncio.gather(*map(one, range(request.n)))))


class Leaves:
    """Raises while another task of it still wants to call."""

    calls_tools = True

    def __init__(self) -> None:
        self.late: list[BaseException | ToolResult] = []

    async def run(self, request, context):
        async def later() -> None:
            try:
                await context.tools.call(ToolCall("add", {"a": 1, "b": 1}, "x/0"))
                await asyncio.sleep(0.03)
                self.late.append(await context.tools.call(ToolCall("add", {"a": 1, "b": 1}, "x/1")))
            except asyncio.CancelledError as error:
                self.late.append(error)

        self.task = asyncio.ensure_future(later())
        await asyncio.sleep(0)
        raise RuntimeError("gives up")


def run(program, tool: Adder | None = None, row: dict | None = None) -> RolloutOutput:
    async def whole() -> RolloutOutput:
        more = {}
        if tool is not None:
            more["tools"] = Toolbox([(tool, ToolConfig(target="tests:Adder"))])
            await more["tools"].start()
        asked = request(rollout="own")
        asked = replace(asked, problem=replace(asked.problem, extra_info=row or {}))
        output = await runner(None, workflows={"own": lambda: program}, **more).run(asked, SAMPLING)
        if task := getattr(program, "task", None):
            await asyncio.wait({task})
        return output

    return asyncio.run(whole())


def test_a_program_calls_tools_and_logs_what_was_executed():
    output = run(Sums(), Adder())
    assert [one.text for one in output.trajectories] == ["1", "2"]
    assert [one.events[0]["executed"] for one in output.trajectories] == [True, True]
    seen = output.trajectories[1].events[0]
    assert (seen["names"], seen["arguments"]) == (("add",), {"a": 1, "b": 1})


def test_a_tool_is_told_what_the_dataset_row_says_for_it():
    output = run(Sums(), Adder(), {"tools_kwargs": {"add": {"more": 10}}})
    assert [one.text for one in output.trajectories] == ["11", "12"]
    assert [one.text for one in run(Sums(), Adder(), {"tools_kwargs": None}).trajectories] == ["1", "2"]


def test_a_request_that_has_failed_calls_nothing_more():
    tool, program = Adder(), Leaves()
    output = run(program, tool)
    assert {one.finish for one in output.trajectories} == {FinishReason.ERROR}
    assert not tool.running
    (late,) = program.late
    assert isinstance(late, asyncio.CancelledError)


def test_a_run_without_tools_has_an_empty_toolbox():
    (one, _) = run(Sums()).trajectories
    assert one.text == "There is no tool 'add'; there are none."
    assert (one.events[0]["names"], one.events[0]["executed"]) == ((), False)
