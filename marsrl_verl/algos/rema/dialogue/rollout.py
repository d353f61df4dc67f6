"""The dialogue as a rollout program (ReMA, arXiv 2503.09501, §3.2.2 and appendix D.2).

Each agent has a list of messages of its own, in which the other one's are the user's. The meta-thinking
agent speaks first; a turn is a message of it and the answer of the reasoning agent, to whom the first
instruction is shown with the question. Dialogues know nothing of each other: each goes on as soon as its own
message is there.

A dialogue ends (`Trajectory.finish`; `detail`, and `end` of the last of its `events`)

    stop               the reasoning agent has answered a message with [FINISH]
    limit   max_turns, after `max_turns` turns
            list_full, where the next speaker's list has no room for a message
            empty_message, same_message, repetition: as `marsrl.algo.guards` say
    length  message_cut, where a message has reached `message_tokens` (`stop_when_truncated`)

or as a request that was refused or failed (`prompt_too_long` of the first one, `error`, `aborted`,
`refused`). A message that ended at [FINISH] has no end token in the sequence: what the chat template writes
behind it is not sampled, and not trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from marsrl_verl.algos.rema.dialogue.config import Config, FinishStops, GuardConfig
from marsrl_verl.algos.rema.dialogue.rewarding import Transcript, reward_dialogues
from marsrl_verl.algos.rema.dialogue.speakers import FrozenSpeaker, Speaker, Spoken, TrainedSpeaker
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, ROLES, DialoguePrompts
from marsrl_verl.core.request import Message, RolloutRequest
from marsrl_verl.core.sequence import LABEL, Plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory
from marsrl_verl.evaluation.text_metrics import REPEATED_TOKENS, distinct_share
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rollout.context import RolloutContext

PROGRAM = "marsrl_verl.algos.rema.dialogue.rollout:Dialogue"
MAX_TURNS, LIST_FULL, MESSAGE_CUT = "max_turns", "list_full", "message_cut"
EMPTY_MESSAGE, SAME_MESSAGE, REPETITION = "empty_message", "same_message", "repetition"
FINISHED = "finished"


class End(NamedTuple):
    """How a dialogue ended, or that it is paused."""

    finish: FinishReason
    reason: str | None = None
    """`Trajectory.detail`."""
    failed_by: str | None = None


def without_finish(text: str) -> str:
    """What the reasoning agent said, as it is passed on and graded: `[FINISH]` is not its to say."""
    return text.replace(FINISH, "").rstrip()


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Implements `marsrl_verl.rollout.context.Rollout`.

    Raises:
        EngineUnavailableError: the engine is gone.
    """

    prompts: DialoguePrompts
    rules: Config

    pauses = True

    @classmethod
    def from_settings(cls, settings: Any) -> Dialogue:
        """With the prompts and the method's settings of the `marsrl` node."""
        base: type[Any] = DialoguePrompts
        return cls(load_class(settings.prompts.target, settings.prompts.kwargs, base), settings.algo)

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        """See `Rollout`."""
        if request.resume is None:
            episodes = [Episode(self, k, context) for k in range(request.n)]
        else:
            paused = [one for one in request.resume.trajectories if one.paused]
            episodes = [Episode.resumed(self, one, context) for one in paused]
        members = list(await asyncio.gather(*[one.run() for one in episodes]))
        spoken = zip(members, (one.transcript for one in episodes), strict=True)
        ended = [(one, transcript) for one, transcript in spoken if not one.paused]
        await reward_dialogues(ended, context, self.rules)
        return RolloutOutput(request.group_id, members)


