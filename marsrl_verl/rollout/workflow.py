"""Workflows: rollouts of named agents that speak, written as one coroutine.

    class Debate(Workflow):
        async def play(self, episode):
            alice, bob = await episode.agents.alice.say(), await episode.agents.bob.say()  # to the problem
            choice = await episode.agents.judge.say(f"Who is right, alice: {alice}, or bob: {bob}?")
            …
            episode.reward(alice=…, bob=…, judge=…)

`play` is a deterministic program: it branches on what `say`, `grade` and `rng` gave it and on nothing else
(no clock, no random numbers of its own, no state of the class). An episode whose round's tokens are used is
paused, and played again in the next round: the calls return what is recorded of them until the record ends,
and go on from there. Nobody writes pause and resume by hand.

Each agent has a list of messages of its own, in which what it hears is the user's; it becomes a sequence with
that agent's reward. An agent that never spoke has none, nor has one whose policy is frozen.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.sequence import LABEL, Plain, plain_fields
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rollout.agents import Agent, Agents, Grade, MessageRequest, Said, check_says_something
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.order import Order
from marsrl_verl.rollout.speakers import FrozenSpeaker, Spoken, TrainedSpeaker

LIST_FULL = "list_full"
"""`detail` where an agent's list of messages has no room for another one."""
METRICS, SOLVED = "episode/metrics", "episode/solved"
"""Keys of `RewardResult.info` for an episode: figures by name, and the grade of its answer."""
STAGE_FIGURES = re.compile(
    r"accuracy|entropy|groups|zero_std_groups|samples|reward_mean|response_length_(mean|p95|max).*"
    r"|(truncation|failed|invalid_text|grading_error|mastered_token|masked_token)_frac"
    r"|(reflection_words|repetition_frac|distinct_4_frac).*"
)
"""Names that the figures of every stage have (docs/reference/metrics.md)."""


class _Paused(BaseException):
    """The round's tokens are used: `play` is left, and played again later. No error of the program's."""


class _Ended(BaseException):
    """The episode is over before `play` is."""


