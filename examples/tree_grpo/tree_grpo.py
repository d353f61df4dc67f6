"""Tree-GRPO (arXiv 2509.21240): responses grow as trees, and are compared in their tree and among all trees.

M = `group_size` responses to a problem are trees, whose nodes are steps (`split_steps`: up to a blank line).
In each of L rounds N nodes of every tree are drawn, with replacement, leaves left out and the problem itself
among them, and one response goes on from each. Of all M (1 + L N), with norm(R) = (R - mean) / (std + 1e-6),

    A_i = norm(R_i) among all responses to the problem + norm(R_i) among the responses of i's tree

is the advantage of all of i's tokens: what several responses share is trained with each of them.
"""

from collections import Counter, defaultdict
from dataclasses import replace

from marsrl_verl.core.credit import Credit
from marsrl_verl.core.credit.advantages import comparable_rows, group_advantages
from marsrl_verl.core.method import Method
from marsrl_verl.core.reasoning_steps import TokenTexts, split_steps
from marsrl_verl.core.schedule import Schedule, Unit
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.settings.declaration import MethodConfig, limits


class Config(MethodConfig):
    expansions: int = limits(2, ge=1, why="a tree has branches")
    """Nodes of a tree that are gone on from in a round (N)."""
    rounds: int = limits(1, ge=1, why="a tree has branches")
    """Rounds (L)."""


class TreeSchedule(Schedule):
    unit = Unit.PROBLEM


def responses(groups):
    """Each with its request and the response that its tree began with."""
    found = [(group.request, one) for group in groups for one in group.comparable]
    return [(request, one, request.inputs.get("tree", one.trajectory_id)) for request, one in found]


class TreeCredit(Credit):
    Config, is_group_relative = Config, False

    def is_trainable(self, groups):
        return len({reward for group in groups for reward in group.rewards}) > 1

    def keep(self, groups):
        return comparable_rows(groups, differing=False)

    def advantages(self, rows):
        compared, worth = defaultdict(list), Counter()
        for request, one, tree in responses(rows.groups):
            for those in (request.problem.problem_id, tree):
                compared[those].append(one)
        for members in compared.values():
            values = group_advantages([one.value for one in members]) if len(members) > 1 else [0.0]
            worth.update({one.trajectory_id: value for one, value in zip(members, values, strict=True)})
        found = [worth[rows.trajectory(row).trajectory_id] for row in range(len(rows))]
        return rows.to_tokens(found).astype("float32")


class TreeGRPO(Method):
    Config, Credit, Schedule = Config, TreeCredit, TreeSchedule

    def __init__(self, config, tools):
        super().__init__(config, tools)
        self.texts = TokenTexts(lambda token: tools.tokenizer.decode([token]))
        self.nodes = {}  # by problem and tree: the beginnings of responses

    @classmethod
    def stages(cls, config):
        size, most = config.group_size, config.group_size * config.rounds * config.expansions
        stages = Stage("chain", "solver", size), Stage("expansion", "solver", 1, most)
        return tuple(replace(stage, next=("expansion",)) for stage in stages)

    def next_requests(self, problem, stage, groups, step):
        nodes = self.nodes.setdefault(problem.problem_id, {})
        for request, one, tree in responses(groups):
            ends = split_steps(one.sequence.response_ids.tolist(), self.texts).ends
            shared = -1 if request.prefix is None else len(request.prefix)
            for at in (at for at in (0, *ends[:-1]) if at > shared):
                node = {"parent_id": one.trajectory_id, "prefix": one.sequence.truncate(at).to_plain()}
                nodes.setdefault(tree, []).append(node)
        expansion, chat = self.stages(self.config)[1], groups[0].request.messages
        number = groups[0].request.inputs.get("round", 0) + 1
        if not nodes or number > self.config.rounds:
            del self.nodes[problem.problem_id]
            return []
        rng, requests = derive_generator(self.tools.seed, "nodes", problem.problem_id, number), []
        for place, (tree, found) in enumerate(nodes.items()):
            for k, at in enumerate(rng.integers(len(found), size=self.config.expansions)):
                prefix, slot = Sequence.from_plain(found[at]["prefix"]), f"{number}-{place}-{k}"
                fields = {"parent_id": found[at]["parent_id"], "inputs": {"tree": tree, "round": number}}
                requests.append(expansion.request(problem, chat, step, slot, prefix=prefix, **fields))
        return requests

    def state_dict(self):
        return {"nodes": self.nodes}

    def load_state_dict(self, state):
        self.nodes = state["nodes"]
