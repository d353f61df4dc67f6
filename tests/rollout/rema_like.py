"""A rollout as ReMA's (arXiv 2503.09501), as small as it can be: two agents, each with its own messages."""

from __future__ import annotations

import asyncio
from typing import Any

from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory

META, REASONING, FINISH = "meta_thinking", "reasoning", "[FINISH]"
ACTION = {"json": {"type": "object", "required": ["action", "output"]}}


class Dialogue:
    """The meta-thinking agent says what to do, the reasoning agent does it, turn by turn.

    It ends when the reasoning agent has answered a `[FINISH]`, after `turns` turns, with a message that was
    cut, or when a list of messages is full.
    """

    def __init__(self, turns: int, message_tokens: int, structured: bool = False) -> None:
        self.turns, self.message_tokens, self.structured = turns, message_tokens, structured

    @classmethod
    def from_settings(cls, settings) -> Dialogue:
        return cls(**vars(settings.algo))

    async def run(self, request, context) -> RolloutOutput:
        before = {} if request.resume is None else {one.number: one for one in request.resume.trajectories}
        going = [k for k in range(request.n) if k not in before or before[k].paused]
        members = await asyncio.gather(*[self._episode(k, before.get(k), context) for k in going])
        ended = [one for one in members if not one.paused]
        for one, reward in zip(ended, await context.score(ended), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, list(members))

    async def _episode(self, k: int, before: Trajectory | None, context) -> Trajectory:
        turn, finishing = 0, False
        if before is None:
            chats = [context.conversation(k, META, context.request.messages)]
        else:
            turn, finishing = before.state["turn"], before.state["finishing"]
            pairs = zip(before.sequences, before.state["chats"], strict=True)
            chats = [context.conversation(k, s.role, (), prefix=s, state=saved) for s, saved in pairs]
        while True:
            meta = turn % 2 == 0
            chat = chats[turn % 2]
            structured = ACTION if meta and self.structured else None
            most = self.message_tokens - chat.run_tokens
            found = await chat.sample(max_tokens=most, stop=(FINISH,), turn=turn // 2, structured=structured)
            if found.finish is FinishReason.PAUSED:
                state = {"turn": turn, "finishing": finishing, "chats": [one.state() for one in chats]}
                return self._trajectory(k, context, chats, FinishReason.PAUSED, None, state)
            if found.finish is not FinishReason.STOP:
                limit = "message_limit" if chat.tokens_left else "context_limit"
                cut = found.finish is FinishReason.LENGTH
                finish, detail = (FinishReason.LIMIT, limit) if cut else (found.finish, chat.detail)
                return self._trajectory(k, context, chats, finish, detail)
            finishing = finishing or (meta and found.stop == FINISH)
            if not meta and finishing:
                return self._trajectory(k, context, chats, FinishReason.STOP, None)
            turn += 1
            if turn == 2 * self.turns:
                return self._trajectory(k, context, chats, FinishReason.LIMIT, "turn_limit")
            self._hand_over(k, context, chats, chat.turn_text(), turn)

    def _hand_over(self, k: int, context, chats: list[Any], said: str, turn: int) -> None:
        """What one agent said is the other's next user message."""
        if turn == 1:
            question = context.request.problem.question
            said = f"Question: {question} Instruction: {said}"
            chats.append(context.conversation(k, REASONING, [{"role": "user", "content": said}]))
        else:
            said = said.removesuffix(FINISH).rstrip() if turn % 2 == 0 else said
            chats[turn % 2].append([{"role": "user", "content": said}])

    def _trajectory(self, k, context, chats, finish, detail, state=None) -> Trajectory:
        answer = "" if state or len(chats) < 2 else chats[1].turn_text()
        sequences = [one.sequence() for one in chats]
        name = f"{context.request.group_id}#{k}"
        return Trajectory(name, sequences, finish, answer, answer, detail=detail, state=state)
