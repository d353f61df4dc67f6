"""ARPO's cases: trajectories that leave each other after a tool's result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from credit_cases import Case, Worth, fate, group_worth, new_sequence, worth_of_groups
from scheduler_tools import build

from marsrl_verl.algos.arpo.advantages import NODE
from marsrl_verl.algos.arpo.config import Config
from marsrl_verl.algos.arpo.method import ARPO
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import Fork, Trajectory

Part = tuple[int, list[int], list[int]]
"""Node, tokens and mask: what was sampled, then a result."""


def part(node: int, rng: np.random.Generator) -> Part:
    sampled, result = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    ids = new_sequence("solver", rng, sampled + result).response_ids.tolist()
    return node, ids, [1] * sampled + [0] * result


def agents(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """Two roots; the others leave an earlier one after one of its results."""
    nodes = iter(range(1000))
    grown: list[list[Part]] = []
    found: list[Trajectory] = []
    for k in range(item.n):
        fork, parts = None, []
        if k >= 2:
            other = int(rng.integers(len(grown)))
            parts = grown[other][: int(rng.integers(1, len(grown[other]) + 1))]
            fork = Fork(f"{item.group_id}#{other}", sum(len(ids) for _, ids, _ in parts))
        parts = [*parts, *(part(next(nodes), rng) for _ in range(int(rng.integers(1, 3))))]
        grown.append(parts)
        ids, mask = ([token for one in parts for token in one[which]] for which in (1, 2))
        numbers = [[number] * len(one[1]) for number, one in enumerate(parts)]
        columns = {
            NODE: np.array([node for node, tokens, _ in parts for _ in tokens], dtype=np.int32),
            TURN: np.where(mask, np.array([turn for turns in numbers for turn in turns]), -1).astype(
                np.int16
            ),
        }
        sequence = Sequence(item.role, [7, 8], ids, np.full(len(ids), -0.5), mask, annotations=columns)
        name, more = f"{item.group_id}#{k}", fate(rng, (-1.0, 0.0, 1.0, 1.1))
        found.append(Trajectory(name, [sequence], text="x", fork=fork, **more))
    return found


def shared_worth(rule: Callable[[list[frozenset], dict], float]) -> Callable[[StepResult], Worth]:
    """What a token is worth by the rows that share it (arXiv 2507.19849, §3.2).

    Args:
        rule: of the sets of rows on the way to the token, the group's first, and what each row is worth.
    """

    def of_group(group: Group) -> Worth:
        flat = {name: values[0] for (name, _), values in group_worth(group).items()}
        texts = {one.trajectory_id: one.sequences[0].response_ids.tolist() for one in group.trajectories}
        found: Worth = {}
        for name in flat:
            way, worth = [frozenset(flat)], []
            for end in range(1, len(texts[name]) + 1):
                here = frozenset(other for other in flat if texts[other][:end] == texts[name][:end])
                if here != way[-1] or end == 1:
                    way.append(here)
                worth.append(rule(way, flat))
            found[name, 0] = worth
        return found

    return lambda result: {row: worth for group in result.completed for row, worth in of_group(group).items()}


def _mean(rows: frozenset, flat: dict) -> float:
    return sum(flat[one] for one in rows) / len(rows)


def hard(way: list[frozenset], flat: dict) -> float:
    """The mean of the rows that share the token."""
    return _mean(way[-1], flat)


def sibling(way: list[frozenset], flat: dict) -> float:
    """That less the mean of all below the fork that the token's part comes from; the group's is 0."""
    return _mean(way[-1], flat) - (_mean(way[-2], flat) if len(way) > 2 else 0.0)


def arpo(attribution: str) -> ARPO:
    return build(ARPO, AgentPrompts(), Config(group_size=6, attribution=attribution))


CASES = (
    Case("arpo", lambda: arpo("soft"), agents, worth_of_groups, turns=True, leaves=True),
    Case("arpo_hard", lambda: arpo("hard"), agents, shared_worth(hard), turns=True, leaves=True),
    Case("arpo_sibling", lambda: arpo("sibling"), agents, shared_worth(sibling), turns=True, leaves=True),
)
