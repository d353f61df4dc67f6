"""The tree of tool-using trajectories: what it is, whatever answers first, and whenever it pauses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from agent_scripts import (
    LIMITS,
    UNSURE,
    AgentClient,
    BraceParser,
    ChatClient,
    FakeTools,
    Tokenizer,
    call,
    ends,
)
from equal_sequences import equal_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_methods import Trained, train
from scheduler_tools import build
from scripted_client import run_once, run_rounds
from tree_groups import agent_request, config, runner_settings

from marsrl_verl.algos.arpo.advantages import NODE
from marsrl_verl.algos.arpo.method import ARPO
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.sequence import TURN
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.tools.base import ToolOutcome, ToolResult

CALLS = {0: 1, 1: 2, 2: 0, 3: 1}
"""Calls of the roots; of the others two."""


def says(k: int, turn: int) -> str:
    """Roots 0 and 3 are surer after a result than at the beginning, the others are not."""
    if turn == 0:
        head = "????" if k in (0, 3) else "ok. "
    else:
        head = "ok. " if k in (0, 3) else f"{UNSURE}{k}{UNSURE}{UNSURE}"
    more = turn < CALLS.get(k, 2)
    return f"{head}T{turn} " + (call("python", "x" * (k + 1)) + " and on" if more else "it is.</s>")


def tree(one=None, client=None, tools=None, n=8, limits=LIMITS, **more):
    one = one or config(branching={"roots": 4})
    client = client or AgentClient(says=says, seed=None)
    settings_of = runner_settings(one, tools or FakeTools(), **more)
    return run_once(client, agent_request(n), {"solver": limits}, **settings_of)


def plain(members):
    """What must not depend on time."""
    return {
        one.number: (
            one.text, one.finish, one.detail, one.fork, one.value,
            [{name: value for name, value in event.items() if name != "seconds"} for event in one.events],
        )
        for one in members
    }  # fmt: skip


def test_what_the_tree_is():
    found = tree()
    members = found.trajectories
    assert found.state is None and sorted(ends(members)) == list(range(8)), "exactly the budget"
    forks = {
        one.number: (int(one.fork.trajectory_id[-1]), one.text.count("<result>"))
        for one in members
        if one.fork
    }
    # 1 is unsure after both of its results; so is its fork 4 after its second one. 7 is a further root.
    assert {number: parent for number, (parent, _) in forks.items()} == {4: 1, 5: 1, 6: 4}
    assert set(ends(members).values()) == {FinishReason.STOP}


def test_forks_share_the_result_and_nothing_after_it():
    by_number = {one.number: one for one in tree().trajectories}
    forks = [one for one in by_number.values() if one.fork]
    assert forks
    for one in forks:
        parent = by_number[int(one.fork.trajectory_id.rpartition("#")[2])]
        at = one.fork.token
        shared = "".join(map(chr, one.sequence.response_ids[:at]))
        assert shared.endswith("</result>")
        assert equal_sequences(
            replace(one.sequence.truncate(at), versions=()),
            replace(parent.sequence.truncate(at), versions=()),
        )
        assert one.sequence.response_ids[at + 1] != parent.sequence.response_ids[at + 1], "its own number"
        count = shared.count("</result>")
        assert [event["by"] for event in one.events[:count]] == [
            event["by"] for event in parent.events[:count]
        ]


class Counting(FakeTools):
    """Says how many calls a trajectory has made, and keeps that by the trajectory's id."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, answer=self._count)
        self.counts: dict[str, int] = {}

    def _count(self, call):
        trajectory = call.call_id.rpartition("/")[0]
        self.counts[trajectory] = self.counts.get(trajectory, 0) + 1
        return ToolResult(str(self.counts[trajectory]))

    def fork(self, parent, child, calls):
        assert calls <= self.counts[parent] and child not in self.counts
        self.counts[child] = calls


@pytest.mark.parametrize("seed", range(5))
def test_a_tool_with_state_tells_a_fork_of_its_own_calls(seed):
    """Also where the trajectory that it leaves has made further calls by then."""
    members = tree(tools=Counting(seed), client=AgentClient(says=says, seed=seed)).trajectories
    assert any(one.fork for one in members)
    for one in members:
        read = [part.partition("</result>")[0].strip() for part in one.text.split("<result>")[1:]]
        assert read == [str(number + 1) for number in range(len(read))], one.text


