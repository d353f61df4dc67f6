"""One request, `n` independent calls of the model: a stage that only prompts the model.

A long response may take several rounds: each adds a segment to the tokens that are there already.
"""

from __future__ import annotations

import asyncio

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import RolloutOutput, Trajectory
from marsrl_verl.rollout.context import RolloutContext


class SingleCall:
    """Implements `marsrl_verl.rollout.context.Rollout`.

    The `n` responses are one engine request, whether they begin at the prompt or continue `request.prefix`.
    What is paused goes on by itself: where a segment is full and the role's limit is not reached, a
    trajectory is PAUSED. A chat that the template rejects, a prompt over the role's limit, a request that
    the engine rejects and completions that did not come are trajectories without new tokens, whose finish
    reason says so.

    Raises:
        EngineUnavailableError: the engine is gone.
    """

    pauses = grades_each = True

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        role = request.role
        if not context.policy(role).trained:
            chats = [context.chat(k, role, request.messages) for k in range(request.n)]
            members = list(await asyncio.gather(*chats))
        elif request.resume is not None:
            paused = [one for one in request.resume.trajectories if one.paused]
            members = list(await asyncio.gather(*[_next_segment(one, request, context) for one in paused]))
        else:
            begun = context.conversation(0, role, request.messages, prefix=request.prefix)
            members = [one.trajectory() for one in await begun.sample_n(request.n)]
        ended = [one for one in members if not one.paused]
        for one, reward in zip(ended, await context.score(ended), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, members)


async def _next_segment(one: Trajectory, request: RolloutRequest, context: RolloutContext) -> Trajectory:
    conversation = context.conversation(one.number, request.role, request.messages, prefix=one.sequence)
    await conversation.sample()
    return conversation.trajectory()
