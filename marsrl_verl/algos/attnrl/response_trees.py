"""From a problem's groups to its tree: which samples are leaves, what they earn, figures for the metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.core.tree import Path, Tree, build_tree, leaf_counts, subtree_sums, values
from marsrl_verl.settings.choices import Choice


class AdvantageRule(Choice):
    """How rewards become advantages."""

    ATTNRL = "attnrl"
    """arXiv 2509.26628, eq. 2 and 3."""
    TREERL_ORIGINAL = "treerl_original"
    """TreeRL's released code."""


def treerl_advantages(tree: Tree) -> NDArray[np.float64]:
    """(M,) as TreeRL's released code has them (arXiv 2506.11902), 0 for the root.

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
    """Groups by their problem, the first responses before their continuations."""
    found: dict[str, list[Group]] = {}
    for group in sorted(groups, key=_depth_and_id):
        found.setdefault(group.request.problem.problem_id, []).append(group)
    return found


def _depth_and_id(group: Group) -> tuple[bool, str]:
    return group.request.prefix is not None, group.group_id


def problem_tree(groups: Sequence[Group]) -> tuple[Tree, list[Trajectory]]:
    """The tree of one problem and the trajectories of its paths; those that are not comparable are left out,
    and none of them has continuations."""
    paths: list[Path] = []
    members: list[Trajectory] = []
    for group in sorted(groups, key=lambda group: group.request.prefix is not None):
        prefix = group.request.prefix
        for one in group.comparable:
            branch = 0 if prefix is None else len(prefix)
            paths.append(Path(one.trajectory_id, one.tokens, one.value, group.request.parent_id, branch))
            members.append(one)
    return build_tree(paths), members


def tree_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Figures of the trees that a step trains: mean value of the root, leaves and rewards by stage."""
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
        "attnrl/shared_token_share": shared / tokens if tokens else 0.0,
    }