def test_ids_are_what_was_sampled_or_inserted():
    for one in tree().trajectories:
        sequence = one.sequence
        inserted = "".join(map(chr, sequence.response_ids[sequence.response_mask == 0]))
        codes = [event["arguments"]["code"] for event in one.events]
        assert inserted == "".join(f" <result>\n{len(code)}\n</result>" for code in codes)
        chosen = "".join(map(chr, sequence.response_ids[sequence.response_mask == 1]))
        assert "<result>" not in chosen and chosen.count("</python>") == len(one.events)
        assert (sequence.rollout_log_probs[sequence.response_mask == 0] == 0).all()
        assert (sequence.annotations[TURN] >= 0).tolist() == sequence.response_mask.astype(bool).tolist()


def test_nodes_are_the_parts_that_trajectories_share():
    members = tree().trajectories
    at_node: dict[int, set[tuple[int, bytes]]] = {}
    for one in members:
        nodes, ids = one.sequence.annotations[NODE], one.sequence.response_ids
        for node in np.unique(nodes):
            places = np.flatnonzero(nodes == node)
            assert (np.diff(places) == 1).all()
            at_node.setdefault(int(node), set()).add((int(places[0]), ids[places].tobytes()))
    assert all(len(found) == 1 for found in at_node.values()), "the same tokens at the same place"
    starts = Counter(one.sequence.annotations[NODE][0] for one in members)
    assert sum(starts.values()) == 8 and len(starts) == 8 - sum(one.fork is not None for one in members)


def test_the_probes_tokens_are_kept():
    client = AgentClient(says=says, seed=None)
    tree(client=client)
    probes = [one for one in client.requests if one["decoding"].top_log_probs]
    assert probes and {one["decoding"].max_tokens for one in probes} == {4}
    first = next(one["prompt"] for one in probes)
    assert any(one["prompt"] == first + says(0, 0)[:4] for one in client.requests), (
        "the rest goes on after them"
    )


def test_each_call_runs_once_however_many_share_it():
    tools = FakeTools()
    members = tree(tools=tools).trajectories
    own = [event["call_id"] for one in members for event in one.events if event["by"] == one.number]
    assert sorted(own) == sorted(call.call_id for call in tools.called)
    assert len(set(own)) == len(own)
    assert len([event for one in members for event in one.events]) > len(own), "forks have shared some"


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["threshold", "bernoulli", "random"]))
@settings(max_examples=10)
def test_who_answers_first_decides_nothing(first, second, law):
    one = config(branching={"law": law, "roots": 3})
    expected = plain(tree(one).trajectories)
    for seed in (first, second):
        client, tools = AgentClient(says=says, seed=seed), FakeTools(seed=seed)
        assert plain(tree(one, client, tools).trajectories) == expected


@given(
    st.integers(4, 40),
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),
    st.sampled_from(["result", "call"]),
    st.sampled_from(["together", "one_by_one"]),
)
@settings(max_examples=10)
def test_pauses_change_nothing(segment, seed, size, entropy, supplements):
    one = config(branching={"roots": 3, "entropy": entropy, "supplements": supplements})
    make = lambda: AgentClient(tokenizer=Tokenizer(size), says=says, seed=seed)  # noqa: E731
    whole = tree(one, make()).trajectories
    limits = {"solver": replace(LIMITS, segment_tokens=segment)}
    settings_of = runner_settings(one, FakeTools(seed=seed))
    members, rounds = run_rounds(make(), agent_request(), limits, **settings_of)
    assert rounds > 1 or segment > 20
    assert plain(members) == plain(whole)
    for other, expected in zip(members, whole, strict=True):
        mine = replace(other.sequence, versions=())
        assert equal_sequences(mine, replace(expected.sequence, versions=()))


def test_rounds_of_one_token_change_nothing_either():
    one = config(group_size=4, branching={"roots": 2})
    whole = tree(one, n=4).trajectories
    limits = {"solver": replace(LIMITS, segment_tokens=1)}
    client = AgentClient(says=says)
    members, rounds = run_rounds(client, agent_request(4), limits, **runner_settings(one, FakeTools()))
    assert rounds > 50 and plain(members) == plain(whole)


