"""The dialogue as a workflow (ReMA, arXiv 2503.09501, §3.2.2 and appendix D.2).

Each agent has a list of messages of its own, in which the other's messages are the user's. The meta-thinking
agent speaks first; a turn is a message of it and the answer of the reasoning agent, to whom the first
instruction is shown with the question. Dialogues are independent: each goes on as soon as its own message is
there.

A dialogue ends (`Trajectory.finish`; `detail`, and `end` of the last of its `events`)

    stop               the reasoning agent has answered a message with [FINISH]
    limit   max_turns, after `max_turns` turns
            list_full, where the next speaker's list has no room for a message
            empty_message, same_message, repetition: as `marsrl.algo.guards` say
    length  message_cut, where a message has reached `message_tokens` (`stop_when_truncated`)

or like a request that was rejected or failed (`prompt_too_long` of the first one, `error`, `aborted`,
`refused`). A message that ended at [FINISH] has no end token in the sequence: what the chat template writes
after it is not sampled, and not trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marsrl_verl.algos.rema.dialogue.config import Config, FinishStops
from marsrl_verl.algos.rema.dialogue.rewarding import reward_dialogues
from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, DialoguePrompts
from marsrl_verl.core.request import Message
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.text_metrics import REPEATED_TOKENS, distinct_frac
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.speakers import Spoken
from marsrl_verl.rollout.workflow import LIST_FULL, Episode, Said, Workflow

PROGRAM = "marsrl_verl.algos.rema.dialogue.rollout:Dialogue"
MAX_TURNS, MESSAGE_CUT = "max_turns", "message_cut"
EMPTY_MESSAGE, SAME_MESSAGE, REPETITION = "empty_message", "same_message", "repetition"
FINISHED = "finished"


def without_finish(text: str) -> str:
    """Returns the reasoning agent's text as it is passed on and graded: without `[FINISH]`, the other's
    mark."""
    return text.replace(FINISH, "").rstrip()


class Dialogue(Workflow):
    """Two agents in turn."""

    prompts: DialoguePrompts
    config: Config

    async def play(self, episode: Episode) -> None:
        """Plays turns until the meta-thinking agent has written [FINISH] and is answered."""
        finishing, empty, heard = False, 0, None
        stops = (FINISH,) if self.config.finish_stops is FinishStops.BOTH else ()
        for turn in range(self.config.max_turns):
            plan = await self._message(episode, META_THINKING, heard, turn, FINISH)
            finishing |= FINISH in plan
            empty = self._end(episode, plan, empty)
            instruction: str | Sequence[Message] = plan
            if turn == 0:
                instruction = self.prompts.reasoning(episode.problem, plan)
            said = await self._message(episode, REASONING, instruction, turn, *stops)
            heard = without_finish(said)
            episode.answer(heard)
            empty = self._end(episode, said, empty, finishing=finishing)
        episode.end(FinishReason.LIMIT, MAX_TURNS)

    async def _message(
        self, episode: Episode, role: str, heard: str | Sequence[Message] | None, turn: int, *stop: str
    ) -> Said:
        most = self.config.message_tokens
        said = await episode.agents[role].say(
            heard, max_tokens=most, whole=True, stop=stop, turn=turn, ends=False
        )
        if said.finish is FinishReason.PROMPT_TOO_LONG and role == REASONING:
            episode.end(FinishReason.LIMIT, LIST_FULL)
        if said.failed:
            episode.end(said.finish, said.detail, said.failed_by)
        return said

    def _end(self, episode: Episode, said: Said, empty: int, *, finishing: bool = False) -> int:
        """Ends the dialogue with its last message, or goes on; returns the number of empty messages."""
        guards, last = self.config.guards, said.event
        if said.cut and self.config.stop_when_truncated:
            episode.end(FinishReason.LENGTH, MESSAGE_CUT)
        if finishing:
            episode.end(FinishReason.STOP)
        empty += bool(last["empty"])
        if guards.empty_messages is not None and last["empty"] and empty >= guards.empty_messages:
            episode.end(FinishReason.LIMIT, EMPTY_MESSAGE)
        if guards.same_messages is not None and last["same"] >= guards.same_messages:
            episode.end(FinishReason.LIMIT, SAME_MESSAGE)
        if guards.repeated_frac is not None and (last["repetition"] or 0.0) > guards.repeated_frac:
            episode.end(FinishReason.LIMIT, REPETITION)
        return empty

    def shown(self, role: str, text: str) -> str:
        """Returns a message as the transcript has it, that of the reasoning agent without [FINISH]."""
        return text if role == META_THINKING else without_finish(text)

    def event(self, episode: Episode, role: str, turn: int, spoken: Spoken) -> dict[str, Plain]:
        """Returns the event of a message: its length, and whether it is cut, empty or repeats others or
        itself."""
        own = [text for who, text in reversed(episode.transcript) if who == role]
        text, ids, distinct = own[0], spoken.token_ids, None
        if ids is not None:
            distinct = distinct_frac(ids.astype(np.uint64), REPEATED_TOKENS)
        return {
            **({} if ids is not None else {"text": spoken.text}),  # no sequence has it
            "turn": turn,
            "role": role,
            "tokens": None if ids is None else int(ids.size),
            "cut": spoken.finish is FinishReason.LENGTH,
            "empty": not text.replace(FINISH, "").strip() and FINISH not in text,
            "same": next((count for count, other in enumerate(own) if other != text), len(own)),
            "repetition": None if distinct is None else 1.0 - distinct,
        }

    async def finalize(self, ended: Sequence[tuple[Episode, Trajectory]], context: RolloutContext) -> None:
        """Sets the rewards of the dialogues, and notes how they ended."""
        for episode, one in ended:
            reason = FINISHED if one.finish is FinishReason.STOP else one.detail or one.finish.value
            turns = sum(role == REASONING for role, _ in episode.transcript)
            one.events.append({"end": reason, "turns": turns})
        await reward_dialogues([(one, episode.transcript) for episode, one in ended], context, self.config)
