"""Two agents debate a problem, a judge picks the answer, and all three are trained."""

from marsrl_verl.core.credit import EstimatorConfig
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.stage import Stage
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.settings.declaration import limits


class Rounds(Workflow):
    async def play(self, episode):
        alice, bob, judge = episode.agents
        said = {"alice": await alice.say(), "bob": await bob.say()}  # both hear the problem
        for _ in range(self.config.rounds - 1):
            first = await alice.say(f"Another answer is {said['bob']} Answer again.")
            said = {"alice": first, "bob": await bob.say(f"Another answer is {said['alice']} Answer again.")}
        question = f"{episode.problem.question}\nA: {said['alice']}\nB: {said['bob']}\nWhich is right?"
        choice = await judge.say(question, max_tokens=16, ends=False)  # may be cut
        picked = "bob" if "B" in choice else "alice"
        right = {name: await episode.grade(name, text) for name, text in said.items()}
        episode.reward(**right, judge=right[picked])
        episode.metric("agreement", right["alice"].answer == right["bob"].answer)
        episode.answer(said[picked], right[picked])


class Config(EstimatorConfig):
    """A debate of two agents and a judge."""

    rounds: int = limits(2, ge=1, why="a debate has a round")
    """Answers of each agent."""


class Debate(Method):
    Config = Config
    roles = {"alice": Role(answers=True), "bob": Role(answers=True), "judge": Role()}

    @classmethod
    def stages(cls, config):
        return (Stage("debate", "alice", config.group_size, rollout=Rounds, writers=tuple(cls.roles)),)
