"""An exception in a workflow or in a tool of it is data, until a program fails on everything."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
from scripted_client import request, runner
from scripted_workflows import ToolLoop

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import check_plain
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput
from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.testing.client import ScriptedClient

LIMITS = {"solver": Sampling(40, 40), "agent": Sampling(40, 40, segment_tokens=5)}


class Brittle:
    """A tool fails for trajectory 0 of the groups that are named `bad`; the others ask again and again."""

    async def run(self, item, context):
        episodes = [self.episode(k, item, context) for k in range(item.n)]
        members = list(await asyncio.gather(*episodes))
        for one, reward in zip(members, await context.score(members), strict=True):
            one.reward = reward
        return RolloutOutput(item.group_id, members)

    async def episode(self, k, item, context):
        one = context.conversation(k, item.role, item.messages)
        await one.sample(max_tokens=1)
        if item.group_id.startswith("bad") and k == 0:
            raise KeyError("tool")
        while (await one.sample(max_tokens=1)).finish is FinishReason.LENGTH and one.tokens_left:
            pass
        return one.trajectory()


class LateFailure(ToolLoop):
    """Fails in its second round."""

    async def run(self, item, context):
        if item.resume is not None:
            raise RuntimeError("lost")
        return await super().run(item, context)


class Forgetful:
    async def run(self, item, context):
        return None


class Incomplete(Brittle):
    """Leaves out its last trajectory."""

    times = 1

    async def run(self, item, context):
        output = await super().run(item, context)
        return RolloutOutput(item.group_id, output.trajectories[:1] * self.times)


class Twice(Incomplete):
    """Brings one trajectory in the place of all."""

    times = 2


PROGRAMS = {one.__name__: one for one in (Brittle, LateFailure, Forgetful, Incomplete, Twice)}


def rounds(*items, client=None, **more):
    made = runner(client or ScriptedClient(lambda _: "x" * 30 + "</s>"), workflows=PROGRAMS, **more)

    async def together():
        return await asyncio.gather(*[made.run(item, LIMITS) for item in items])

    return asyncio.run(together())


def item(group_id: str, program: str = "Brittle", **more):
    return replace(request(group_id, rollout=program), **more)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("Incomplete", "1 trajectories, expected 2"),
        ("Twice", "good/0#0 came twice"),
        ("Forgetful", "it returned a NoneType, expected a RolloutOutput"),
    ],
)
def test_an_output_that_is_not_what_was_asked_for_ends_its_request(program, why):
    (found,) = rounds(item("good/0", program))
    assert [one.trajectory_id for one in found.trajectories] == ["good/0#0", "good/0#1"]
    for one in found.trajectories:
        assert (one.finish, one.failed_by) == (FinishReason.ERROR, program)
        assert why in one.detail


def test_a_tool_that_fails_ends_its_request_and_no_other():
    good, bad = rounds(item("good/0"), item("bad/0"))
    assert [(one.finish, one.tokens) for one in good.trajectories] == [(FinishReason.LENGTH, 40)] * 2
    assert [one.trajectory_id for one in bad.trajectories] == ["bad/0#0", "bad/0#1"]
    for one in bad.trajectories:
        assert (one.finish, one.failed_by, one.comparable) == (FinishReason.ERROR, "Brittle", False)
        assert one.detail.startswith(f"workflow Brittle: KeyError: 'tool' ({__file__}, line")
        assert one.value == 0.0, "it is scored like whatever else has ended"


def test_nothing_is_asked_for_a_failed_request_any_more():
    client = ScriptedClient(lambda _: "x" * 30 + "</s>")
    made = runner(client, workflows=PROGRAMS)

    async def failed_then_waited():
        await made.run(item("bad/0"), LIMITS)
        sent = len(client.requests)
        for _ in range(50):
            await asyncio.sleep(0)
        return sent

    sent = asyncio.run(failed_then_waited())
    assert len(client.requests) == sent


def test_tokens_of_earlier_rounds_stay():
    first = rounds(item("g/0", "LateFailure", role="agent"))[0]
    assert all(one.paused for one in first.trajectories)
    (second,) = rounds(item("g/0", "LateFailure", role="agent").resumed(first))
    for before, after in zip(first.trajectories, second.trajectories, strict=True):
        assert (after.finish, after.state, after.new_tokens) == (FinishReason.ERROR, None, 0)
        np.testing.assert_array_equal(after.sequence.response_ids, before.sequence.response_ids)


def test_what_a_reward_raises_is_no_failure_of_the_program():
    async def gone(*_):
        raise RuntimeError("reward worker gone")

    made = runner(ScriptedClient(lambda _: "x</s>"), workflows=PROGRAMS)
    made.score = gone
    with pytest.raises(RuntimeError, match="reward worker gone"):
        asyncio.run(made.run(item("good/0"), LIMITS))


class Gone:
    async def generate(self, *_, **__):
        raise EngineUnavailableError("gone")


def test_an_engine_that_is_gone_ends_the_run():
    with pytest.raises(EngineUnavailableError):
        rounds(item("good/0"), client=Gone())


class Kind(str, Enum):
    SEARCH = "search"


NOT_PLAIN = {
    "a set": ({"state": {"seen": {1}}}, "g/0#1: state.seen is a builtins.set, expected plain values"),
    "an enum": ({"events": [{"tool": Kind.SEARCH}]}, r"g/0#1: events\[0\].tool is a .*Kind, expected"),
    "a defaultdict": ({"state": [defaultdict(int)]}, r"g/0#1: state\[0\] is a collections.defaultdict"),
    "a key": ({"state": {Kind.SEARCH: 1}}, "g/0#1: state: the key .*Kind, expected"),
    "an array of objects": ({"state": np.array([None])}, "g/0#1: state is a numpy.ndarray of object"),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_state_that_no_checkpoint_can_hold_is_refused_when_it_is_handed_over(case):
    fields, message = NOT_PLAIN[case]

    class Odd(ToolLoop):
        async def run(self, item, context):
            output = await super().run(item, context)
            output.trajectories[1] = replace(output.trajectories[1], **fields)
            return output

    made = runner(ScriptedClient(lambda _: "x" * 30), workflows={"Odd": Odd})
    found = asyncio.run(made.run(item("g/0", "Odd", role="agent"), LIMITS)).trajectories
    assert {one.finish for one in found} == {FinishReason.ERROR}
    assert re.search(f"workflow Odd: TypeError: {message}", found[0].detail)


def test_plain_state_is_handed_on():
    check_plain({"a": [1, 2.0, None, True, "x", (np.float32(1), np.zeros(2))], 3: {}}, "state")
