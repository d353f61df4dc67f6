"""Which rows go through the model before an update, and what the others have in place of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl", reason="batches are verl's")

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RowRef
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.verl_adapter.engine.batch import PADDING, BatchLayout, PolicyBatch, arrange, jagged
from marsrl_verl.verl_adapter.trainer.probes import fill_log_probs, fully_recorded, slots_to_compute


def row(name: str, length: int, *, recorded: int = 0, entropies: bool = True) -> Trajectory:
    """A response whose first tokens have recorded log-probabilities -1, and entropies 0.5."""
    sequence = Sequence("solver", [7], range(length), [-9.0] * length)
    log_probs = np.full(length, np.nan, dtype=np.float32)
    log_probs[:recorded] = -1.0
    sequence.annotations[RECORDED_LOG_PROBS] = log_probs
    if entropies:
        sequence.annotations[RECORDED_ENTROPIES] = np.full(length, 0.5, dtype=np.float32)
    return Trajectory(name, [sequence], FinishReason.STOP)


def members() -> list[Trajectory]:
    """Longest first, which is the order of one rank."""
    return [
        row("first", 6, recorded=6),
        row("continued", 5, recorded=2, entropies=False),
        row("without entropies", 4, recorded=4, entropies=False),
        row("other first", 3, recorded=3),
        row("segment before", 2),
    ]


def batch_of(trajectories: list[Trajectory], *, ranks: int = 1, multiple: int = 1) -> PolicyBatch:
    request = RolloutRequest("g", Problem("p", "?", "1"), "initial", "solver", (), n=len(trajectories))
    refs = [RowRef(0, place) for place in range(len(trajectories))]
    plan = BatchLayout(ranks, seed=1, step=1, micro_batch_rows=multiple)
    annotations = (RECORDED_LOG_PROBS, RECORDED_ENTROPIES)
    batch = arrange([Group(request, trajectories)], refs, lambda policy: plan, annotations=annotations)
    for name in (OLD_LOG_PROBS, ENTROPIES):
        batch.rows.columns[name] = np.full(batch.rows.tokens, 77.0, dtype=np.float32)
    (part,) = batch.parts
    return part


class Pass:
    """The workers' pass: log-probability -2 and entropy 1.5 for every token."""

    def __init__(self, batch: PolicyBatch) -> None:
        self.batch = batch
        self.requests: list[list[str]] = []

    def __call__(self, slots):
        rows = self.batch.slots[slots]
        names = [
            "padding" if row == PADDING else self.batch.rows.trajectory(row).trajectory_id
            for row in rows.tolist()
        ]
        self.requests.append(names)
        lengths = np.array(
            [1 if row == PADDING else len(self.batch.rows.sequence(row)) for row in rows.tolist()]
        )
        total = int(lengths.sum())
        return tuple(jagged(np.full(total, value, dtype=np.float32), lengths) for value in (-2.0, 1.5))


def firsts(batch: PolicyBatch, column: str) -> list[float]:
    """Of each row the value of its first token, when all of its tokens have the same."""
    rows = batch.rows
    parts = [rows.columns[column][rows.slice(row)] for row in range(len(rows))]
    assert all((part == part[0]).all() for part in parts)
    return [float(part[0]) for part in parts]


def test_recorded_rows_are_left_out_of_the_pass():
    batch = batch_of(members())
    workers = Pass(batch)
    assert fully_recorded(batch.rows).tolist() == [True, False, False, True, False]
    computed = fill_log_probs(batch, workers, reuse=True)
    assert workers.requests == [["continued", "without entropies", "segment before"]]
    assert computed.tolist() == [False, True, True, False, True]
    assert firsts(batch, OLD_LOG_PROBS) == [-1.0, -2.0, -2.0, -1.0, -2.0]
    assert firsts(batch, ENTROPIES) == [0.5, 1.5, 1.5, 0.5, 1.5]


def test_every_rank_has_equally_many_rows():
    batch = batch_of(members(), ranks=2)
    workers = Pass(batch)
    fill_log_probs(batch, workers, reuse=True)
    # One rank has first, other first and segment before, the other one the rest and a slot of padding.
    (requested,) = workers.requests
    assert len(requested) == 4 and {"continued", "without entropies", "segment before"} < set(requested)


def test_all_rows_are_computed_where_none_is_reused():
    batch = batch_of(members(), multiple=4)
    workers = Pass(batch)
    computed = fill_log_probs(batch, workers, reuse=False)
    assert len(workers.requests[0]) == 8 and workers.requests[0].count("padding") == 3 and computed.all()
    assert firsts(batch, OLD_LOG_PROBS) == [-2.0] * 5 and firsts(batch, ENTROPIES) == [1.5] * 5


def test_nothing_is_computed_where_all_is_recorded():
    batch = batch_of([members()[0], members()[3]], ranks=2)
    workers = Pass(batch)
    computed = fill_log_probs(batch, workers, reuse=True)
    assert workers.requests == [] and not computed.any()
    assert firsts(batch, OLD_LOG_PROBS) == [-1.0, -1.0] and firsts(batch, ENTROPIES) == [0.5, 0.5]


def test_a_token_of_older_weights_has_its_row_computed():
    one = row("late", 3, recorded=3)
    one.sequence.annotations[RECORDED_LOG_PROBS][0] = math.nan
    assert fully_recorded(batch_of([one]).rows).tolist() == [False]


def test_a_tools_tokens_need_no_record():
    one = row("tool", 3, recorded=2)
    one.sequence.response_mask[2] = 0
    batch = batch_of([one])
    fill_log_probs(batch, Pass(batch), reuse=True)
    assert batch.rows.columns[OLD_LOG_PROBS].tolist() == [-1.0, -1.0, 0.0]


def test_a_fixed_micro_batch_size_is_filled_up():
    recorded = [True, False, True, True, True, True, True, True]
    assert slots_to_compute(recorded, 1, 4) == [0, 1, 2, 3]
    assert slots_to_compute(recorded, 2, 2) == [0, 1, 4, 5]
    assert slots_to_compute([True] * 8, 2, 2) == []


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 3))
def test_each_missing_row_is_computed_once_on_its_own_rank(recorded, ranks, multiple):
    recorded = recorded * ranks * multiple
    rows = slots_to_compute(recorded, ranks, multiple)
    size = len(recorded) // ranks
    assert rows == sorted(set(rows)) and len(rows) % ranks == 0
    assert {at for at, known in enumerate(recorded) if not known} <= set(rows)
    per_rank = [sum(at // size == rank for at in rows) for rank in range(ranks)]
    assert len(set(per_rank)) == 1 and per_rank[0] % multiple == 0
