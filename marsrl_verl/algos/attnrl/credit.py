"""The tree's credit: every segment is worth what the leaves below it say (arXiv 2509.26628, eq. 2 and 3); and
figures of the trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.attnrl.config import CONTINUATION, INITIAL, AdvantageRule, Config
from marsrl_verl.core.credit import MaskingCredit
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.core.tree import (
    Path,
    Tree,
    build_tree,
    leaf_counts,
    subtree_sums,
    tree_advantages,
    values,
)


def treerl_advantages(tree: Tree) -> NDArray[np.float64]:
    """Returns (M,) the advantages of TreeRL's released code (arXiv 2506.11902), 0 for the root.

    Rewards are centred by leaving one out, sums are divided by sqrt(|L|) before the mean over |L|, and a
    segment whose value is its parent's takes the parent's local part.
    """
    count = len(tree.leaf)
    if count == 1:  # there is nothing to compare with
        return np.zeros(len(tree.parent))
    centred = tree.reward - (tree.reward.sum() - tree.reward) / (count - 1)
    leaves = leaf_counts(tree)
    value = subtree_sums(tree, centred) / (leaves * np.sqrt(leaves))
    local = np.zeros(len(value))
    result = np.zeros(len(value))
    for node in range(1, len(value)):
        above = int(tree.parent[node])
        local[node] = value[node] - value[above]
        if abs(local[node]) < 1e-8:
            local[node] = local[above]
        result[node] = local[node] + value[node]
    return result


def by_problem(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Returns the groups by their problem, the first responses before their continuations."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: (group.request.prefix is not None, group.group_id)):
        found.setdefault(group.request.problem.problem_id, []).append(group)
    return found


def problem_tree(groups: Sequence[Group]) -> tuple[Tree, list[Trajectory]]:
    """Returns the tree of one problem and the trajectories of its paths; those that are not comparable, none
    of which has continuations, are left out."""
    paths: list[Path] = []
    members: list[Trajectory] = []
    for group in sorted(groups, key=lambda group: group.request.prefix is not None):
        branch = 0 if group.request.prefix is None else len(group.request.prefix)
        for one in group.comparable:
            paths.append(Path(one.trajectory_id, one.tokens, one.value, group.request.parent_id, branch))
            members.append(one)
    return build_tree(paths), members


def tree_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns figures of the trees that a step trains: mean value of the root, leaves and rewards by
    stage."""
    problems = list(by_problem(groups).values())
    if not problems:
        return {}
    trees = [problem_tree(one)[0] for one in problems]
    shared = sum(
        len(group.request.prefix) * len(group.trajectories)
        for group in groups
        if group.request.prefix is not None
    )
    tokens = sum(one.tokens for group in groups for one in group.trajectories)
    return {
        "attnrl/trained_problems": len(problems),
        "attnrl/leaves_per_problem": float(np.mean([len(tree.leaf) for tree in trees])),
        "attnrl/root_value_mean": float(np.mean([values(tree)[0] for tree in trees])),
        "attnrl/shared_token_frac": shared / tokens if tokens else 0.0,
    }


class TreeCredit(MaskingCredit):
    """Advantages of the segments of a problem's tree."""

    is_group_relative = False
    config: Config

    def is_trainable(self, groups: Sequence[Group]) -> bool:
        """True if some leaf enters the loss: their rewards are not all equal, else every advantage is 0, and
        there are others than unexpanded responses if these are dropped."""
        included = self.config.train_unbranched or any(
            group.request.stage == CONTINUATION for group in groups
        )
        return included and len({reward for group in groups for reward in group.rewards}) > 1

    def keep(self, groups: Sequence[Group]) -> list[RowRef]:
        """Returns the leaves with tokens, without unexpanded first responses if these are dropped."""
        branched = {group.request.parent_id for group in groups}
        return [
            RowRef(at, place)
            for at, group in enumerate(groups)
            for place, one in enumerate(group.trajectories)
            if one.comparable and one.tokens
            if self.config.train_unbranched or group.request.stage != INITIAL or one.trajectory_id in branched
        ]

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """Returns the tree's advantages, segment by segment (arXiv 2509.26628, eq. 3)."""
        rule = tree_advantages if self.config.advantage_rule is AdvantageRule.ATTNRL else treerl_advantages
        segments: dict[str, list[tuple[int, float]]] = {}
        for groups in by_problem(rows.groups).values():
            tree, members = problem_tree(groups)
            by_node = rule(tree)
            for at, one in enumerate(members):
                ends = tree.segments_of(at)
                segments[one.trajectory_id] = [(end, float(by_node[node])) for end, node in ends]
        found = np.zeros(rows.tokens, dtype=np.float32)
        for row in range(len(rows)):
            start = first = int(rows.offsets[row])
            for end, advantage in segments[rows.trajectory(row).trajectory_id]:
                found[start : first + end] = advantage
                start = first + end
        return found
