"""A method of one's own: at each problem's first `=` a calculator writes, then the model goes on."""

import asyncio
import re

from marsrl_verl.core.credit.advantages import comparable_rows
from marsrl_verl.core.method import Method, Stage, StagePlan
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput


class TwoTurns:  # the rollout program; what the calculator writes has mask 0: it is read and not trained
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


class Calculator(Method):
    roles = ("agent",)
    stages = (Stage("answer", "agent"),)
    rollouts = (rollout := "own_method.calculator:TwoTurns",)  # `rollout`: in the evaluation too

    def __init__(self, settings, tools):
        self.prompts, self.n = tools.prompts, settings.algo.group_size

    @classmethod
    def plan(cls, config):
        return (StagePlan("answer", "agent", 1, True, config.group_size),)

    def first_requests(self, problem, step):
        asked = (f"{problem.problem_id}/answer/0", problem, "answer", "agent", self.prompts.problem(problem))
        return [RolloutRequest(*asked, self.n, self.rollout, created_step=step)]

    def late_rewards(self, groups):  # right answers are worth less, the longer they are
        right = [one for group in groups for one in group.comparable if one.value > 0]
        least = min((one.tokens for one in right), default=0)
        return {one.trajectory_id: RewardResult(least / one.tokens, one.scored.info) for one in right}

    def trains(self, groups):
        return any(len(set(group.rewards)) > 1 for group in groups)

    def select(self, groups, step):
        return comparable_rows(groups)

    def advantages(self, rows):  # a reward against the mean of the group's others, leaving itself out
        every = [(rows.trajectory(row).value, rows.group(row).rewards) for row in range(len(rows))]
        worth = [value - (sum(rewards) - value) / (len(rewards) - 1) for value, rewards in every]
        return rows.spread(worth).astype("float32")
