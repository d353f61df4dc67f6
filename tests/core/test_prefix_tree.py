from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.prefix_tree import (
    always_joins,
    build_prefix_tree,
    common_prefix,
    halve_until,
    joins_where_cheaper,
    packed_cost,
    padded_cost,
    part_cost,
    prefix_order,
    shared_with_previous,
    shelve,
    split_rows,
)

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9)
rules = st.sampled_from([always_joins, joins_where_cheaper(1), lambda size, length, common: common > 2])


def arrays(rows: list[list[int]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int64) for row in rows]


def prefixes(rows: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}


def test_golden_tree():
    """Two continuations of 5 6, a sequence that ends there, and one of its own."""
    tree = build_prefix_tree(arrays([[5, 6, 8], [5, 6], [9], [5, 6, 7, 7]]))
    #            nodes:      0  1  2  3  4  5
    assert tree.tokens.tolist() == [5, 6, 7, 7, 8, 9]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 1, -1]
    assert tree.positions.tolist() == [0, 1, 2, 3, 2, 0]
    assert tree.ends.tolist() == [5, 5, 4, 4, 5, 6]
    assert [row.tolist() for row in tree.rows] == [[0, 1, 4], [0, 1], [5], [0, 1, 2, 3]]
    assert tree.roots.tolist() == [0, 5]


def test_a_short_common_beginning_is_not_worth_a_large_tree():
    joins = joins_where_cheaper(hidden_size=10)
    # Alone 40 + 40² / 60 = 66.7. With 30 in common, 10 fresh after 40: 10 + (50² - 40²) / 60 = 25.
    assert joins(40, 40, 30)
    # With 5 in common, 35 fresh after 200: 35 + (235² - 200²) / 60 = 288.8.
    assert not joins(200, 40, 5)
    rows = arrays([[1, 2, *range(9, 40)], [1, 3, *range(40, 70)], [1, 3, *range(40, 69), 80]])
    tree = build_prefix_tree(rows, joins)
    assert tree.roots.tolist() == [0, 33], "the last two share, the first stands alone"


@given(sequences, rules)
def test_a_tree_has_every_sequence_and_each_token_sees_what_precedes_it(rows, joins):
    tree = build_prefix_tree(arrays(rows), joins)
    assert len(prefixes(rows)) <= len(tree.tokens) <= sum(map(len, rows))
    assert joins is not always_joins or len(tree.tokens) == len(prefixes(rows)), "every prefix once"
    for row, nodes in zip(rows, tree.rows, strict=True):
        assert tree.tokens[nodes].tolist() == row
        assert tree.positions[nodes].tolist() == list(range(len(row)))
        assert tree.parents[nodes].tolist() == [-1, *nodes[:-1].tolist()]
        for place, node in enumerate(nodes):
            seen = [j for j in range(len(tree.tokens)) if j <= node < tree.ends[j]]
            assert seen == nodes[: place + 1].tolist()


@given(sequences)
def test_order_and_common_beginnings_count_the_distinct_tokens(rows):
    given_rows = arrays(rows)
    order = prefix_order(given_rows)
    assert [rows[index] for index in order] == sorted(rows)
    shared = shared_with_previous(given_rows, order)
    assert sum(map(len, rows)) - sum(shared) == len(prefixes(rows))


def test_large_tokens_keep_their_order():
    assert prefix_order(arrays([[70_000], [256], [255], [151_643]])) == [2, 1, 0, 3]


def test_common_prefix_of_a_sequence_and_its_beginning():
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 3])) == 2


@pytest.mark.parametrize("rows", [[], [[]], [[1], []]])
def test_empty_sequences_are_refused(rows):
    with pytest.raises(ValueError, match="at least one token"):
        build_prefix_tree(arrays(rows))


@given(sequences, st.integers(1, 25), st.sampled_from([packed_cost, padded_cost]), rules, st.integers(1, 9))
def test_parts_keep_to_the_limit_and_hold_every_row_once(rows, limit, cost, joins, least):
    least = min(least, len(rows))

    def tokens_of(part):
        return part_cost(arrays([rows[index] for index in part]), cost=cost, joins=joins)

    parts = split_rows(arrays(rows), limit, cost=cost, joins=joins)
    parts = halve_until(parts, least, lambda part: tokens_of(part) <= limit)
    assert sorted(index for part in parts for index in part) == list(range(len(rows)))
    assert len(parts) >= least
    for part in parts:
        tree = build_prefix_tree(arrays([rows[index] for index in part]), joins)
        sizes = np.diff([*tree.roots, len(tree.tokens)]).tolist()
        assert tokens_of(part) == cost(sizes)
        assert len(part) == 1 or cost(sizes) <= limit


def test_relatives_stay_together():
    rows = arrays([[1, 2, 3, 4], [7, 8], [1, 2, 3, 5], [7, 9]])
    assert split_rows(rows, 5) == [[0, 2], [1, 3]]


def test_a_part_is_cut_behind_its_middle_where_its_second_half_would_not_fit():
    assert halve_until([[0, 1, 2, 3]], 2, lambda part: len(part) < 2) == [[0, 1, 2], [3]]
    assert halve_until([[0, 1, 2, 3]], 2, lambda part: True) == [[0, 1], [2, 3]]


def test_more_parts_than_rows_are_refused():
    with pytest.raises(ValueError, match="2 sequences cannot be cut into 3 parts"):
        halve_until([[0], [1]], 3, lambda part: True)


def test_small_trees_share_a_row():
    assert shelve([3, 10, 4, 3, 5]) == [(2, 0), (0, 0), (1, 5), (2, 3), (1, 0)]
    assert padded_cost([3, 10, 4, 3, 5]) == 30


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_trees_in_a_row_do_not_overlap(sizes):
    taken = {
        (row, place)
        for (row, start), size in zip(shelve(sizes), sizes, strict=True)
        for place in range(start, start + size)
    }
    assert len(taken) == sum(sizes)
    assert max(place for _, place in taken) < max(sizes)
    assert sum(sizes) <= padded_cost(sizes) <= max(2 * sum(sizes), max(sizes))
