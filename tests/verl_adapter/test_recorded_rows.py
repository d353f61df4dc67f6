"""Which rows go through the model before an update, and what the others have in place of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl", reason="batches are verl's")

from verl import DataProto

from marsrl_verl.core.steps import Steps
from marsrl_verl.core.types import FinishReason, Marks, Sample
from marsrl_verl.verl_adapter.batch import TrainingRow, build_batch
from marsrl_verl.verl_adapter.recorded_rows import fully_recorded, old_log_probs, rows_to_compute


def row(name: str, length: int, *, recorded: int = 0, entropies: bool = True) -> TrainingRow:
    """A response whose first tokens have recorded log-probabilities -1, and entropies 0.5."""
    ids = list(range(length))
    one = Sample(name, "g", [7], ids, [-9.0] * length, FinishReason.STOP, "", "")
    one.trainer_log_probs = [-1.0] * recorded
    if entropies:
        one.marks = Marks(Steps((length,), 1), (-1.0,) * length, (), (0.5,) * length)
    return TrainingRow(one, "solver", "initial", ((length, 1.0),))


ROWS = [
    row("first", 3, recorded=3),
    row("continued", 4, recorded=2, entropies=False),
    row("without entropies", 2, recorded=2, entropies=False),
    row("other first", 2, recorded=2),
    row("segment before", 3),
]
"""One row of padding makes them six."""


class Pass:
    """The workers' pass: log-probability -2 and entropy 1.5 for every token."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def __call__(self, batch: DataProto) -> DataProto:
        self.rows.append(batch.non_tensor_batch["sample_id"].tolist())
        assert len(batch.meta_info["global_token_num"]) == len(batch)
        shape = batch.batch["responses"].shape
        values = {"old_log_probs": torch.full(shape, -2.0), "entropys": torch.full(shape, 1.5)}
        return DataProto.from_dict(tensors=values)


def test_recorded_rows_are_left_out_of_the_pass():
    batch, workers = build_batch(ROWS, pad_token_id=0, row_multiple=6), Pass()
    assert fully_recorded(batch).tolist() == [True, False, False, True, False, True]
    entropies, computed = old_log_probs(batch, workers, ranks=1, reuse=True)
    assert workers.rows == [["continued", "without entropies", "segment before"]]
    assert computed.tolist() == [False, True, True, False, True, False]
    assert batch.batch["old_log_probs"][:, 0].tolist() == [-1.0, -2.0, -2.0, -1.0, -2.0, 0.0]
    assert entropies[:, 0].tolist() == [0.5, 1.5, 1.5, 0.5, 1.5, 0.0]
    assert not batch.batch["old_log_probs"].isnan().any() and "recorded_entropies" not in batch.batch


def test_every_rank_has_equally_many_rows():
    batch, workers = build_batch(ROWS, pad_token_id=0, row_multiple=6), Pass()
    _, computed = old_log_probs(batch, workers, ranks=2, reuse=True)
    # The parts are the first three rows and the last three; a recorded row fills the second one up.
    assert workers.rows == [["continued", "without entropies", "other first", "segment before"]]
    assert computed.tolist() == [False, True, True, True, True, False]


def test_all_rows_are_computed_where_none_is_reused():
    batch, workers = build_batch(ROWS, pad_token_id=0, row_multiple=6), Pass()
    entropies, computed = old_log_probs(batch, workers, ranks=1, reuse=False)
    assert len(workers.rows[0]) == 6 and computed.all()
    assert (batch.batch["old_log_probs"] == -2).all() and (entropies == 1.5).all()


def test_nothing_is_computed_where_all_is_recorded():
    batch, workers = build_batch([ROWS[0], ROWS[3]], pad_token_id=0, row_multiple=2), Pass()
    entropies, computed = old_log_probs(batch, workers, ranks=2, reuse=True)
    assert workers.rows == [] and not computed.any()
    assert batch.batch["old_log_probs"].tolist() == [[-1, -1, -1], [-1, -1, 0]]
    assert entropies.tolist() == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]]


def test_a_token_of_older_weights_has_its_row_computed():
    one = row("late", 3, recorded=3)
    one.sample.trainer_log_probs[0] = math.nan
    batch = build_batch([one], pad_token_id=0, row_multiple=1)
    assert fully_recorded(batch).tolist() == [False]


def test_a_fixed_micro_batch_size_is_filled_up():
    recorded = [True, False, True, True, True, True, True, True]
    assert rows_to_compute(recorded, 1, 4) == [0, 1, 2, 3]
    assert rows_to_compute(recorded, 2, 2) == [0, 1, 4, 5]
    assert rows_to_compute([True] * 8, 2, 2) == []


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 3))
def test_each_missing_row_is_computed_once_on_its_own_rank(recorded, ranks, multiple):
    recorded = recorded * ranks * multiple
    rows = rows_to_compute(recorded, ranks, multiple)
    size = len(recorded) // ranks
    assert rows == sorted(set(rows)) and len(rows) % ranks == 0
    assert {at for at, known in enumerate(recorded) if not known} <= set(rows)
    per_rank = [sum(at // size == rank for at in rows) for rank in range(ranks)]
    assert len(set(per_rank)) == 1 and per_rank[0] % multiple == 0
