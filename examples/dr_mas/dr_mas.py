"""A solver answers, a verifier accepts or rejects, the solver answers again: Dr.MAS and AT-GRPO.

`grouping: agent` (Dr.MAS, arXiv 2602.08847, eq. 5). Y_k: all messages of agent k in a problem's `group_size`
dialogues; R(a): the reward of a's dialogue. Who speaks twice in it counts twice, who is silent not at all.

    A_k(a) = (R(a) - mean of R over Y_k) / (standard deviation of R over Y_k)

`grouping: agent_turn` (AT-GRPO, arXiv 2510.11062). An agent's message has K = `group_size` candidates, each
worth r = weight * r_team + r_local. The dialogue goes on with the best one, of equals the first.

    A_it(c) = (r_c - mean of r over the K) / (standard deviation of r over the K)
"""

from dataclasses import replace
from statistics import mean, stdev
from typing import Literal

from marsrl_verl.core.credit import Estimator, EstimatorConfig, EstimatorCredit
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.stage import Stage
from marsrl_verl.evaluation.workflow import WorkflowEvaluation
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.settings.declaration import Needs, limits

CHECK, REJECTED = "{}\nAn answer is: {}\nIs it RIGHT or WRONG?", "WRONG"
RETRY = "A verifier says: {}\nAnswer again."


class Config(EstimatorConfig):
    grouping: Literal["agent", "agent_turn"] = "agent"
    """`agent`: all messages of an agent are compared (Dr.MAS). `agent_turn`: candidates of one (AT-GRPO)."""
    rounds: int = limits(2, ge=2, why="the verifier is asked between two answers")
    """Most answers of the solver."""
    team_weight: float = limits(1.0, ge=0, why="it weighs a reward", needs=Needs("grouping", "agent_turn"))
    """What the team's reward counts beside the agent's own."""


class Dialogue(Workflow):
    async def play(self, episode):
        solver, verifier = episode.agents
        answer, verdict = await solver.say(), REJECTED
        while REJECTED in verdict and solver.messages < self.config.rounds:
            verdict = await verifier.say(CHECK.format(episode.problem.question, answer))
            answer = await solver.say(RETRY.format(verdict)) if REJECTED in verdict else answer
        right = await episode.grade("solver", answer)
        episode.reward(right)
        episode.answer(answer, right)


class AgentCredit(EstimatorCredit):
    counts_kl = False

    def advantages(self, rows):
        if self.config.grouping != "agent" or self.config.estimator is not Estimator.GROUP:
            return super().advantages(rows)
        found = []
        for row in range(len(rows)):
            members, role = rows.group(row).comparable, rows.sequence(row).role
            parts = [(one, part) for one in members for part in one.sequences if part.role == role]
            turns = [(one, set(part.annotations["turn"].tolist())) for one, part in parts]
            rewards = [one.value for one, numbers in turns for turn in numbers if turn >= 0]
            scale = stdev(rewards) + 1e-6 if self.config.normalize_std and len(rewards) > 1 else 1.0
            found.append((rows.trajectory(row).value - mean(rewards)) / scale)
        return rows.to_tokens(found).astype("float32")


class DrMAS(Method):
    Config, Credit = Config, AgentCredit
    roles = {"solver": Role(answers=True), "verifier": Role()}
    dialogue = Stage("dialogue", "solver", 2, rollout=Dialogue, writers=tuple(roles))

    @classmethod
    def stages(cls, config):
        if config.grouping == "agent":
            return (replace(cls.dialogue, group_size=config.group_size),)
        solve = Stage("solve", "solver", config.group_size, config.rounds, next=("verify",))
        return solve, Stage("verify", "verifier", config.group_size, config.rounds - 1, next=("solve",))

    @classmethod
    def evaluation(cls, config, evaluation, prompts):
        return WorkflowEvaluation(cls.dialogue, prompts)  # nobody chooses among candidates

    def deferred_rewards(
        self, groups
    ):  # local: it is right itself; team: the dialogue ends with a right answer
        found, weight = {}, self.config.team_weight
        for request, one in [(group.request, one) for group in groups for one in group.comparable]:
            right = request.inputs.get("worth", one.value) > 0.5
            ends = request.stage == "solve" or REJECTED not in one.final_text
            found[one.trajectory_id] = replace(one.scored, value=weight * (ends and right) + (ends == right))
        return found if self.config.grouping == "agent_turn" else {}

    def next_requests(self, problem, stage, groups, step):  # of AT-GRPO: every turn is a request
        request, (solve, verify), rounds = groups[0].request, self.stages(self.config), self.config.rounds
        ended = [one for one in groups[0].comparable if one.finished and one.final_text]
        best, turn = max(ended, key=lambda one: one.value, default=None), request.inputs.get("turn", 0)
        if not best or turn + 1 == rounds or (stage == "verify" and REJECTED not in best.final_text):
            return []
        if stage == "solve":
            after, chat, text = verify, (), CHECK.format(problem.question, best.final_text)
            inputs = {"turn": turn, "answer": best.final_text, "worth": best.value}
        else:
            said = {"role": "assistant", "content": request.inputs["answer"]}
            after, chat, text = solve, (*self.prompts.problem(problem), said), RETRY.format(best.final_text)
            inputs = {"turn": turn + 1}
        chat, turn = (*chat, {"role": "user", "content": text}), inputs["turn"]
        return [after.request(problem, chat, step, turn, inputs=inputs, parent_id=best.trajectory_id)]
