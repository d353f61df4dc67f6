"""A method of one's own: at each problem's first `=` a calculator writes, then the model goes on."""

import asyncio
import re

from marsrl_verl.core.credit import EstimatorCredit
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput


class TwoTurns:  # the workflow; what the calculator writes has mask 0: it is read and not trained
    async def run(self, request, context):
        members = await asyncio.gather(*[self.episode(k, request, context) for k in range(request.n)])
        for one, reward in zip(members, await context.score(members), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, list(members))

    async def episode(self, k, request, context):
        chat, events = context.conversation(k, request.role, request.messages), []
        if (await chat.sample(stop=("=",))).stop:
            if found := re.search(r"(\d+)([-+])(\d+)=$", chat.turn_text()):
                result = int(found[1]) + int(found[2] + found[3])
                events.append({"tool": "calculator", "result": result})
                chat.append_text(f"{result}\n")
            await chat.sample()
        return chat.trajectory(events=events)


class LeaveOneOut(EstimatorCredit):  # a reward against the mean of the group's others
    def advantages(self, rows):
        every = [(rows.trajectory(row).value, rows.group(row).rewards) for row in range(len(rows))]
        worth = [value - (sum(rewards) - value) / (len(rewards) - 1) for value, rewards in every]
        return rows.to_tokens(worth).astype("float32")


class Calculator(Method):
    roles = {"agent": Role(answers=True)}
    Credit = LeaveOneOut

    @classmethod
    def stages(cls, config):
        return (Stage("answer", "agent", config.group_size, rollout=TwoTurns),)

    def deferred_rewards(self, groups):  # right answers are worth less, the longer they are
        right = [one for group in groups for one in group.comparable if one.value > 0]
        least = min((one.tokens for one in right), default=0)
        return {one.trajectory_id: RewardResult(least / one.tokens, one.scored.info) for one in right}
