"""Values and advantages of trees: worked out by hand, and what must hold for any tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.tree import ROOT, Path, build_tree, leaf_counts, tree_advantages, values


def two_responses() -> list[Path]:
    """r0 is right, r1 wrong; each is cut once and continued twice: right and wrong, wrong and wrong."""
    return [
        Path("r0", 10, 1.0),
        Path("r1", 12, 0.0),
        Path("r0a", 9, 1.0, "r0", 4),
        Path("r0b", 15, 0.0, "r0", 4),
        Path("r1a", 7, 0.0, "r1", 5),
        Path("r1b", 8, 0.0, "r1", 5),
    ]


def by_segment(paths, numbers):
    """(path, end of the segment) -> number, of every segment on the way to each leaf."""
    tree = build_tree(paths)
    return {
        (name, end): float(numbers(tree)[node])
        for at, name in enumerate(tree.names)
        for end, node in tree.segments_of(at)
    }


def test_the_golden_example():
    """V(root) = 2/6. r0's beginning: V = 2/3, (1/3 + 1/3) / sqrt(3). Its right ends: (2/3 + 1/3), its wrong
    one: (-1/3 - 2/3). r1's beginning: V = 0, (-1/3 - 1/3) / sqrt(3); its ends: -1/3."""
    found = by_segment(two_responses(), tree_advantages)
    third = 1 / 3
    shared = 2 * third / 3**0.5
    expected = {
        "r0": {4: shared, 10: 1.0},
        "r0a": {4: shared, 9: 1.0},
        "r0b": {4: shared, 15: -1.0},
        "r1": {5: -shared, 12: -third},
        "r1a": {5: -shared, 7: -third},
        "r1b": {5: -shared, 8: -third},
    }
    flat = {(name, end): value for name, ends in expected.items() for end, value in ends.items()}
    assert shared == pytest.approx(0.3849, abs=1e-4) and found == pytest.approx(flat)


def test_two_branch_points_in_one_response():
    """Four leaves in a chain: r (0), after 6 tokens b (1), after 3 tokens c (1) and d (0)."""
    paths = [
        Path("r", 9, 0.0),
        Path("b", 8, 1.0, "r", 6),
        Path("c", 5, 1.0, "r", 3),
        Path("d", 7, 0.0, "r", 3),
    ]
    tree = build_tree(paths)
    assert [tree.segments_of(0)[at][0] for at in range(3)] == [3, 6, 9]
    value = values(tree)
    assert value[ROOT] == 0.5
    found = by_segment(paths, values)
    assert found[("r", 3)] == 0.5 and found[("r", 6)] == 0.5 and found[("r", 9)] == 0.0
    assert leaf_counts(tree)[[node for _, node in tree.segments_of(1)]].tolist() == [4, 2, 1]
    # r's end: V = 0, (0 - 1/2) + (0 - 1/2). The segment between the cuts has its parent's value.
    found = by_segment(paths, tree_advantages)
    assert found[("r", 9)] == -1.0 and found[("b", 6)] == 0.0


def test_a_continuation_of_a_continuation():
    paths = [Path("r", 9, 0.0), Path("b", 12, 1.0, "r", 4), Path("c", 11, 0.0, "b", 8)]
    tree = build_tree(paths)
    assert [end for end, _ in tree.segments_of(2)] == [4, 8, 11]
    assert values(tree)[[node for _, node in tree.segments_of(2)]].tolist() == [1 / 3, 0.5, 0.0]


def test_a_branch_at_the_first_token_and_at_the_end():
    """A cut that leaves an empty segment still has a leaf for every path."""
    tree = build_tree([Path("r", 4, 1.0), Path("a", 6, 0.0, "r", 0), Path("b", 7, 0.0, "r", 4)])
    assert len(tree.leaf) == len(set(tree.leaf.tolist())) == 3
    assert values(tree)[ROOT] == pytest.approx(1 / 3)
    assert [end for end, _ in tree.segments_of(1)] == [6]
    assert [end for end, _ in tree.segments_of(2)] == [4, 7]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([Path("a", 3, 0.0), Path("a", 3, 0.0)], "one name"),
        ([Path("a", 3, 0.0, None, 1)], "no parent"),
        ([Path("a", 3, 0.0, "b", 1), Path("b", 3, 0.0)], "does not come before"),
        ([Path("a", 3, 0.0), Path("b", 9, 0.0, "a", 4)], "3"),
        ([Path("a", 9, 0.0), Path("b", 3, 0.0, "a", 4)], "starts after 4"),
        ([Path("a", 9, 0.0), Path("b", 9, 0.0, "a", 4), Path("c", 9, 0.0, "b", 2)], "sampled tokens 4 to 9"),
    ],
)
def test_refused_trees(paths, message):
    with pytest.raises(ValueError, match=message):
        build_tree(paths)


@st.composite
def trees(draw):
    paths = [
        Path(f"r{at}", draw(st.integers(1, 9)), float(draw(st.booleans())))
        for at in range(draw(st.integers(1, 4)))
    ]
    for at in range(draw(st.integers(0, 8))):
        above = draw(st.sampled_from(paths))
        branch = draw(st.integers(above.branch, above.length))
        length = draw(st.integers(branch, branch + 9))
        paths.append(Path(f"c{at}", length, float(draw(st.booleans())), above.name, branch))
    return paths


@given(trees())
def test_what_holds_for_any_tree(paths):
    tree = build_tree(paths)
    value, count, advantage = values(tree), leaf_counts(tree), tree_advantages(tree)
    assert count[ROOT] == len(paths) and value[ROOT] == pytest.approx(np.mean(tree.reward))
    assert advantage[ROOT] == 0.0 and np.abs(advantage).max() <= 2.0
    for at, path in enumerate(paths):
        ends = [end for end, _ in tree.segments_of(at)]
        assert ends == sorted(ends) and ends[-1] == path.length
        assert value[tree.leaf[at]] == path.reward
    # Every node's value is the mean of its children's, weighted by their leaves (and its own, if it is one).
    for node in range(len(value)):
        below = [child for child in range(len(value)) if tree.parent[child] == node]
        own = [at for at in range(len(paths)) if tree.leaf[at] == node]
        total = sum(value[child] * count[child] for child in below) + sum(tree.reward[at] for at in own)
        assert total == pytest.approx(value[node] * count[node])


@given(trees(), st.randoms())
def test_the_order_of_siblings_does_not_matter(paths, random):
    firsts = [path for path in paths if path.parent is None]
    rest = [path for path in paths if path.parent is not None]
    random.shuffle(firsts)
    expected = by_segment(paths, tree_advantages)
    assert by_segment([*firsts, *rest], tree_advantages) == pytest.approx(expected)


@given(trees())
def test_equal_rewards_give_no_advantage(paths):
    equal = [Path(path.name, path.length, 1.0, path.parent, path.branch) for path in paths]
    assert not tree_advantages(build_tree(equal)).any()
