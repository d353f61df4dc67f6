"""`marsrl.tools`: typed by the class that an entry names, checked before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from messages import assert_checks_refuse, refusals
from omegaconf import OmegaConf

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.config.checks.tools import longest_s
from marsrl_verl.config.node import converted_node, node_issues, read_settings
from marsrl_verl.config.resume_rules import Rule, rule_of
from marsrl_verl.rollout.single_call import SingleCall
from marsrl_verl.settings.declaration import limits
from marsrl_verl.tools.base import Tool, ToolConfig, ToolResult, ToolUnavailableError, function_schema
from marsrl_verl.tools.browser.config import SummaryEndpoint
from marsrl_verl.tools.python.config import Isolation, PythonConfig


class LuckConfig(ToolConfig):
    """A die."""

    sides: int = limits(6, ge=2, why="one side is no die")
    """Sides."""
    broken: bool = False
    """Whether it can't start."""
    key: bool = False
    """Whether it needs a key that nobody has."""


class Luck(Tool):
    Config = LuckConfig

    def __init__(self, name, settings):
        self.name, self.settings = name, settings

    @classmethod
    def from_settings(cls, name, settings, *, seed, secrets):
        return cls(name, settings)

    @classmethod
    def read_secrets(cls, settings):
        if settings.key:
            raise ToolUnavailableError("LUCK_KEY is not set. export LUCK_KEY=…")
        return {}

    def schema(self):
        return function_schema(self.name, "Rolls.", {})

    async def start(self):
        if self.settings.broken:
            raise ToolUnavailableError("the die is lost. Find it.")

    async def call(self, call):
        return ToolResult("4")


class Counter(Luck):
    keeps_state = True


class ForkedCounter(Counter):
    def fork(self, parent, child, calls):
        raise AssertionError("not run here")


class Agent:
    calls_tools = pauses = True

    async def run(self, request, context):
        return await SingleCall().run(request, context)


class Agents(MarsRL):
    @classmethod
    def stages(cls, config):
        return tuple(replace(one, rollout=Agent) for one in super().stages(config))


class ForkingAgent(Agent):
    @classmethod
    def forks(cls, settings):
        return settings.group_size > 2


class ForkingAgents(MarsRL):
    @classmethod
    def stages(cls, config):
        return tuple(replace(one, rollout=ForkingAgent) for one in super().stages(config))


LUCK, METHOD = f"{__name__}:Luck", {"marsrl.algo.name": f"{__name__}:Agents"}
FORKING = {"marsrl.algo.name": f"{__name__}:ForkingAgents"}
DIE = "marsrl.tools.die"
ROLLED = {**METHOD, f"{DIE}.target": LUCK}

REFUSED = refusals(
    f"""
    no target | METHOD {DIE}.max_concurrency=3 | {DIE}.target | No tool is named.
    no class | METHOD {DIE}.target=test_tool_settings:Nothing | has no 'Nothing'
    an unknown setting | ROLLED {DIE}.side=4 | {DIE}.side | Did you mean {DIE}.sides?
    another tool's setting | ROLLED {DIE}.memory_mb=4 | {DIE}.memory_mb | There is no such key.
    out of its range | ROLLED {DIE}.sides=1 | one side is no die
    of another kind | ROLLED {DIE}.sides=six | a whole number
    no entry | METHOD {DIE}=3 | {DIE} | wrong type
    no name | METHOD 'marsrl.tools.two words.target={LUCK}' | No model could call it
    nobody calls it | {DIE}.target={LUCK} | call no tools
    longer than a round stands still | ROLLED {DIE}.retries=9 {DIE}.timeout_s=400.0
        | marsrl.run.progress_timeout_s above 4
    no key | ROLLED {DIE}.key=true | {DIE}.target | LUCK_KEY is not set
    it can't start | ROLLED {DIE}.broken=true | {DIE}.target | The die is lost.
    state that forks do not have | FORKING {DIE}.target=test_tool_settings:Counter | {DIE}.target
        | forks would read of other calls
    state that another worker does not have
        | METHOD {DIE}.target=test_tool_settings:Counter marsrl.pipeline.max_segments=2 | {DIE}.target
        | Set marsrl.pipeline.max_segments=1
    without effect
        | METHOD marsrl.tools.python.target=python marsrl.tools.python.remote.urls=[http://a]
        | marsrl.tools.python.backend = local
    """,
    METHOD=METHOD,
    ROLLED=ROLLED,
    FORKING=FORKING,
)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


def test_a_tool_that_is_called_and_starts_is_accepted(checked):
    checked({**ROLLED, f"{DIE}.sides": 20})


@pytest.mark.parametrize(
    ("method", "counter"),
    [(METHOD, "Counter"), (FORKING, "ForkedCounter"), ({**FORKING, "marsrl.algo.group_size": 2}, "Counter")],
)
def test_state_is_accepted_where_nothing_is_forked_or_the_tool_follows(checked, method, counter):
    checked({**method, f"{DIE}.target": f"{__name__}:{counter}"})


def plain(composed: Any, **tools: Any) -> dict[str, Any]:
    node: Any = OmegaConf.to_container(composed.config.marsrl, resolve=True)
    node["algo"] = {"name": METHOD["marsrl.algo.name"]}
    return {**node, "tools": tools, "roles": {}, "reward": {}, "evaluation": {}}


def test_settings_are_of_the_tools_own_class(composed):
    node = plain(
        composed,
        die={"target": LUCK, "sides": "20"},
        python={"target": "python", "isolation": "landlock", "remote": {"compile_timeout_s": 3}},
    )
    assert node_issues(node) == []
    assert converted_node(node)["tools"]["die"] == {"target": LUCK, "sides": 20}
    tools = read_settings(node).tools
    assert type(tools["die"]) is LuckConfig and tools["die"].sides == 20
    assert type(tools["python"]) is PythonConfig and tools["python"].isolation is Isolation.LANDLOCK
    assert tools["python"].remote.compile_timeout_s == 3.0 and tools["python"].remote.urls == []
    assert read_settings(plain(composed)).tools == {}


def test_an_interpolated_target_is_looked_at_when_it_is_resolved(composed):
    node = plain(composed, die={"target": "${marsrl.x}", "sides": 20})
    assert node_issues(node, kinds_only=True) == []


def test_the_longest_call_has_all_attempts_and_pauses():
    one = LuckConfig(target=LUCK, timeout_s=10.0, retries=3, backoff_s=8.0)
    assert longest_s("die", one) == 4 * 10 + 8 + 16 + 30


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("max_concurrency", Rule.ACTS),
        ("retries", Rule.ACTS),
        ("timeout_s", Rule.FOLDER),
        ("memory_mb", Rule.FOLDER),
    ],
)
def test_what_may_change_when_a_run_continues(key, rule):
    assert rule_of(f"marsrl.tools.python.{key}") is rule


def test_where_the_summariser_is_may_change_when_a_run_continues():
    """As for every endpoint: address and patience may, the model and how it answers may not."""
    rules = {
        name: rule_of(f"marsrl.tools.browser.summary.endpoint.{name}")
        for name in SummaryEndpoint.model_fields
    }
    answers = {"model", "temperature", "top_p", "max_tokens", "extra_body"}
    assert {name for name, rule in rules.items() if rule is not Rule.ACTS} == answers
