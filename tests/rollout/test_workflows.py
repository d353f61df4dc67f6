"""How workflows are found and built, and what of their trajectories is scored."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted_client import request, runner

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.testing.client import ScriptedClient

LIMITS = {"solver": Sampling(10, 10)}


class Configured:
    """A program with a setting, whose one trajectory calls a tool."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    @classmethod
    def from_settings(cls, settings) -> Configured:
        return cls(settings.algo.calls)

    async def run(self, request, context) -> RolloutOutput:
        events = [{"tool": "search"}] * self.calls
        one = Trajectory(
            f"{request.group_id}#0", [Sequence("solver", [1], [2], [0.0])], FinishReason.LIMIT,
            detail="call_limit", events=events,
        )  # fmt: skip
        (one.reward,) = await context.score([one])
        return RolloutOutput(request.group_id, [one])


class Outer:
    class Inner(Configured):
        """One that lies in another class."""


class Lame:
    """No program."""


def test_a_program_is_built_once_from_the_settings_of_the_run():
    settings = SimpleNamespace(algo=SimpleNamespace(calls=2))
    made = runner(ScriptedClient(lambda _: ""), settings=settings)
    item = request(n=1, rollout=Stage("talk", "solver", 1, rollout=Outer.Inner).workflow)
    first = asyncio.run(made.run(item, LIMITS))
    settings.algo.calls = 7
    second = asyncio.run(made.run(replace(item, group_id="p2/solver.0"), LIMITS))
    assert [len(output.trajectories[0].events) for output in (first, second)] == [2, 2]


def test_a_reward_sees_what_happened_and_why_it_ended():
    scored: list[ScoreRequest] = []

    async def score(item, trajectories):
        scored.extend(ScoreRequest.of(item, one) for one in trajectories)
        return [RewardResult(0.0) for _ in trajectories]

    made = runner(ScriptedClient(lambda _: ""), settings=SimpleNamespace(algo=SimpleNamespace(calls=1)))
    made.score = score
    asyncio.run(made.run(request(n=1, rollout=f"{__name__}:Configured"), LIMITS))
    (one,) = scored
    assert (one.events, one.detail) == ([{"tool": "search"}], "call_limit")
    assert one.finish_reason is FinishReason.LIMIT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tree", "there is no workflow 'tree'; known: single_call"),
        ("no_such_module:A", "can't be loaded: There is no module 'no_such_module'$"),
        (f"{__name__}:Absent", "can't be loaded: .* no attribute 'Absent'"),
        (f"{__name__}:Outer.Absent", "can't be loaded: .*'Outer' has no attribute 'Absent'"),
        (f"{__name__}:f.<locals>.A", "f.<locals>.A' is defined in a function, where no worker finds it"),
        (f"{__name__}:Lame", "Lame has no method `run`"),
    ],
)
def test_what_is_no_program_is_refused_by_name(name, message):
    with pytest.raises(ValueError, match=message):
        find_workflow(name)


def test_a_program_knows_how_many_tokens_there_are():
    class Counting:
        async def run(self, item, context):
            one = context.conversation(0, item.role, item.messages)
            found = one.trajectory(finish=FinishReason.STOP, events=[{"vocabulary": context.vocab_size}])
            return RolloutOutput(item.group_id, [found])

    client = ScriptedClient(lambda _: "")
    found = asyncio.run(runner(client, workflows={"own": Counting}).run(request(n=1, rollout="own"), LIMITS))
    assert found.trajectories[0].events == [{"vocabulary": len(client.tokenizer)}]