class Episode:
    """One trajectory of a workflow while it is played.

    Args:
        workflow: what is played.
        k: the trajectory's number.
        context: of the request.
        before: the trajectory as an earlier round left it; None: it begins.
    """

    def __init__(
        self, workflow: Workflow, k: int, context: RolloutContext, before: Trajectory | None
    ) -> None:
        self.k, self.context, self.request = k, context, context.request
        self.agents = Agents(self, workflow.roles)
        state: Any = {} if before is None else before.state
        places = state.get("places", ())
        self._workflow = workflow
        self._said: dict[str, list[dict[str, Any]]] = {
            role: list(found) for role, found in state.get("said", {}).items()
        }
        """Text, end and place (`Order`) of each message, by role."""
        self._opened: list[str] = []
        """Agents in the order in which they began."""
        self._heard: dict[str, int] = dict(state.get("heard", {}))
        """By role, messages before which it has heard what there was to hear."""
        self._grades: dict[str, dict[str, Plain]] = dict(state.get("grades", {}))
        """Grades by role and text."""
        self._transcript: dict[int, list[str]] = dict(zip(places, state.get("transcript", ()), strict=True))
        """By place, of messages that have ended. `_events` likewise."""
        events = () if before is None else before.events
        self._events: dict[int, dict[str, Plain]] = dict(zip(places, map(dict, events), strict=True))
        self._played: set[int] = set()
        """Places that this playing has come to."""
        self._order = Order(workflow.roles)
        self._end: tuple[FinishReason, str | None, str | None] | None = None
        self._answer: tuple[str, float | None, str | None] | None = None
        self.rewards: dict[str, float] = {}
        """Rewards of single agents."""
        self._reward: float | None = None
        self._info: dict[str, Plain] = {}
        self._metrics: dict[str, float] = {}
        self._notes: list[dict[str, Plain]] = []
        self._running: set[asyncio.Task[Any]] = set()
        # Agents that speak at a time share the round's tokens, and which of them is paused must not depend on
        # which request is answered first.
        segmented = any(context.sampling(agent.role).segment_tokens is not None for agent in self.agents)
        self._turn: AbstractAsyncContextManager[Any] = asyncio.Lock() if segmented else nullcontext()
        sequences = {} if before is None else {one.role: one for one in before.sequences}
        for role, saved in state.get("speakers", {}).items():
            self._open(self.agents[role], saved["messages"], sequences.get(role), saved)

    # --- what a program reads ----------------------------------------------------------------------

    @property
    def problem(self) -> Problem:
        """The problem of the request."""
        return self.request.problem

    @property
    def trajectory_id(self) -> str:
        """Id of the trajectory that it becomes."""
        return f"{self.request.group_id}#{self.k}"

    @property
    def paused(self) -> bool:
        """True if it goes on in a later round."""
        return self._end is not None and self._end[0] is FinishReason.PAUSED

    @property
    def finish(self) -> FinishReason:
        """Finish reason; STOP if `play` came to its end."""
        return FinishReason.STOP if self._end is None else self._end[0]

    def said(self, role: str) -> list[Said]:
        """The messages of an agent so far, in this playing."""
        return [self._as_said(one) for one in self._said.get(role, [])[: self.agents[role].messages]]

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """Roles and texts of the messages so far (`Workflow.shown`), in order; of messages at the same time,
        first those with fewer messages before them, then in the order of the roles."""
        return [(role, text) for at, (role, text) in sorted(self._transcript.items()) if at in self._played]

    def rng(self, *names: str | int) -> np.random.Generator:
        """A generator of its own for these names; the same in every playing."""
        return self.context.rng(self.k, *names)

    async def grade(self, role: str, text: str) -> Grade:
        """The reward that a role's reward class gives a text (`marsrl.reward.<role>`)."""
        self._order.time()
        key = f"{role}/{hashlib.sha256(text.encode()).hexdigest()}"
        if key not in self._grades:
            one = Trajectory(self.trajectory_id, [], FinishReason.STOP, text=text, final_text=text)
            (result,) = await self.context.score([one], role)
            self._grades[key] = {**plain_fields(result), "info": dict(result.info)}
        return Grade.of(RewardResult(**self._grades[key]))

    # --- what a program says -----------------------------------------------------------------------

    def reward(self, value: float | None = None, /, **by_role: float) -> None:
        """Sets the reward: one of all agents, and of single ones by their roles' names. The trajectory's is
        the common one, else the mean of the agents'. ValueError: one is not finite."""
        for role in by_role:
            self.agents[role]
        if value is not None:
            self._reward = _finite(value, "the reward of all agents")
        self.rewards |= {
            role: _finite(reward, f"the reward of the {role}") for role, reward in by_role.items()
        }

    def answer(self, text: str | None, right: float | None = None) -> None:
        """Sets the answer of the episode as a whole.

        Args:
            text: what others may see of the trajectory; None: there is none.
            right: its grade; above 0.5 the problem is solved. A `Grade` also tells the answer that was found.

        Raises:
            ValueError: `right` is not finite.
        """
        found = right.answer if isinstance(right, Grade) else None
        grade = None if right is None else _finite(right, "the grade of the answer")
        self._answer = (str(text or ""), grade, found)

    def metric(self, name: str, value: float) -> None:
        """Sets a figure of the episode: its mean is logged, and reported of evaluations with an interval.
        ValueError: it is not finite, or each stage has a figure of that name."""
        if STAGE_FIGURES.fullmatch(name):
            how = "; episode.answer(text, right) sets it" if name == "accuracy" else ""
            raise ValueError(f"each stage has a figure {name!r}{how}: give the metric another name")
        self._metrics[name] = _finite(value, f"the metric {name!r}")

    def note(self, **fields: Plain) -> None:
        """Adds an event to the trajectory's line in the rollout log."""
        self._notes.append(_plain(fields))

    def info(self, **fields: Plain) -> None:
        """Adds fields to the reward's result (`RewardResult.info`)."""
        self._info |= _plain(fields)

    def end(
        self,
        finish: FinishReason = FinishReason.LIMIT,
        detail: str | None = None,
        failed_by: str | None = None,
    ) -> NoReturn:
        """Ends the episode here, with a finish reason and why."""
        self._end = self._end or (finish, detail, failed_by)
        raise _Ended

    # --- playing -----------------------------------------------------------------------------------

    async def run(self, workflow: Workflow) -> None:
        """Plays it until it has ended or is paused."""
        self._order.time()
        try:
            await workflow.play(self)
        except BaseException as error:
            for one in _single(error):
                if not isinstance(one, (_Paused, _Ended)):
                    for task in self._running:  # nobody waits for messages beside it any more
                        task.cancel()
                    raise one  # noqa: B904  (the error itself, or one of its group)
            # Messages that were begun beside the one that left `play` are not lost.
            await asyncio.gather(*self._running, return_exceptions=True)
        self._played |= self._events.keys()

    def _open(
        self, agent: Agent, messages: Sequence[Message], prefix: Any = None, state: Plain = None
    ) -> None:
        self._opened.append(agent.role)
        if self.context.policy(agent.role).trained:
            chat = self.context.conversation(self.k, agent.role, messages, prefix=prefix, state=state)
            agent.speaker = TrainedSpeaker(chat)
        else:
            agent.speaker = FrozenSpeaker(self.context, self.k, agent.role, messages)

    async def next_message(
        self, agent: Agent, heard: str | Sequence[Message] | None, message: MessageRequest
    ) -> Said:
        number, agent.messages = agent.messages, agent.messages + 1
        record = self._said.setdefault(agent.role, [])
        if number > len(record):
            raise RuntimeError(
                f"{agent.role} was asked for a message while it is writing one; await it first"
            )
        if number == len(record):
            check_says_something(agent.role, record)
        places = [one["place"] for one in record]
        known = places[number] if number < len(record) else None
        place = self._order.place(agent.role, places[-1] if places else None, known)
        self._played.add(place)
        if known is None:
            task = asyncio.ensure_future(self._speak(agent, number, place, heard, message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.shield(task)  # `asyncio.TaskGroup` cancels what runs beside the one that raises
        else:
            await asyncio.sleep(0)  # tasks beside this one begin before it ends, as they did before
        return self._as_said(record[number])

    def _as_said(self, record: Mapping[str, Any]) -> Said:
        return Said.of(record, self._events.get(record["place"], {}))

    async def _speak(
        self,
        agent: Agent,
        number: int,
        place: int,
        heard: str | Sequence[Message] | None,
        message: MessageRequest,
    ) -> None:
        """One message, or what is left of one that an earlier round began."""
        async with self._turn:
            if self._end is not None:  # another agent's message ended the round or the episode meanwhile
                raise _Paused if self.paused else _Ended
            self._hear(agent, number, heard)
            speaker = agent.speaker
            assert speaker is not None
            turn = number if message.turn is None else message.turn
            if message.whole and message.max_tokens is not None and not speaker.fits(message.max_tokens):
                spoken = Spoken(FinishReason.LIMIT, detail=LIST_FULL)
            else:
                spoken = await speaker.speak(turn, message.max_tokens, message.stop, message.structured)
            if spoken.finish is FinishReason.PAUSED:
                self._end = self._end or (FinishReason.PAUSED, None, None)
                raise _Paused
            why = {"detail": spoken.detail, "failed_by": spoken.failed_by}
            said = {"text": spoken.text, "finish": spoken.finish.value, **why, "place": place}
            if spoken.finish in (FinishReason.STOP, FinishReason.LENGTH):
                self._transcript[place] = [agent.role, self._workflow.shown(agent.role, spoken.text)]
                self._events[place] = self._workflow.event(self, agent.role, turn, spoken)
            else:
                said["text"] = ""
            self._said[agent.role].append(said)

    def _hear(self, agent: Agent, number: int, heard: str | Sequence[Message] | None) -> None:
        """Adds what comes before the message; does nothing if an earlier round has begun it."""
        if self._heard.get(agent.role, 0) > number:
            return
        self._heard[agent.role] = number + 1
        messages = [{"role": "user", "content": str(heard)}] if isinstance(heard, str) else heard
        if messages is not None:
            messages = [{name: str(value) for name, value in one.items()} for one in messages]
        if agent.speaker is None:
            self._open(agent, self.request.messages if messages is None else messages)
        elif not messages:
            raise ValueError(f"{agent.role} hears nothing before its next message: give say() a text")
        elif agent.speaker.fits(1):  # a full list takes no more, and the message says LENGTH again
            agent.speaker.hear(messages)

    # --- what it becomes ---------------------------------------------------------------------------

    def trajectory(self) -> Trajectory:
        """The trajectory as it is now, with its reward where it has ended."""
        # In the order in which they began, so that what a round adds comes behind what was there.
        speakers = {role: speaker for role in self._opened if (speaker := self.agents[role].speaker)}
        found = [speaker.sequence() for speaker in speakers.values()]
        sequences = [self._labelled(one) for one in found if one is not None]
        finish, detail, failed_by = self._end or (FinishReason.STOP, None, None)
        events = [self._events[place] for place in sorted(self._events)]
        if finish is FinishReason.PAUSED:
            state = {
                "said": self._said,
                "heard": self._heard,
                "transcript": [self._transcript[place] for place in sorted(self._events)],
                "places": sorted(self._events),
                "grades": self._grades,
                "speakers": {role: speaker.state() for role, speaker in speakers.items()},
            }
            return Trajectory(self.trajectory_id, sequences, finish, events=events, state=state)
        for sequence in sequences:
            sequence.reward = self.rewards.get(sequence.role, sequence.reward)
        return Trajectory(
            self.trajectory_id,
            sequences,
            finish,
            text="\n\n".join(f"[{role}]\n{text}" for role, text in self.transcript),
            final_text="" if self._answer is None else self._answer[0],
            detail=detail,
            failed_by=failed_by,
            events=[*events, *self._notes],
            reward=self._result(finish),
        )

    def _labelled(self, sequence: TokenSequence) -> TokenSequence:
        """Labels the sequence with its agent's number, by which a loss tells its shares apart."""
        number = [agent.role for agent in self.agents].index(sequence.role)
        label = np.full(len(sequence), number, dtype=np.int8)
        return replace(sequence, annotations={**sequence.annotations, LABEL: label})

    def _result(self, finish: FinishReason) -> RewardResult:
        """The trajectory's reward; 0 where `play` gave none because the episode ended before."""
        info: dict[str, Plain] = {**self._info, METRICS: self._metrics}
        if self._answer is not None:
            info |= {"answer": self._answer[2], SOLVED: self._answer[1]}
        for key, one in self._grades.items():
            if not one["graded"]:
                error = f"the reward of the {key.partition('/')[0]}: {one['error']}"
                return RewardResult(0.0, info, error, graded=False, raised=one["raised"])
        if finish is FinishReason.REFUSED:
            return RewardResult(0.0, info, "an agent refused to answer", graded=False)
        value = self._reward
        if value is None:
            value = float(np.mean(list(self.rewards.values()))) if self.rewards else 0.0
        return RewardResult(value, info)


def _single(error: BaseException) -> list[BaseException]:
    """The errors of a group (`asyncio.TaskGroup`); one that is none is its own."""
    parts = getattr(error, "exceptions", ()) if type(error).__name__.endswith("ExceptionGroup") else ()
    return [one for part in parts for one in _single(part)] or [error]


def _finite(value: float, what: str) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{what} is {number}, expected a finite number")
    return number


def _plain(value: Plain) -> Plain:
    """Messages and grades, also those in lists and dictionaries, as what a checkpoint can hold."""
    if type(value) is dict:
        return {_plain(key): _plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    kinds: dict[type, Any] = {Said: str, Grade: float}
    return kinds[type(value)](value) if type(value) in kinds else value


class Workflow(ABC):
    """A workflow of named agents (`marsrl_verl.rollout.context.Rollout`); they are the writers of its
    stage.

    Args:
        config: the method's settings.
        prompts: the object of `marsrl.prompts`.
        roles: its agents, in the order of their sequences.
    """

    pauses = True

    def __init__(self, config: Any, prompts: Any, roles: Sequence[str]) -> None:
        self.config, self.prompts, self.roles = config, prompts, tuple(roles)

    @classmethod
    def from_settings(cls, settings: Any) -> Workflow:
        """Creates it from the `marsrl` node; the agents are the method's roles."""
        prompts = load_class(settings.prompts.target, settings.prompts.kwargs, Prompts)
        return cls(settings.algo, prompts, tuple(settings.roles))

    @abstractmethod
    async def play(self, episode: Episode) -> None:
        """One episode: a deterministic program (see the module)."""

    def shown(self, role: str, text: str) -> str:
        """A message as the transcript has it."""
        return text

    def event(self, episode: Episode, role: str, turn: int, spoken: Spoken) -> dict[str, Plain]:
        """Returns what the log has of a message, the last one of the transcript."""
        tokens = None if spoken.token_ids is None else int(spoken.token_ids.size)
        cut = spoken.finish is FinishReason.LENGTH
        return {"turn": turn, "role": role, "tokens": tokens, "cut": cut, "text": spoken.text}

    async def finalize(  # noqa: B027
        self, ended: Sequence[tuple[Episode, Trajectory]], context: RolloutContext
    ) -> None:
        """Looks at the episodes of a request that ended in this round, and at their trajectories: where they
        are graded together."""

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        if request.resume is None:
            episodes = [Episode(self, k, context, None) for k in range(request.n)]
        else:
            paused = [one for one in request.resume.trajectories if one.paused]
            episodes = [Episode(self, one.number, context, one) for one in paused]
        await asyncio.gather(*[one.run(self) for one in episodes])
        members = [one.trajectory() for one in episodes]
        pairs = zip(episodes, members, strict=True)
        await self.finalize([(one, member) for one, member in pairs if not member.paused], context)
        return RolloutOutput(request.group_id, members)
