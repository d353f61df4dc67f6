"""A workflow of several turns, for the cost of a turn: the policy is asked the same again."""

from __future__ import annotations

import asyncio

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import RolloutOutput, Trajectory
from marsrl_verl.rollout.context import RolloutContext

PROGRAM = "benchmarks.throughput.dialogue:Dialogue"


class Dialogue:
    """Implements `marsrl_verl.rollout.context.Rollout`: `inputs["turns"]` turns of `inputs["tokens"]`."""

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        """See `Rollout`."""
        members = await asyncio.gather(*[self._one(k, request, context) for k in range(request.n)])
        for one, reward in zip(members, await context.score(members), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, list(members))

    async def _one(self, k: int, request: RolloutRequest, context: RolloutContext) -> Trajectory:
        chat = context.conversation(k, request.role, request.messages)
        for turn in range(request.inputs["turns"]):
            if turn:
                chat.append(request.messages[-1:])
            await chat.sample(max_tokens=request.inputs["tokens"], turn=turn)
        assert chat.finish is not None
        return Trajectory(
            f"{request.group_id}#{k}", [chat.sequence()], chat.finish, *chat.texts(), None, chat.detail
        )
