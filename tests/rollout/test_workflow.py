"""Workflows: what agents hear and say, how episodes end, and that a pause anywhere changes nothing."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_client import request, runner

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.sequence import check_plain
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.failed_grades import grade_warnings
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.workflow import METRICS, SOLVED, STAGE_FIGURES, Workflow
from marsrl_verl.testing import Turn, run_method
from marsrl_verl.testing.client import ScriptedClient

ROLES = {"a": Role(answers=True), "b": Role(), "c": Role()}


def method(play) -> type[Method]:
    """A method whose episodes are that coroutine."""

    class Play(Workflow):
        async def play(self, episode):
            await play(episode)

    globals()["Play"] = Play
    Play.__qualname__ = "Play"

    class Talks(Method):
        roles = ROLES

        @classmethod
        def stages(cls, config):
            return (Stage("talk", "a", config.group_size, rollout=Play, writers=tuple(ROLES)),)

    return Talks


def says(turn: Turn) -> str:
    return f"{turn.role}{turn.number} of {turn.k}"


def members(play, script=says, group_size=2, **more) -> list[Trajectory]:
    (step,) = run_method(method(play), script, problems=1, group_size=group_size, **more)
    return step.groups[0].trajectories


def test_each_agent_hears_the_problem_or_what_it_is_told():
    heard = {}

    def script(turn):
        heard[turn.role, turn.number] = turn.prompt
        return says(turn)

    async def play(episode):
        first = await episode.agents.a.say()
        await episode.agents.b.say(f"a says {first}")
        await episode.agents.a.say("again")
        brief = {"role": "system", "content": "be brief"}
        await episode.agents.c.say([brief, {"role": "user", "content": "?"}])
        episode.reward(1.0)

    one = members(play, script)[0]
    assert heard["a", 0] == "<user>0+1=?<assistant>" and heard["b", 0].startswith("<user>a says a0 of")
    assert heard["a", 1].startswith("<user>0+1=?<assistant>a0 of")
    assert heard["a", 1].endswith("again<assistant>")
    assert heard["c", 0] == "<system>be brief<user>?<assistant>"
    assert one.text == "[a]\na0 of 0\n\n[b]\nb0 of 0\n\n[a]\na1 of 0\n\n[c]\nc0 of 0"
    assert [f"{event['role']}{event['turn']}" for event in one.events] == ["a0", "b0", "a1", "c0"]


def test_what_an_agent_heard_is_not_trained_and_who_never_spoke_has_no_row():
    async def play(episode):
        await episode.agents.a.say()
        if episode.k == 0:
            await episode.agents.b.say("hm")
        await episode.agents.a.say("again")
        episode.reward(a=float(episode.k), b=0.5)

    first, second = members(play)
    assert [part.role for part in first.sequences] == ["a", "b"]
    assert [part.role for part in second.sequences] == ["a"]
    (a, b) = first.sequences
    assert (a.reward, b.reward, first.value) == (0.0, 0.5, 0.25)
    assert 0 < a.response_mask.sum() < len(a) and b.response_mask.all()
    assert set(a.annotations["turn"][a.response_mask == 1]) == {0, 1}
    assert set(a.annotations["label"]) == {0} and set(b.annotations["label"]) == {1}


def test_sequences_are_compared_by_their_agent_whoever_spoke():
    """Of four episodes b speaks in those of a number below 2, where it is the first sequence but for a."""

    async def play(episode):
        if episode.k < 2:
            await episode.agents.b.say()
        await episode.agents.c.say()
        episode.reward(b=float(episode.k), c=float(episode.k % 2))

    (step,) = run_method(method(play), says, problems=1, group_size=4)
    worth = step.advantages_of("c")
    assert worth[0] == worth[2] == -worth[1] == -worth[3] != 0.0


@pytest.mark.parametrize("most", [4, 20], ids=["first message", "second message"])
def test_a_message_that_reaches_a_limit_ends_the_episode(most):
    async def play(episode):
        await episode.agents.a.say()
        await episode.agents.a.say("and then?")
        episode.reward(1.0)
        episode.answer("x", 1.0)

    one = members(play, max_new_tokens=most)[0]
    assert (one.finish, one.detail, one.value) == (FinishReason.LENGTH, "a message of the a was cut", 0.0)
    assert one.scored.info[METRICS] == {} and SOLVED not in one.scored.info


def test_a_program_may_go_on_and_may_end_an_episode_itself():
    async def play(episode):
        said = await episode.agents.a.say(max_tokens=2, ends=False)
        assert said == "a0" and said.cut and not said.failed
        full = await episode.agents.a.say("more", max_tokens=10_000_000, whole=True, ends=False)
        assert full == "" and full.failed and full.detail == "list_full"
        episode.reward(0.25)
        episode.end(FinishReason.LIMIT, "enough")

    one = members(play)[0]
    assert (one.finish, one.detail, one.value) == (FinishReason.LIMIT, "enough", 0.25)


def silent(turn: Turn) -> str:
    raise ValueError("no answer")


FULL = "its list of messages is full"


@pytest.mark.parametrize("more", [{}, {"segment_tokens": 7}], ids=["whole", "paused"])
@pytest.mark.parametrize(("script", "why"), [(says, FULL), (silent, "ValueError: no answer")])
@pytest.mark.parametrize("rounds", [90, 10**9])
def test_who_asks_a_silent_agent_for_ever_is_told(rounds, script, why, more):
    async def play(episode):
        for number in range(rounds):
            said = await episode.agents.a.say("go on" if number else None, ends=False)
        assert said == "" and (said.cut or said.failed)
        episode.reward(1.0)

    one = members(play, script, max_new_tokens=100, raises=False, **more)[0]
    if rounds == 90:
        assert (one.finish, one.value) == (FinishReason.STOP, 1.0)
    else:
        assert one.finish is FinishReason.ERROR and "test_workflow.py, line" in one.detail
        assert re.search(
            rf"a was asked for 1\d\d messages, .* cut or failed \({re.escape(why)}\)", one.detail
        )


def test_answers_metrics_and_notes():
    async def play(episode):
        said = await episode.agents.a.say()
        grade = await episode.grade("a", said)
        episode.reward(grade)
        episode.metric("length", len(said))
        episode.note(seen=True, all={said: [said, grade]})
        episode.info(metrics=(grade,))
        episode.answer(said, grade)

    def script(turn):
        return f"\\boxed{{{turn.request.problem.ground_truth if turn.k else 'no'}}}"

    (step,) = run_method(method(play), script, problems=1, group_size=2)
    wrong, right = step.groups[0].trajectories
    assert (wrong.value, right.value, right.final_text) == (0.0, 1.0, "\\boxed{1}")
    assert right.scored.info == {
        METRICS: {"length": 9.0}, "answer": "1", SOLVED: 1.0, "metrics": (1.0,)
    }  # fmt: skip
    assert right.events[-1] == {"seen": True, "all": {"\\boxed{1}": ["\\boxed{1}", 1.0]}}
    check_plain([right.events, dict(right.scored.info)], "what is kept")
    named = {name.removeprefix("stage/talk/") for name in step.metrics if name.startswith("stage/talk/")}
    assert {name for name in named if not STAGE_FIGURES.fullmatch(name)} == {"length"}
    assert step.metrics["stage/talk/accuracy"] == 0.5 and step.metrics["stage/talk/length"] == 9.5
    assert not any("accuracy" in name for name in step.metrics if name.startswith("role/"))


def test_a_program_that_raises_ends_its_episodes_with_the_users_line():
    async def play(episode):
        await episode.agents.a.say()
        raise KeyError("my own")

    one = members(play, raises=False)[0]
    assert one.finish is FinishReason.ERROR
    assert "test_workflow.py, line" in one.detail and "my own" in one.detail
    assert [part.role for part in one.sequences] == list(ROLES), "no agent alone is at fault"
    with pytest.raises(KeyError, match="my own"):
        members(play)
    with pytest.raises(ValueError, match="no answer"):
        members(play, silent)


def test_one_that_does_not_end_is_interrupted():
    async def play(episode):
        while True:
            await episode.agents.a.say("go on", ends=False)

    with pytest.raises(TimeoutError, match="run_method did not end"):
        members(play, time_limit=0.3)


def test_a_message_that_cannot_be_had_ends_the_episode_with_its_agents_name():
    async def play(episode):
        await episode.agents.a.say()
        await episode.agents.b.say("x" * 200_000)

    assert members(play)[0].detail.startswith("b: prompt has 200")


NAN = float("nan")


@pytest.mark.parametrize(
    ("tell", "what"),
    [
        (lambda episode: episode.reward(NAN), "the reward of all agents is nan, expected a finite number"),
        (lambda episode: episode.reward(0.5, a=NAN), "the reward of the a is nan, expected a finite number"),
        (lambda episode: episode.answer("x", NAN), "the grade of the answer is nan, expected a finite"),
        (lambda episode: episode.metric("hits", NAN), "the metric 'hits' is nan, expected a finite number"),
        (
            lambda episode: episode.metric("accuracy", 1.0),
            "each stage has a figure 'accuracy'; episode.answer(text, right) sets it",
        ),
        (
            lambda episode: episode.metric("samples", 1.0),
            "each stage has a figure 'samples': give",
        ),
    ],
)
def test_figures_that_are_none_or_have_a_name_that_is_taken_are_refused_with_the_users_line(tell, what):
    async def play(episode):
        await episode.agents.a.say()
        tell(episode)

    one = members(play, raises=False)[0]
    assert f"ValueError: {what}" in one.detail
    assert (one.finish, "test_workflow.py, line" in one.detail) == (FinishReason.ERROR, True)


def test_a_rewards_own_fields_make_no_episode():
    own = RewardResult(1.0, {"metrics": "its own", "solved": "too"})
    trajectory = Trajectory("g#0", [], FinishReason.STOP, reward=own)
    found = training_metrics([Group(request("g", 1), [trajectory])], Method)
    assert found["stage/solver/reward_mean"] == 1.0


class Graded(RoleReward):
    """Of b's messages it can't grade the odd trajectories', and c's are worth more than any number."""

    def score(self, request):
        if request.role == "b" and int(request.trajectory_id[-1]) % 2:
            raise ValueError("odd")
        return RewardResult(1.0 if request.role == "b" else float("inf"))


def test_a_failed_grade_counts_for_the_role_whose_reward_gave_it():
    async def play(episode):
        for agent in episode.agents:
            said = await agent.say()
            if agent.role == "b" or (agent.role == "c" and episode.k == 3):
                await episode.grade(agent.role, said)

    async def score(asked, texts):
        return [await RewardRunner(Graded()).score(ScoreRequest.of(asked, one)) for one in texts]

    talks, item = method(play), request("p1/talk/0", 4, rollout="play")
    programs = {"play": lambda: globals()["Play"](None, None, ROLES)}
    made = runner(ScriptedClient(lambda _: "hm</s>"), workflows=programs)
    made.score = score
    output = asyncio.run(made.run(item, {role: Sampling(99, 99) for role in ROLES}))
    b, c = grade_warnings(output.trajectories)
    line = r"\(\S+test_workflow.py, line \d+\)"
    assert re.search(rf"2 of 4 grades of the b failed.*: Graded {line}: ValueError: odd", b)
    assert re.search(rf"1 of 1 grades of the c failed.*: Graded {line}: ValueError: the reward is inf", c)
    assert output.trajectories[1].scored.error.startswith("the reward of the b: Graded")
    metrics = training_metrics([Group(item, output.trajectories)], talks)
    shares = {name: metrics[f"{name}/grading_error_frac"] for name in ("role/a", "role/b", "role/c")}
    assert shares == {"role/a": 0.0, "role/b": 0.5, "role/c": 0.25}
    assert metrics["stage/solver/grading_error_frac"] == 0.5


class Waiting(ScriptedClient):
    """Answers the first prompt, and the others never."""

    cancelled = 0
    asked = 0

    async def generate(self, *arguments, **named):
        self.asked += 1
        if self.asked == 1:
            return await super().generate(*arguments, **named)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.mark.parametrize("cancelled", [False, True], ids=["play raises", "the request is cancelled"])
def test_messages_that_nobody_waits_for_end_with_their_episode(cancelled):
    async def play(episode):
        await episode.agents.a.say()
        beside = asyncio.ensure_future(episode.agents.b.say("and you?"))
        await asyncio.sleep(0.01)
        if cancelled:
            await beside
        raise ValueError("enough")

    async def course(client) -> None:
        made = runner(client, workflows={"play": lambda: globals()["Play"](None, None, ROLES)})
        running = asyncio.ensure_future(
            made.run(request("p1/talk/0", 1, rollout="play"), {role: Sampling(99, 99) for role in ROLES})
        )
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        await asyncio.sleep(0.01)
        assert (client.asked, client.cancelled) == (2, 1)

    method(play)
    asyncio.run(course(Waiting(lambda _: "hm</s>")))


@dataclass
class Course:
    """A course of an episode: who speaks, together with whom."""

    rounds: list[list[str]]

    async def play(self, episode):
        said = {}
        for number, names in enumerate(self.rounds):
            heard = f"{number} {sorted(said.items())}" if number else None
            told = [episode.agents[name].say(heard if said.get(name) or heard else None) for name in names]
            texts = await asyncio.gather(*told)
            said |= dict(zip(names, texts, strict=True))
            draw = episode.rng("draw", number).random()
            said["draw"] = f"{draw:.3f}"
        grades = [await episode.grade("a", text) for name, text in said.items()]
        episode.reward(a=sum(map(len, said.values())) % 7, b=len(grades), c=float(said["draw"]))
        episode.answer(said["draw"], grades[0])


courses = st.lists(
    st.lists(st.sampled_from(sorted(ROLES)), min_size=1, max_size=3, unique=True), min_size=1, max_size=4
)


def shown(members: list[Trajectory]) -> list[tuple]:
    def tokens(one: Trajectory) -> list[tuple]:
        return [
            (part.role, part.reward, part.input_ids().tolist(), part.response_mask.tolist())
            for part in one.sequences
        ]

    return [
        (one.trajectory_id, one.finish, one.text, one.events, one.scored, one.gradings, tokens(one))
        for one in members
    ]


@settings(max_examples=15)
@given(rounds=courses, size=st.integers(1, 12))
def test_a_pause_at_any_token_changes_nothing(rounds, size):
    course = Course(rounds)
    whole, cut = members(course.play), members(course.play, segment_tokens=size)
    assert shown(cut) == shown(whole)


async def beside(*parts):
    async with asyncio.TaskGroup() as group:
        for one in parts:
            group.create_task(one)


JOINS = [asyncio.gather, *([beside] if sys.version_info >= (3, 11) else [])]


@pytest.mark.parametrize("join", JOINS)
def test_agents_that_speak_at_a_time_are_shown_in_one_order_and_see_no_later_message(join):
    async def chain(episode, name, count):
        if name == "b":
            await episode.grade("b", "?")  # begins later
        for number in range(count):
            said = await episode.agents[name].say(f"{name}{number}")
            assert len(episode.said(name)) == number + 1 and episode.said(name)[-1] == said
            shown = [text for role, text in episode.transcript if role == name]
            assert len(shown) == number + 1

    async def play(episode):
        await episode.agents.c.say()
        assert [role for role, _ in episode.transcript] == ["c"]
        await join(chain(episode, "b", 3), chain(episode, "a", 2))
        await join(chain_end(episode))
        episode.reward(1.0)

    async def chain_end(episode):
        await episode.agents.c.say("end")

    (one, _) = whole = members(play)
    assert [event["role"] for event in one.events] == ["c", "a", "b", "a", "b", "b", "c"]
    for size in (1, 3, 5, 8, 13):
        cut = members(play, segment_tokens=size)
        assert [(one.text, one.events) for one in cut] == [(one.text, one.events) for one in whole]


@pytest.mark.parametrize("join", JOINS)
def test_what_a_part_raises_ends_the_episode_with_its_line(join):
    async def part(episode, name):
        said = await episode.agents[name].say()
        raise KeyError(f"after {said}")

    async def play(episode):
        await join(part(episode, "a"), part(episode, "b"))

    one = members(play, raises=False)[0]
    assert one.finish is FinishReason.ERROR
    assert re.search(r"KeyError: 'after a0 of 0' \(\S+test_workflow.py, line \d+\)", one.detail)


def test_an_unknown_agent_is_named():
    async def play(episode):
        await episode.agents.d.say()

    with pytest.raises(AttributeError, match="there is no agent 'd'; the stage's writers are: a, b, c"):
        members(play)
