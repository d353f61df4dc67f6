from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.verl_adapter.engine.balancing import balance_by_prompt, balance_rows


def test_two_ranks_get_rows_in_serpentine_order():
    # sorted by length: rows 3, 1, 0, 2; dealt 3 -> rank 0, 1 -> rank 1, 0 -> rank 1, 2 -> rank 0
    assert balance_rows([5, 7, 1, 9], ranks=2, updates=1, seed=0, step=1) == [3, 2, 1, 0]


def test_one_rank_gets_rows_by_falling_length():
    assert balance_rows([5, 7, 1, 9], ranks=1, updates=1, seed=0, step=1) == [3, 1, 0, 2]


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="5 rows"):
        balance_rows([1] * 5, ranks=2, updates=1, seed=0, step=1)


def test_mini_batches_are_drawn_anew_each_step_and_repeat_with_the_seed():
    lengths = list(range(32))
    first = balance_rows(lengths, ranks=1, updates=4, seed=3, step=1)
    assert first == balance_rows(lengths, ranks=1, updates=4, seed=3, step=1)
    assert first != balance_rows(lengths, ranks=1, updates=4, seed=3, step=2)
    assert first != balance_rows(lengths, ranks=1, updates=4, seed=4, step=1)


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_every_row_appears_once_and_ranks_are_balanced(data, ranks, updates, rows_each):
    count = ranks * updates * rows_each
    lengths = data.draw(st.lists(st.integers(1, 100), min_size=count, max_size=count))
    order = balance_rows(lengths, ranks=ranks, updates=updates, seed=1, step=1)
    assert sorted(order) == list(range(count))
    share = count // ranks
    for update in range(updates):
        totals = []
        for rank in range(ranks):
            start = rank * share + update * rows_each
            rows = order[start : start + rows_each]
            assert [lengths[row] for row in rows] == sorted((lengths[row] for row in rows), reverse=True)
            totals.append(sum(lengths[row] for row in rows))
        assert max(totals) - min(totals) <= max(lengths), "ranks differ by at most one row's length"


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_no_mini_batch_is_padding_alone(real, updates, ranks, seed):
    updates = min(updates, real)
    padding = -real % (ranks * updates * 4)
    lengths = [5] * (real + padding)
    order = balance_rows(lengths, ranks=ranks, updates=updates, seed=seed, step=1, padding_rows=padding)
    assert sorted(order) == list(range(real + padding))
    per_rank = len(order) // ranks
    size = per_rank // updates
    for update in range(updates):
        rows = [
            order[rank * per_rank + update * size + place] for rank in range(ranks) for place in range(size)
        ]
        assert any(row < real for row in rows)


def test_more_mini_batches_than_rows_are_refused():
    with pytest.raises(ValueError, match="at most 1"):
        balance_rows([5, 5], ranks=1, updates=2, seed=0, step=1, padding_rows=1)


def parts_of(order, ranks, updates):
    """The rows of each (rank, mini-batch)."""
    size = len(order) // (ranks * updates)
    return [order[start : start + size] for start in range(0, len(order), size)]


def test_prompts_stay_together_and_the_largest_are_dealt_first():
    # prompt b has 9 tokens, a 6, c 3 (c and a together as many as b)
    order = balance_by_prompt("aabbbc", [3, 3, 3, 3, 3, 3], ranks=2, updates=1, seed=0, step=1)
    assert order == [2, 3, 4, 0, 1, 5]


def test_a_prompt_without_room_is_cut():
    order = balance_by_prompt("aaab", [1, 1, 1, 1], ranks=2, updates=1, seed=0, step=1)
    assert [sorted(part) for part in parts_of(order, 2, 1)] == [[0, 1], [2, 3]]


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.integers(0, 99))
def test_prompts_fill_every_part_and_cut_few(data, ranks, updates, real, seed):
    updates = min(updates, real)
    padding = -real % (ranks * updates)
    prompts = data.draw(st.lists(st.integers(0, 6), min_size=real, max_size=real))
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=real, max_size=real)) + [1] * padding
    cut = {"ranks": ranks, "updates": updates, "seed": seed, "padding_rows": padding}
    order = balance_by_prompt(prompts, lengths, step=1, **cut)
    assert order == balance_by_prompt(prompts, lengths, step=1, **cut)
    assert sorted(order) == list(range(real + padding))
    parts = parts_of(order, ranks, updates)
    for update in range(updates):
        assert any(row < real for part in parts[update::updates] for row in part), "not padding alone"
    pieces = sum(len({prompts[row] for row in part if row < real}) for part in parts)
    assert pieces <= len(set(prompts)) + ranks * updates - 1, "a border cuts one prompt at most"


def test_prompts_refuse_what_rows_refuse():
    with pytest.raises(ValueError, match="5 rows"):
        balance_by_prompt([0] * 5, [1] * 5, ranks=2, updates=1, seed=0, step=1)
    with pytest.raises(ValueError, match="at most 1"):
        balance_by_prompt([0], [5, 5], ranks=1, updates=2, seed=0, step=1, padding_rows=1)