class Episode:
    """One dialogue.

    Args:
        program: prompts and rules.
        k: the trajectory's number.
        context: of the request.
    """

    def __init__(self, program: Dialogue, k: int, context: RolloutContext) -> None:
        self.prompts, self.rules, self.k, self.context = program.prompts, program.rules, k, context
        self.turn, self.role, self.finishing = 0, META_THINKING, False
        self.transcript: Transcript = []
        self.events: list[dict[str, Plain]] = []
        self.speakers: dict[str, Speaker] = {}
        if context.request.resume is None:
            self._open(META_THINKING, context.request.messages)

    @classmethod
    def resumed(cls, program: Dialogue, before: Trajectory, context: RolloutContext) -> Episode:
        """One that was paused."""
        one, state = cls(program, before.number, context), before.state
        one.turn, one.role, one.finishing = state["turn"], state["role"], state["finishing"]
        one.transcript = [(role, text) for role, text in state["transcript"]]
        one.events = [dict(event) for event in before.events]
        sequences = {sequence.role: sequence for sequence in before.sequences}
        for role, saved in state["speakers"].items():
            one._open(role, saved["messages"], sequences.get(role), saved)
        return one

    def _open(
        self,
        role: str,
        messages: Sequence[Message],
        prefix: TokenSequence | None = None,
        state: Plain = None,
    ) -> None:
        """Let an agent take part, from these messages on."""
        if self.context.policy(role).trained:
            chat = self.context.conversation(self.k, role, messages, prefix=prefix, state=state)
            self.speakers[role] = TrainedSpeaker(chat)
        else:
            self.speakers[role] = FrozenSpeaker(self.context, self.k, role, messages)

    async def run(self) -> Trajectory:
        """Let the agents speak in turn until the dialogue has ended, or the round's tokens are used."""
        while (end := await self._message()) is None:
            pass
        return self._trajectory(end)

    async def _message(self) -> End | None:
        """One message, and how the dialogue ended with it."""
        rules, speaker = self.rules, self.speakers[self.role]
        if not speaker.fits(rules.message_tokens):
            return End(FinishReason.LIMIT, LIST_FULL)
        both = rules.finish_stops is FinishStops.BOTH
        stop = (FINISH,) if both or self.role == META_THINKING else ()
        spoken = await speaker.speak(self.turn, rules.message_tokens, stop)
        if spoken.finish is FinishReason.PAUSED:
            return End(spoken.finish)
        if spoken.finish is FinishReason.PROMPT_TOO_LONG and self.role == REASONING:
            return End(FinishReason.LIMIT, LIST_FULL)
        if spoken.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return End(spoken.finish, spoken.detail, spoken.failed_by)
        self._note(spoken)
        if (end := self._end(spoken)) is None:
            self._hand_over()
        return end

    def _note(self, spoken: Spoken) -> None:
        """Write down what was said."""
        self.finishing |= self.role == META_THINKING and FINISH in spoken.text
        text = spoken.text if self.role == META_THINKING else without_finish(spoken.text)
        self.transcript.append((self.role, text))
        ids, distinct = spoken.token_ids, None
        if ids is not None:
            distinct = distinct_share(ids.astype(np.uint64), REPEATED_TOKENS)
        self.events.append(
            {
                "turn": self.turn,
                "role": self.role,
                "tokens": None if ids is None else int(ids.size),
                "cut": spoken.finish is FinishReason.LENGTH,
                "empty": not text.replace(FINISH, "").strip() and FINISH not in text,
                "same": self._same(text),
                "repetition": None if distinct is None else 1.0 - distinct,
            }
        )

    def _same(self, text: str) -> int:
        """How many messages of the agent in a row, up to the last one, have its text."""
        own = [message for role, message in reversed(self.transcript) if role == self.role]
        return next((count for count, message in enumerate(own) if message != text), len(own))

    def _end(self, spoken: Spoken) -> End | None:
        """How the dialogue ends with the last message; None: it goes on."""
        rules = self.rules
        if spoken.finish is FinishReason.LENGTH and rules.stop_when_truncated:
            return End(FinishReason.LENGTH, MESSAGE_CUT)
        if self.role == REASONING and self.finishing:
            return End(FinishReason.STOP)
        if reason := self._guarded(rules.guards):
            return End(FinishReason.LIMIT, reason)
        if self.role == REASONING and self.turn + 1 >= rules.max_turns:
            return End(FinishReason.LIMIT, MAX_TURNS)
        return None

    def _guarded(self, guards: GuardConfig) -> str | None:
        """What the last message collapsed into."""
        last = self.events[-1]
        empty = sum(bool(event["empty"]) for event in self.events)
        if guards.empty_messages is not None and last["empty"] and empty >= guards.empty_messages:
            return EMPTY_MESSAGE
        if guards.same_messages is not None and last["same"] >= guards.same_messages:
            return SAME_MESSAGE
        if guards.repeated_share is not None and (last["repetition"] or 0.0) > guards.repeated_share:
            return REPETITION
        return None

    def _hand_over(self) -> None:
        """What one agent said is the other one's next message."""
        message = self.transcript[-1][1]
        if self.role == META_THINKING:
            self.role = REASONING
            if REASONING in self.speakers:
                self.speakers[REASONING].hear(message)
            else:
                self._open(REASONING, self.prompts.reasoning(self.context.request.problem, message))
        else:
            self.role, self.turn = META_THINKING, self.turn + 1
            self.speakers[META_THINKING].hear(message)

    def _trajectory(self, end: End) -> Trajectory:
        name = f"{self.context.request.group_id}#{self.k}"
        found = [self.speakers[role].sequence() for role in ROLES if role in self.speakers]
        sequences = [_labelled(one) for one in found if one is not None]
        if end.finish is FinishReason.PAUSED:
            state = {
                "turn": self.turn,
                "role": self.role,
                "finishing": self.finishing,
                "transcript": [[role, text] for role, text in self.transcript],
                "speakers": {role: one.state() for role, one in self.speakers.items()},
            }
            return Trajectory(name, sequences, end.finish, events=self.events, state=state)
        answers = [text for role, text in self.transcript if role == REASONING]
        reason = FINISHED if end.finish is FinishReason.STOP else end.reason or end.finish.value
        return Trajectory(
            name,
            sequences,
            end.finish,
            text="\n\n".join(f"[{role}]\n{text}" for role, text in self.transcript),
            final_text=answers[-1] if answers else "",
            detail=end.reason,
            failed_by=end.failed_by,
            events=[*self.events, {"end": reason, "turns": len(answers)}],
        )


def _labelled(sequence: TokenSequence) -> TokenSequence:
    """With the number of its agent, by which the loss tells its shares apart."""
    label = np.full(len(sequence), ROLES.index(sequence.role), dtype=np.int8)
    return replace(sequence, annotations={**sequence.annotations, LABEL: label})
