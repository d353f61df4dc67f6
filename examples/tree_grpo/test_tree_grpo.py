"""Trees and advantages of Tree-GRPO worked out by hand: pytest examples/tree_grpo."""

import pytest
from tree_grpo import TreeGRPO, responses

from marsrl_verl.core.rows import Rows
from marsrl_verl.testing import run_method


def says(turn):  # of the two chains the first is right, and of a tree's expansions in a round
    right, prefix = turn.request.problem.ground_truth, turn.request.prefix
    if prefix is None:
        return ("First.\n\nThen.\n\n" + right, "Or so.\n\n0")[turn.k]
    answer = right if turn.request.group_id.endswith("-0") else "0"
    return "".join(map(chr, prefix.response_ids)) + f"More.\n\n{answer}"


def run(**settings):
    found = [run_method(TreeGRPO, says, group_size=2, segment_tokens=at, **settings)[0] for at in (None, 5)]
    assert found[0].advantages.tolist() == found[1].advantages.tolist()  # a pause changes nothing
    return found[0]


def test_a_response_is_compared_in_its_tree_and_among_all():
    rows, worth = (step := run(problems=1, expansions=2, rounds=1)).rows, step.advantages_of("solver")
    assert [rows.trajectory(row).value for row in range(6)] == [1, 0, 1, 0, 1, 0]  # chains, then by tree
    # All: variance 6/4 / 5 = 0.3, ±0.5 / 0.3**0.5 = ±0.91287. First tree: 1 1 0, mean 2/3, variance
    # (1/9 + 1/9 + 4/9) / 2 = 1/3: 0.57735, -1.15470. Second tree: 0 1 0, mean 1/3: -0.57735, 1.15470.
    assert worth == pytest.approx([1.49022, -1.49022, 1.49022, -2.06757, 2.06757, -1.49022], abs=1e-4)
    credit, groups = TreeGRPO.Credit(None), rows.groups[::-1]  # the order changes nothing
    assert sorted(credit.advantages(Rows.of(groups, credit.keep(groups)))) == sorted(step.advantages)


def test_trees_grow_from_nodes_that_are_no_leaves():
    groups = run(problems=3, expansions=3, rounds=2).groups
    found = {one.trajectory_id: (request, one.text, tree) for request, one, tree in responses(groups)}
    assert len(found) == 3 * 2 * (1 + 2 * 3)  # M (1 + L N) for each problem
    for request, _, tree in [one for one in found.values() if one[0].prefix is not None]:
        _, text, same = found[request.parent_id]
        begun = "".join(map(chr, request.prefix.response_ids))
        assert text.startswith(begun) and begun[-2:] in ("", "\n\n") and begun != text and tree == same
    assert any("expansion" in (request.parent_id or "") for request, _, _ in found.values())
