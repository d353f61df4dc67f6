"""Workflows of the kinds that methods have: a tool loop, a tree of forks, a dialogue of two."""

from __future__ import annotations

import asyncio

from marsrl_verl.core.trajectory import FinishReason, Fork, RolloutOutput, Trajectory

STOP = "</call>"


def earlier(request, k: int) -> Trajectory | None:
    members = [] if request.resume is None else request.resume.trajectories
    return next((one for one in members if one.number == k), None)


def to_do(request) -> list[int]:
    """Numbers of the trajectories that are not begun, or paused."""
    return [k for k in range(request.n) if (one := earlier(request, k)) is None or one.paused]


class ToolLoop:
    """Calls end with `</call>`; results are written into the turn."""

    async def run(self, request, context):
        episodes = [self.episode(k, request, context) for k in to_do(request)]
        return RolloutOutput(request.group_id, list(await asyncio.gather(*episodes)))

    async def episode(self, k: int, request, context) -> Trajectory:
        before = earlier(request, k)
        if before is None:
            conversation, calls = context.conversation(k, "agent", request.messages), 0
        else:
            saved, calls = before.state["conversation"], before.state["calls"]
            conversation = context.conversation(
                k, "agent", request.messages, prefix=before.sequence, state=saved
            )
        return await loop(conversation, calls)


async def loop(conversation, calls: int, fork: Fork | None = None) -> Trajectory:
    """Samples and calls until the turn ends, or the round's tokens are used."""
    while True:
        completion = await conversation.sample(stop=(STOP,), turn=calls)
        if completion.finish is FinishReason.PAUSED:
            state = {"conversation": conversation.state(), "calls": calls}
            return conversation.trajectory(fork=fork, state=state)
        if completion.stop is None:
            return conversation.trajectory(fork=fork)
        calls += 1
        conversation.append_text(f"<result>{calls * 11}</result>")


class Forking:
    """Trajectory 0 forks when it has written its first 12 tokens: 1 goes on from its third token, 2 from the
    twelfth. Each is told its number."""

    async def run(self, request, context):
        root, members = earlier(request, 0), {}
        if root is None or root.state == "root":
            conversation = context.conversation(
                0, "agent", request.messages, prefix=None if root is None else root.sequence
            )
            completion = await conversation.sample(max_tokens=12 - len(conversation))
            if completion.finish is FinishReason.PAUSED:
                return RolloutOutput(request.group_id, [conversation.trajectory(state="root")], "growing")
            forks = [conversation, conversation.fork(1, at=3), conversation.fork(2)]
            for k, one in enumerate(forks):
                one.append_text(f"[{k}]")
            members = {
                k: loop(one, 0, Fork(conversation.trajectory_id, (12, 3, 12)[k]) if k else None)
                for k, one in enumerate(forks)
            }
        else:
            for one in request.resume.trajectories:
                if one.paused:
                    saved = one.state
                    conversation = context.conversation(
                        one.number, "agent", (), prefix=one.sequence, state=saved["conversation"]
                    )
                    members[one.number] = loop(conversation, saved["calls"], one.fork)
        return RolloutOutput(request.group_id, list(await asyncio.gather(*members.values())))


class Dialogue:
    """A planner and a worker, who read what the other one has written, four turns each."""

    turns = 8

    async def run(self, request, context):
        episodes = [self.episode(k, request, context) for k in to_do(request)]
        return RolloutOutput(request.group_id, list(await asyncio.gather(*episodes)))

    async def episode(self, k: int, request, context) -> Trajectory:
        before = earlier(request, k)
        if before is None:
            state, speakers = {"turn": 0}, [context.conversation(k, "planner", request.messages)]
        else:
            state, speakers = before.state, []
            for sequence, saved in zip(before.sequences, state["conversations"], strict=True):
                speakers.append(context.conversation(k, sequence.role, (), prefix=sequence, state=saved))
        turn = state["turn"]
        while turn < self.turns:
            speaker = speakers[turn % 2]
            completion = await speaker.sample(stop=("[OVER]",), turn=turn)
            if completion.finish is FinishReason.PAUSED:
                state = {"turn": turn, "conversations": [one.state() for one in speakers]}
                return self._made(k, request, speakers, FinishReason.PAUSED, state)
            said = {"role": "user", "content": speaker.turn_text()}
            turn += 1
            if turn == 1:
                speakers.append(context.conversation(k, "worker", [said]))
            elif turn < self.turns:
                speakers[turn % 2].append([said])
        return self._made(k, request, speakers, FinishReason.STOP, None)

    def _made(self, k: int, request, speakers, finish, state) -> Trajectory:
        sequences = [one.sequence() for one in speakers]
        text = "" if state else "\n".join(one.texts()[0] for one in speakers)
        return Trajectory(f"{request.group_id}#{k}", sequences, finish, text, state=state)
