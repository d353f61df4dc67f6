"""The rows of a step in their slots, which slots those are, and what the workers get of them."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl", reason="batches are verl's")

from verl.protocol import BatchData

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.verl_adapter.engine.balancing import balance_by_prompt, balance_rows
from marsrl_verl.verl_adapter.engine.batch import PADDING, BatchLayout, StepBatch, arrange
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows, responses_only, with_token_columns


def group(sequences: list[Sequence]) -> Group:
    request = RolloutRequest("g", Problem("p", "?", "1"), "solver", "solver", (), n=len(sequences))
    return Group(request, [Trajectory(f"g#{k}", [one], FinishReason.STOP) for k, one in enumerate(sequences)])


def sequence(prompt: int, response: int, mask: list[int] | None = None, **fields) -> Sequence:
    """Prompt ids count from 100, response ids from 1."""
    ids, log_probs = range(1, response + 1), [-0.5] * response
    return Sequence("solver", range(100, 100 + prompt), ids, log_probs, mask, **fields)


def batch_of(sequences: list[Sequence], *, updates: int = 1, annotations=(), **plan) -> StepBatch:
    refs = [RowRef(0, place) for place in range(len(sequences))]
    cut = BatchLayout(**{"ranks": 1, "seed": 1, "step": 1, **plan})
    return arrange([group(sequences)], refs, lambda policy: cut, lambda rows: updates, annotations)


def lists(column: torch.Tensor) -> list[list]:
    return [row.tolist() for row in column.unbind()]


def test_rows_lie_end_to_end_in_the_order_of_the_rank():
    (part,) = batch_of([sequence(1, 2), sequence(2, 3, [1, 0, 1])]).parts
    data = part.ids(0.7)
    assert lists(data["input_ids"]) == [[100, 101, 1, 2, 3], [100, 1, 2]]
    assert lists(data["response_mask"]) == [[1, 0, 1], [1, 1]]
    assert data["prompt_len"].tolist() == [2, 1] and data["n_rows"].tolist() == [2, 2]
    assert data["temperature"].tolist() == pytest.approx([0.7, 0.7])
    assert (data["input_ids"].dtype, data["response_mask"].dtype) == (torch.int32, torch.uint8)


def test_padding_is_two_tokens_that_count_nowhere():
    batch = batch_of([sequence(3, 4), sequence(2, 5)], micro_batch_rows=4)
    (part,) = batch.parts
    data = part.ids(1.0)
    assert part.slots.tolist() == [0, 1, PADDING, PADDING] and part.padding == 2
    assert lists(data["input_ids"])[2:] == [[0, 0]] * 2 and lists(data["response_mask"])[2:] == [[0]] * 2
    assert data["n_rows"].tolist() == data["n_turns"].tolist() == [2] * 4
    assert batch.tokens == 14


def test_what_the_ranks_make_of_it():
    (part,) = batch_of([sequence(2, 3), sequence(1, 1)]).parts
    data = with_token_columns(part.ids(0.7))
    assert data["input_ids"].dtype == torch.int64
    assert lists(data["position_ids"]) == [[0, 1, 2, 3, 4], [0, 1]]
    assert lists(data["prompts"]) == [[100, 101], [100]] and lists(data["responses"]) == [[1, 2, 3], [1]]
    assert data["temperature"] == pytest.approx(0.7), "one number, as verl's fused kernels want it"


def test_each_row_has_its_role_s_temperature():
    rows = [sequence(2, 3), sequence(1, 1)]
    rows[1].role = "verifier"
    (part,) = batch_of(rows, micro_batch_rows=3).parts
    data = part.ids({"solver": 0.7, "verifier": 1.0})
    by_role = {
        part.rows.sequence(row).role: at for at, row in enumerate(part.slots.tolist()) if row != PADDING
    }
    found = with_token_columns(data)["temperature"].tolist()
    assert found[by_role["solver"]] == pytest.approx(0.7) and found[by_role["verifier"]] == 1.0
    padding = part.slots.tolist().index(PADDING)
    assert found[padding] == found[0], "so that equal temperatures stay one number"


def test_rows_and_turns_are_counted_by_mini_batch_over_all_ranks():
    lengths = [8, 7, 6, 5, 4, 3]
    turns = [np.array([0, 0, 1, 1, 2, 2, 3, 3][:n], dtype=np.float32) for n in lengths]
    rows = [
        sequence(1, n, [0] * n if n == 4 else None, annotations={TURN: turn})
        for n, turn in zip(lengths, turns, strict=True)
    ]
    (part,) = batch_of(rows, ranks=2, updates=2, annotations=(TURN,)).parts
    data = part.ids(1.0)
    expected_turns = {8: 4, 7: 4, 6: 3, 5: 3, 4: 0, 3: 2}
    assert len(part) == 8
    for update in range(2):
        slots = [rank * 4 + update * 2 + place for rank in range(2) for place in range(2)]
        found = [len(part.rows.sequence(row)) for row in part.slots[slots].tolist() if row != PADDING]
        assert set(data["n_rows"][slots].tolist()) == {sum(n != 4 for n in found)}
        assert set(data["n_turns"][slots].tolist()) == {sum(expected_turns[n] for n in found)}


def test_policies_are_cut_apart():
    rows = [sequence(1, n, policy=name) for n, name in zip((2, 5, 3, 4), "abab", strict=True)]
    batch = batch_of(rows, ranks=2)
    assert [part.policy for part in batch.parts] == ["a", "b"]
    assert [part.members.tolist() for part in batch.parts] == [[0, 1], [2, 3]]
    assert [len(batch.rows.sequence(row)) for row in range(4)] == [3, 2, 5, 4]


def test_rows_with_one_prompt_stay_together_where_prefixes_are_shared():
    rows = [sequence(prompt, n) for n in (9, 2, 3, 8) for prompt in (3, 5)]
    (part,) = batch_of(rows, ranks=2, share_prefixes=True).parts
    prompts = [len(part.rows.sequence(row).prompt_ids) for row in part.slots.tolist()]
    assert sorted((prompts[:4], prompts[4:])) == [[3] * 4, [5] * 4]


def test_an_empty_selection_is_an_empty_batch():
    batch = batch_of([])
    assert len(batch.rows) == batch.tokens == 0 and batch.parts == ()


shapes = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=9)


@given(shapes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_every_token_comes_back_to_its_row_whatever_the_cut(sizes, ranks, updates, multiple):
    updates = min(updates, len(sizes))
    batch = batch_of(
        [sequence(*size) for size in sizes], updates=updates, ranks=ranks, micro_batch_rows=multiple
    )
    (part,) = batch.parts
    assert len(part) % (ranks * updates * multiple) == 0 and part.padding < ranks * updates * multiple
    assert part.members.tolist() == list(range(len(sizes)))
    numbers = np.arange(batch.rows.tokens, dtype=np.float32)
    found = np.zeros(batch.rows.tokens, dtype=np.float32)
    outputs = []
    for share in BatchData(part.ids(1.0)).chunk(ranks):
        held = HeldRows()
        held.hold(pickle.loads(pickle.dumps(share)))
        rows = held.complete(share.select("row_id", "policy"))
        # As the engine: a value for each token of a row, in the place before it.
        values = torch.cat([ids.roll(-1) for ids in rows["input_ids"].unbind()]).float()
        by_token = torch.nested.nested_tensor_from_jagged(values, rows["input_ids"].offsets())
        rows["seen"] = by_token
        outputs.append(responses_only(rows.select("seen", "row_id"), rows))
    seen = BatchData(outputs).concat()
    assert seen["row_id"].tolist() == list(range(len(part)))
    part.read(seen["seen"], found)
    for row in range(len(sizes)):
        assert found[batch.rows.slice(row)].tolist() == batch.rows.sequence(row).response_ids.tolist()
    part.read(part.column(numbers), found)
    assert found.tolist() == numbers.tolist()


def test_rows_are_held_until_they_are_let_go_of():
    (part,) = batch_of([sequence(2, 3), sequence(1, 2), sequence(1, 1)]).parts
    held = HeldRows()
    held.hold(part.ids(1.0))
    some = held.complete(part.columns({"advantages": np.arange(6, dtype=np.float32)}, [0, 2]))
    assert lists(some["input_ids"]) == [[100, 101, 1, 2, 3], [100, 1]]
    assert lists(some["advantages"]) == [[0.0, 1.0, 2.0], [5.0]]
    again = held.complete(part.columns({}))
    assert set(again.keys()).isdisjoint({"advantages"}) and len(again) == 3
    data = part.columns({})
    data["row_id"][2] = 3
    message = r"rows \[3\] of the policy 'shared' are not on this rank, which holds 3"
    with pytest.raises(RuntimeError, match=message):
        held.complete(data)
    held.release(part.columns({}))
    with pytest.raises(RuntimeError, match="hold_rows first"):
        held.complete(part.columns({}))


def test_policies_that_share_workers_keep_their_rows_apart():
    """As two adapters on one base: all rows are held before the first policy is updated."""
    rows = [sequence(1, n, policy=name) for n, name in zip((2, 5, 3), "aba", strict=True)]
    parts, held = batch_of(rows).parts, HeldRows()
    for part in parts:
        held.hold(part.ids(1.0))
    for part, lengths in zip(parts, ([4, 3], [6]), strict=True):
        assert held.complete(part.columns({}))["input_ids"].offsets().diff().tolist() == lengths
        held.release(part.columns({}))
    with pytest.raises(RuntimeError, match=r"rows \[0, 1\] of the policy 'a' are not on this rank"):
        held.complete(parts[0].columns({}))


def test_rows_travel_once():
    """What an update sends of held rows is its own columns."""
    (part,) = batch_of([sequence(200, 300) for _ in range(4)]).parts
    size = {
        "rows": len(pickle.dumps(part.ids(1.0))),
        "update": len(pickle.dumps(part.columns({"advantages": np.zeros(1200, dtype=np.float32)}))),
    }
    assert size["rows"] > 4 * 500 * 4 and size["update"] < 1200 * 4 + 4000


# --- who gets which rows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        (1, [3, 1, 0, 2]),  # by falling length
        # Dealt in a serpentine: 3 to the first, 1 and 0 to the second, 2 to the first.
        (2, [3, 2, 1, 0]),
    ],
)
def test_ranks_get_rows_by_falling_length(ranks, order):
    assert balance_rows([5, 7, 1, 9], ranks=ranks, updates=1, seed=0, step=1) == order


@pytest.mark.parametrize("balance", [balance_rows, functools.partial(balance_by_prompt, [0] * 5)])
def test_what_gives_no_even_parts_is_refused(balance):
    with pytest.raises(ValueError, match="5 rows"):
        balance([1] * 5, ranks=2, updates=1, seed=0, step=1)
    with pytest.raises(ValueError, match="at most 1"):
        balance([5, 5], ranks=1, updates=2, seed=0, step=1, padding_rows=1)


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
    parts = [[lengths[row] for row in part] for part in parts_of(order, ranks, updates)]
    assert all(part == sorted(part, reverse=True) for part in parts)
    for update in range(updates):
        totals = [sum(part) for part in parts[update::updates]]
        assert max(totals) - min(totals) <= max(lengths), "ranks differ by at most one row's length"


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_no_mini_batch_is_padding_alone(real, updates, ranks, seed):
    updates = min(updates, real)
    padding = -real % (ranks * updates * 4)
    lengths = [5] * (real + padding)
    order = balance_rows(lengths, ranks=ranks, updates=updates, seed=seed, step=1, padding_rows=padding)
    assert sorted(order) == list(range(real + padding))
    parts = parts_of(order, ranks, updates)
    for update in range(updates):
        assert any(row < real for part in parts[update::updates] for row in part)


def parts_of(order, ranks, updates):
    """The rows of each (rank, mini-batch)."""
    size = len(order) // (ranks * updates)
    return [order[start : start + size] for start in range(0, len(order), size)]


@pytest.mark.parametrize(
    ("prompts", "length", "parts"),
    [
        # The largest are dealt first, and rows of one are neighbours: b has 9 tokens, a and c together as
        # many.
        ("aabbbc", 3, [[2, 3, 4], [0, 1, 5]]),
        ("aaab", 1, [[0, 1], [2, 3]]),  # a prompt without room is cut
    ],
)
def test_prompts_stay_together(prompts, length, parts):
    """On a rank, and side by side there."""
    order = balance_by_prompt(prompts, [length] * len(prompts), ranks=2, updates=1, seed=0, step=1)
    assert parts_of(order, 2, 1) == parts


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
