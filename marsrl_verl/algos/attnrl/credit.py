"""The tree's credit: every segment is worth what the leaves below it say (arXiv 2509.26628, eq. 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.attnrl.config import CONTINUATION, INITIAL, Config
from marsrl_verl.algos.attnrl.response_trees import (
    AdvantageRule,
    by_problem,
    problem_tree,
    treerl_advantages,
)
from marsrl_verl.core.credit import MaskingCredit
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.tree import tree_advantages


class TreeCredit(MaskingCredit):
    """Advantages of the segments of a problem's tree."""

    is_group_relative = False
    config: Config

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether some leaf enters the loss: their rewards are not all equal, else every advantage is 0, and
        there are others than unexpanded responses where these are dropped."""
        included = self.config.keep_unbranched or any(group.request.stage == CONTINUATION for group in groups)
        return included and len({reward for group in groups for reward in group.rewards}) > 1

    def keep(self, groups: Sequence[Group]) -> list[RowRef]:
        """The leaves with tokens; without first responses that were not expanded, where these are dropped."""
        branched = {group.request.parent_id for group in groups}
        return [
            RowRef(at, place)
            for at, group in enumerate(groups)
            for place, one in enumerate(group.trajectories)
            if one.comparable and one.tokens
            if self.config.keep_unbranched or group.request.stage != INITIAL or one.trajectory_id in branched
        ]

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The tree's advantages, segment by segment (arXiv 2509.26628, eq. 3)."""
        rule = tree_advantages if self.config.advantage_rule is AdvantageRule.ATTNRL else treerl_advantages
        segments: dict[str, list[tuple[int, float]]] = {}
        for groups in by_problem(rows.groups).values():
            tree, members = problem_tree(groups)
            by_node = rule(tree)
            for at, one in enumerate(members):
                segments[one.trajectory_id] = [
                    (end, float(by_node[node])) for end, node in tree.segments_of(at)
                ]
        found = np.zeros(rows.tokens, dtype=np.float32)
        for row in range(len(rows)):
            start = first = int(rows.offsets[row])
            for end, advantage in segments[rows.trajectory(row).trajectory_id]:
                found[start : first + end] = advantage
                start = first + end
        return found