@given(
    n=st.integers(1, 12),
    roots=st.integers(1, 12),
    beam=st.integers(2, 4),
    limit=st.integers(1, 4),
    law=st.sampled_from(["threshold", "bernoulli", "random", "off"]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40)
def test_roots_and_forks_are_always_as_many_as_asked_for(n, roots, beam, limit, law, seed):
    one = config(call_limit=limit, branching={"law": law, "roots": roots, "beam": beam})
    client, tools = AgentClient(says=says, seed=seed), FakeTools(seed=seed)
    found = tree(one, client, tools, n=n)
    assert [one.number for one in found.trajectories] == list(range(n))
    if law == "off":
        assert not any(one.fork for one in found.trajectories)
    for one in found.trajectories:
        assert sum(event["executed"] for event in one.events) <= limit


@pytest.mark.parametrize(("law", "n"), [("off", 4), ("threshold", 1), ("random", 8)])
def test_where_no_entropy_decides_nothing_is_probed(law, n):
    client = AgentClient(says=says, seed=None)
    members = tree(config(branching={"law": law}), client, n=n).trajectories
    assert {item["decoding"].top_log_probs for item in client.requests} == {0}
    assert any(one.fork for one in members) == (law == "random")


def test_the_events_say_why_it_was_forked():
    (event,) = next(one.events for one in tree().trajectories if one.number == 0)
    assert event["forks_wanted"] == 0 and event["entropy_change"] < 0
    assert event["fork_probability"] == pytest.approx(0.5 + 0.2 * event["entropy_change"])
    assert event["entropy"] >= 0 and event["by"] == 0 and event["turn"] == 0 and event["outcome"] == "ok"


def test_the_released_entropy_is_of_the_turn_before_the_call():
    """A trajectory's first difference is 0, so the paper's threshold forks at no first call."""
    one = config(branching={"roots": 4, "entropy": "call"})
    members = tree(one).trajectories
    decided = [event for other in members for event in other.events if "forks_wanted" in event]
    first = [event for event in decided if event["turn"] == 0]
    assert first and all(event["entropy_change"] == 0 and event["forks_wanted"] == 0 for event in first)
    second = [
        event for other in members for event in other.events if event["turn"] == 1 and other.number == 1
    ]
    assert second[0]["entropy_change"] > 0, "what 1 wrote after its first result, less its first turn"


def test_a_call_over_the_limit_ends_a_trajectory():
    one = config(call_limit=1, branching={"law": "off"})
    by_number = {other.number: other for other in tree(one, n=4).trajectories}
    assert ends(by_number.values()) == {
        0: FinishReason.STOP, 1: FinishReason.LIMIT, 2: FinishReason.STOP, 3: FinishReason.STOP,
    }  # fmt: skip
    assert by_number[1].detail == "call_limit" and len(by_number[1].events) == 1
    assert by_number[1].text.endswith("</python>"), "no token that nobody sampled ends it"


def test_a_failing_tool_is_read():
    failed = FakeTools(answer=lambda call: ToolResult("", ToolOutcome.TIMEOUT))
    members = tree(tools=failed).trajectories
    assert "<result>\n(timeout)\n</result>" in members[0].text
    assert set(ends(members).values()) == {FinishReason.STOP}


def test_the_final_text_of_a_chat_is_the_models_last_turn():
    """Neither a result nor the call that printed it is the answer."""

    def chats(k: int, turn: int) -> str:
        return '{python: {"code": "\\boxed[4]"}}</s>' if turn == 0 else "Done.</s>"

    tokenizer = Tokenizer()
    found = tree(
        config(protocol="chat", branching={"roots": 3}),
        ChatClient(tokenizer=tokenizer, says=chats),
        FakeTools(answer=lambda call: ToolResult("\\boxed{4}")),
        n=4,
        turn_parser=lambda name: BraceParser(tokenizer),
    )
    for one in found.trajectories:
        assert "\\boxed{4}" in one.text and one.final_text == "Done."


def test_a_chat_with_tool_turns():
    """The chat template writes calls and results; a fork shares both."""

    def chats(k: int, turn: int) -> str:
        head = "ok. " if turn == 0 else f"{UNSURE}{k}{UNSURE}{UNSURE}"
        if turn < 2:
            return head + '{python: {"code": "xyz"}}' * (1 + (k == 1)) + "</s>"
        return f"{head} so.</s>"

    one = config(protocol="chat", call_limit=4, branching={"roots": 3})
    tokenizer = Tokenizer()
    client = ChatClient(tokenizer=tokenizer, says=chats, seed=1)
    tools = FakeTools(seed=2)
    found = tree(one, client, tools, n=6, turn_parser=lambda name: BraceParser(tokenizer))
    members = {other.number: other for other in found.trajectories}
    assert sorted(members) == list(range(6)) and set(ends(members.values()).values()) == {FinishReason.STOP}
    assert any(other.fork for other in members.values())
    assert client.requests[0]["prompt"].startswith("[python][search]"), "schemas for the template"
    turn = members[1].text.replace("</s>", "")
    assert "<tool>3<tool>3<assistant>" in turn, "two calls of a turn, answered together"
    for other in members.values():
        masked = other.sequence.response_mask == 0
        inserted = "".join(map(chr, other.sequence.response_ids[masked]))
        assert inserted.replace("<tool>3", "").replace("<assistant>", "") == ""


OWN = """
from marsrl_verl.settings.rules import needs

def after_errors(place):
    return any(call["outcome"] != "ok" for call in place.calls)

@needs("entropy")
def surer(place):
    return int(place.entropy_change is not None and place.entropy_change < 0)

def too_many(place):
    return place.max_forks + 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_law.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: config(branching={"roots": 4, "law": f"own_law:{name}"})


def decisions(found):
    events = [event for one in found.trajectories for event in one.events if "forks_wanted" in event]
    return {event["call_id"]: event for event in events}


def test_a_function_of_the_user_s_decides_about_forks(own):
    broken = FakeTools(answer=lambda call: ToolResult("no", ToolOutcome.ERROR))
    assert {one["forks_wanted"] for one in decisions(tree(own("after_errors"), tools=broken)).values()} == {1}
    found = decisions(tree(own("after_errors")))
    assert {one["forks_wanted"] for one in found.values()} == {0}
    assert {one["entropy"] for one in found.values()} == {None}, "it does not need it"
    assert {one["fork_probability"] for one in found.values()} == {None}


def test_a_function_that_needs_entropy_is_told_its_change(own):
    found = decisions(tree(own("surer"))).values()
    assert {one["forks_wanted"] for one in found} == {0, 1}
    assert all(one["forks_wanted"] == (one["entropy_change"] < 0) for one in found)


def test_what_a_function_does_wrong_ends_its_request_and_is_said(own):
    found = tree(own("too_many"))
    assert {one.finish for one in found.trajectories} == {FinishReason.ERROR}
    detail = found.trajectories[0].detail
    assert (
        "marsrl.algo.branching.law = own_law:too_many returned 2; expected True, False or a number" in detail
    )


# --- through the scheduler: every step is a process of its own -------------------------------------


def talks(k: int, turn: int) -> str:
    head = "ok. " if turn == 0 else f"{UNSURE}{k}{UNSURE}{UNSURE} "
    return head + (call("python", "x" * (k + 1)) if turn < 1 + k % 3 else "it is.</s>")


def trained(segment: int | None, attribution: str = "soft", seed: int | None = None) -> list[Trained]:
    one = config(group_size=6, attribution=attribution, branching={"roots": 3})
    limits = {"solver": replace(LIMITS, max_prompt_tokens=200, segment_tokens=segment)}
    return train(
        lambda: build(ARPO, ProblemPrompts(), one),
        lambda _: AgentClient(tokenizer=Tokenizer(), says=talks, seed=seed),
        limits,
        **runner_settings(one, FakeTools(seed=seed or 0)),
    )


@lru_cache
def without_segments(attribution: str) -> Trained:
    (one,) = trained(None, attribution)
    return one


def test_what_is_trained():
    """So that the property below is about something."""
    one = without_segments("soft")
    assert len(one.groups) == 3 and len(one.rows) == 18
    assert any(member.fork for group in one.groups for member in group.trajectories)
    assert not np.allclose(one.advantages, without_segments("hard").advantages)


@given(st.integers(5, 60), st.sampled_from(["soft", "hard", "sibling"]), st.integers(0, 1000))
@settings(max_examples=8)
def test_segments_processes_and_the_order_of_answers_change_nothing(segment, attribution, seed):
    steps, expected = trained(segment, attribution, seed), without_segments(attribution)
    found = {group.group_id: group for step in steps for group in step.groups}
    assert len(found) == sum(len(step.groups) for step in steps) == 3, "every group is trained once"
    worth: dict[str, np.ndarray] = {}
    for step in steps:
        for row in range(len(step.rows)):
            name = step.rows.trajectory(row).trajectory_id
            assert name not in worth, "no trajectory is trained twice"
            worth[name] = step.advantages[step.rows.slice(row)]
    for row in range(len(expected.rows)):
        name = expected.rows.trajectory(row).trajectory_id
        assert worth.pop(name) == pytest.approx(expected.advantages[expected.rows.slice(row)], abs=1e-6)
    assert not worth, "nothing else is trained"
    for group in expected.groups:
        for one, other in zip(found[group.group_id].trajectories, group.trajectories, strict=True):
            assert (one.text, one.finish, one.fork) == (other.text, other.finish, other.fork)
            mine = replace(one.sequence, versions=())
            assert equal_sequences(mine, replace(other.sequence, versions=()))
