"""Pass rates of a method whose workflow calls tools: with training's tools, which start and end with
the command, its parser of calls, and what its evaluation tells the rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from preparing import pass_rates, prepare, report_of, right_once, sums, write_lines

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.settings.declaration import limits
from marsrl_verl.tools.base import Tool, ToolCall, ToolConfig, ToolResult, ToolUnavailableError

ASKED: list[str] = []
"""What became of the tool, and what it was asked."""


class AdderConfig(ToolConfig):
    more: int = limits(0, ge=0, why="it is added")


class Adder(Tool):
    """Adds two numbers, and `more`."""

    Config = AdderConfig
    starts: ClassVar[bool] = True

    def __init__(self, name, settings):
        self.name, self.settings = name, settings

    @classmethod
    def from_settings(cls, name, settings, *, seed, secrets):
        return cls(name, settings)

    def schema(self):
        number = {"type": "integer"}
        parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}

    async def start(self):
        if not self.starts:
            raise ToolUnavailableError("there is nothing to add with.")
        ASKED.append("started")

    async def call(self, call):
        ASKED.append(call.call_id)
        return ToolResult(str(call.arguments["a"] + call.arguments["b"] + self.settings.more))

    async def close(self):
        ASKED.append("closed")


class Adding:
    """A workflow: what the tool says decides whether the answer stands."""

    calls_tools = True

    async def run(self, request, context):
        assert request.inputs == {"protocol": "sums"}, "as its evaluation says"
        chat = context.conversation(0, request.role, request.messages)
        await chat.sample()
        parser = context.turn_parser("hermes")
        assert await parser.calls(chat.sequence().response_ids, context.tools.schemas) == []
        b = int(request.problem.question.partition("+")[2])
        call = ToolCall(context.tools.names[0], {"a": 1, "b": b}, f"{request.group_id}#0/0")
        result = await context.tools.call(call)
        one = chat.trajectory()
        (one.reward,) = await context.score([one])
        if int(result.text) != int(request.problem.ground_truth) + 1:
            one.reward = RewardResult(0.0)
        return RolloutOutput(request.group_id, [one])


class SumsEvaluation(SingleRole):
    """Tells the rewards something."""

    def program(self, run):
        asked = self.prompts.problem(run.problem)
        yield run.request(self.role, self.role, asked, rollout=self.rollout, inputs={"protocol": "sums"})


class Counting(MarsRL):
    @classmethod
    def stages(cls, config):
        return tuple(replace(one, rollout=Adding) for one in super().stages(config))

    @classmethod
    def evaluation(cls, config, evaluation, prompts):
        return SumsEvaluation("solver", prompts, cls.stages(config)[0].workflow)


@pytest.fixture(autouse=True)
def nothing_asked():
    ASKED.clear()


@pytest.fixture
def run(tmp_path, output):
    """Runs the command; its exit status."""
    adder = "marsrl.tools.adder"
    tool = (f"+{adder}.target={__name__}:Adder", f"+{adder}.more=1")
    words = ("-k", "2", "--max-pass-rate", "1", f"marsrl.algo.name={__name__}:Counting", *tool)
    source = write_lines(tmp_path / "sums.jsonl", sums(3))
    return lambda: prepare(source, output, right_once(), *words)


def test_the_program_has_trainings_tools(run, output):
    assert run() == 0
    assert (ASKED[0], ASKED[-1]) == ("started", "closed")
    assert len(ASKED) == 2 + 3 * 2 and len(set(ASKED)) == len(ASKED), "one call for each answer"
    assert set(pass_rates(output / "train.parquet").values()) == {1.0}, "what the tool adds decides"
    settings = report_of(output)["settings"]
    assert settings["marsrl.tools"]["adder"]["more"] == 1, "grades of other tools are not used again"


def test_a_tool_that_cannot_start_ends_the_command(run, output, capsys, monkeypatch):
    monkeypatch.setattr(Adder, "starts", False)
    assert run() == 1
    assert "marsrl.tools.adder: there is nothing to add with." in capsys.readouterr().err
    assert "started" not in ASKED and not (output / "train.parquet").exists()
