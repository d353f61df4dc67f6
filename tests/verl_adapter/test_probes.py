"""Passes over rows before an update: a probe's columns to the ranks and what they found back, with numbers
that tell every token apart; which rows are looked at, and what the others have in place of it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("verl", reason="batches are verl's")

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.attention.layout import NEVER, OUTSIDE
from marsrl_verl.attention.measure import MeasuredRows, influence_layout
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Probe
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RowRef
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.verl_adapter.engine.batch import PADDING, BatchLayout, PolicyBatch, arrange, jagged
from marsrl_verl.verl_adapter.engine.probe_engine import COLUMNS_KEY, MEASURE_KEY, SETTINGS_KEY
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer
from marsrl_verl.verl_adapter.trainer.probes import (
    fill_log_probs,
    fully_recorded,
    rows_to_probe,
    run_probe,
    slots_to_compute,
)

STEPS = {5: Steps((2, 3, 5), 3), 4: Steps((1, 2, 4), 2), 3: Steps((3,), 1)}
"""By the length of the response."""


def step_columns(sequence: Sequence) -> dict[str, np.ndarray]:
    steps = STEPS[len(sequence)]
    ids = np.array(steps.step_ids(), dtype=np.int32)
    return {"step_ids": ids, "step_measured": (ids > 0) & (ids < steps.thinking)}


PROBE = Probe("p", "package.module:Class", {"delta": 2}, step_columns, ("influence",), entropies=True)


def group() -> Group:
    """Responses of 5, 4, 3 and 0 tokens; ids are the tokens' places in all of them, from 1."""
    sizes, members, next_id = ((3, 5), (2, 4), (4, 3), (2, 0)), [], 1
    for k, (prompt, length) in enumerate(sizes):
        ids = np.arange(next_id, next_id + length)
        one = Sequence("solver", np.full(prompt, 99), ids, [-1.0] * length, versions=((length, 4),))
        members.append(Trajectory(f"a#{k}", [one], FinishReason.STOP))
        next_id += length
    return Group(RolloutRequest("a", Problem("p", "?", "1"), "initial", "solver", (), n=4), members)


def batch_of(one: Group, probe: Probe = PROBE, ranks: int = 1) -> PolicyBatch:
    refs = rows_to_probe([one], "initial", probe)
    (part,) = arrange([one], refs, lambda policy: BatchLayout(ranks, seed=1, step=1)).parts
    return part


class Pass:
    """The workers' pass: figures of a token are multiples of its id."""

    def __init__(self, *names: str) -> None:
        self.factors = {"log_probs": -0.5, "entropy": 2.0, "influence": 3.0}
        self.names = names or tuple(self.factors)
        self.data: TensorDict | None = None

    def __call__(self, data: TensorDict) -> TensorDict:
        self.data = data
        lengths = data["response_mask"].offsets().diff()
        responses = [ids[-n:] for ids, n in zip(data["input_ids"].unbind(), lengths.tolist(), strict=True)]
        by_token = torch.nested.as_nested_tensor(responses, layout=torch.jagged)
        found = {name: by_token * self.factors[name] for name in self.names}
        return TensorDict(found, batch_size=[len(data)])


@pytest.mark.parametrize("ranks", [1, 4])
def test_figures_come_back_to_their_tokens_whatever_the_cut(ranks):
    one, workers = group(), Pass()
    run_probe(PROBE, batch_of(one, ranks=ranks), workers, temperature=1.0, version=4)
    for trajectory in one.trajectories[:3]:
        sequence = trajectory.sequence
        ids, found = sequence.response_ids.astype(float), sequence.annotations
        for name in ("trainer_log_probs", "recorded_log_probs"):
            assert found[name].tolist() == (-0.5 * ids).tolist()
        assert found["influence"].tolist() == (3 * ids).tolist()
        assert found["recorded_entropies"].tolist() == (2 * ids).tolist()
    assert one.trajectories[3].sequence.annotations == {}, "nothing to look at"


def test_what_the_ranks_are_asked():
    workers = Pass()
    run_probe(PROBE, batch_of(group(), ranks=4), workers, temperature=0.5, version=4)
    data = workers.data
    assert tu.get_non_tensor_data(data, MEASURE_KEY, None) == "package.module:Class"
    assert tu.get_non_tensor_data(data, SETTINGS_KEY, None) == {"delta": 2}
    assert tuple(tu.get_non_tensor_data(data, COLUMNS_KEY, None)) == ("step_ids", "step_measured")
    assert tu.get_non_tensor_data(data, "calculate_entropy", None) is True
    ids = [row.tolist() for row in data["step_ids"].unbind()]
    assert ids == [[0, 0, 1, 2, 2], [0, 0, 0], [0, 1, 2, 2], [0]]
    # Neither a first step nor one from the closing of the thinking part on.
    measured = [row.int().tolist() for row in data["step_measured"].unbind()]
    assert measured == [[0, 0, 1, 1, 1], [0, 0, 0], [0, 1, 0, 0], [0]]


def test_without_a_measure_nothing_is_asked_but_log_probabilities():
    one, workers, probe = group(), Pass("log_probs"), Probe("plain")
    run_probe(probe, batch_of(one, probe), workers, temperature=1.0, version=4)
    assert tu.get_non_tensor_data(workers.data, MEASURE_KEY, None) is None
    assert set(one.trajectories[0].sequence.annotations) == {"trainer_log_probs", "recorded_log_probs"}


def test_a_sequence_is_looked_at_once():
    one = group()
    run_probe(PROBE, batch_of(one), Pass(), temperature=1.0, version=4)
    assert rows_to_probe([one], "initial", PROBE) == []
    assert rows_to_probe([one], "initial", Probe("more", outputs=("other",))) != []
    assert rows_to_probe([group()], "another stage", PROBE) == []


def test_tokens_of_older_weights_are_not_recorded():
    one = group()
    one.trajectories[0].sequence.versions = ((2, 3), (5, 4))
    known = np.array([-7.0, np.nan, np.nan, np.nan, np.nan], dtype=np.float32)
    one.trajectories[0].sequence.annotations = {"recorded_log_probs": known}
    run_probe(PROBE, batch_of(one), Pass(), temperature=1.0, version=4)
    found = one.trajectories[0].sequence.annotations
    assert found["trainer_log_probs"].tolist() == [-0.5, -1.0, -1.5, -2.0, -2.5]
    recorded = found["recorded_log_probs"].tolist()
    assert recorded[0] == -7.0 and math.isnan(recorded[1]), "what was known stays"
    assert recorded[2:] == [-1.5, -2.0, -2.5]


def test_workers_that_do_not_measure_are_found_out():
    with pytest.raises(RuntimeError, match="probe p: the workers returned no influence"):
        run_probe(PROBE, batch_of(group()), Pass("log_probs", "entropy"), temperature=1.0, version=4)


@pytest.mark.parametrize("packed", [True, False])
def test_the_layout_of_a_forward_pass(packed):
    columns = [step_columns(one.sequence) for one in group().trajectories[:2]]
    rows = MeasuredRows(
        torch.tensor([0, 8, 14]),
        torch.tensor([5, 4]),
        {name: torch.from_numpy(np.concatenate([one[name] for one in columns])) for name in columns[0]},
        packed=packed,
        padding=3 if packed else 0,
    )
    layout = influence_layout(rows, 1)
    first = [0, 0, 0, 1, 1, 2, 3, 3]
    second = [0, 0, 1, 2, 3, 3]
    outside = [OUTSIDE] * (3 if packed else 2)
    assert layout.query_steps.tolist() == first + second + outside
    assert layout.starts == (0, 8) and layout.ends == (8, 14)
    measured = [False] * 5 + [True] * 3 + [False] * 3 + [True] + [False] * (2 + len(outside))
    assert (layout.key_steps != NEVER).tolist() == measured


@pytest.mark.parametrize(("sharing", "whole_rows"), [(True, False), (True, True), (False, False)])
def test_the_pass_is_cut_as_the_update_is_where_no_row_must_be_whole(sharing, whole_rows):
    """In half precision two cuts differ in their last digits, which the ratio to recorded ones would show."""
    asked: list[bool] = []

    def plan(policy, *, share):
        asked.append(share)
        return BatchLayout(1, seed=1, step=1, share_prefixes=share)

    one, probe = group(), Probe("p", shares_prefixes=not whole_rows)
    method = SimpleNamespace(
        config=None,
        stages=lambda config: (Stage("initial", "solver", 2),),
        probes=lambda stage: (probe,) if stage == "initial" else (),
    )
    trainer = SimpleNamespace(
        method=method,
        scheduler=SimpleNamespace(completed_stages=lambda: [one]),
        settings=SimpleNamespace(training=SimpleNamespace(share_prefixes=sharing)),
        policies=PolicySet(),
        _sleep_engine=lambda: None,
        _timed=lambda name: nullcontext(),
        _batch_layout=plan,
        _run_probe=lambda probe, part: None,
    )
    PolicyTrainer._fit_run_probes(trainer)
    assert asked == [sharing and not whole_rows]


# --- rows that were looked at before --------------------------------------------------------------


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


def recorded_batch(trajectories: list[Trajectory], *, ranks: int = 1, multiple: int = 1) -> PolicyBatch:
    request = RolloutRequest("g", Problem("p", "?", "1"), "initial", "solver", (), n=len(trajectories))
    refs = [RowRef(0, place) for place in range(len(trajectories))]
    plan = BatchLayout(ranks, seed=1, step=1, micro_batch_rows=multiple)
    annotations = (RECORDED_LOG_PROBS, RECORDED_ENTROPIES)
    batch = arrange([Group(request, trajectories)], refs, lambda policy: plan, annotations=annotations)
    for name in (OLD_LOG_PROBS, ENTROPIES):
        batch.rows.columns[name] = np.full(batch.rows.tokens, 77.0, dtype=np.float32)
    (part,) = batch.parts
    return part


class LogProbs:
    """The workers' pass: log-probability -2 and entropy 1.5 for every token."""

    def __init__(self, batch: PolicyBatch) -> None:
        self.batch = batch
        self.requests: list[list[str]] = []

    def __call__(self, slots):
        rows, known = self.batch.slots[slots].tolist(), self.batch.rows
        names = ["padding" if row == PADDING else known.trajectory(row).trajectory_id for row in rows]
        self.requests.append(names)
        lengths = np.array([1 if row == PADDING else len(known.sequence(row)) for row in rows])
        total = int(lengths.sum())
        return tuple(jagged(np.full(total, value, dtype=np.float32), lengths) for value in (-2.0, 1.5))


def firsts(batch: PolicyBatch, column: str) -> list[float]:
    """Of each row the value of its first token, when all of its tokens have the same."""
    rows = batch.rows
    parts = [rows.columns[column][rows.slice(row)] for row in range(len(rows))]
    assert all((part == part[0]).all() for part in parts)
    return [float(part[0]) for part in parts]


def test_recorded_rows_are_left_out_of_the_pass():
    batch = recorded_batch(members())
    workers = LogProbs(batch)
    assert fully_recorded(batch.rows).tolist() == [True, False, False, True, False]
    computed = fill_log_probs(batch, workers, reuse=True)
    assert workers.requests == [["continued", "without entropies", "segment before"]]
    assert computed.tolist() == [False, True, True, False, True]
    assert firsts(batch, OLD_LOG_PROBS) == [-1.0, -2.0, -2.0, -1.0, -2.0]
    assert firsts(batch, ENTROPIES) == [0.5, 1.5, 1.5, 0.5, 1.5]


def test_every_rank_has_equally_many_rows():
    batch = recorded_batch(members(), ranks=2)
    workers = LogProbs(batch)
    fill_log_probs(batch, workers, reuse=True)
    # One rank has first, other first and segment before, the other one the rest and a slot of padding.
    (requested,) = workers.requests
    assert len(requested) == 4 and {"continued", "without entropies", "segment before"} < set(requested)


def test_all_rows_are_computed_where_none_is_reused():
    batch = recorded_batch(members(), multiple=4)
    workers = LogProbs(batch)
    computed = fill_log_probs(batch, workers, reuse=False)
    assert len(workers.requests[0]) == 8 and workers.requests[0].count("padding") == 3 and computed.all()
    assert firsts(batch, OLD_LOG_PROBS) == [-2.0] * 5 and firsts(batch, ENTROPIES) == [1.5] * 5


def test_nothing_is_computed_where_all_is_recorded():
    batch = recorded_batch([members()[0], members()[3]], ranks=2)
    workers = LogProbs(batch)
    computed = fill_log_probs(batch, workers, reuse=True)
    assert workers.requests == [] and not computed.any()
    assert firsts(batch, OLD_LOG_PROBS) == [-1.0, -1.0] and firsts(batch, ENTROPIES) == [0.5, 0.5]


def test_a_token_of_older_weights_has_its_row_computed():
    one = row("late", 3, recorded=3)
    one.sequence.annotations[RECORDED_LOG_PROBS][0] = math.nan
    assert fully_recorded(recorded_batch([one]).rows).tolist() == [False]


def test_a_tools_tokens_need_no_record():
    one = row("tool", 3, recorded=2)
    one.sequence.response_mask[2] = 0
    batch = recorded_batch([one])
    fill_log_probs(batch, LogProbs(batch), reuse=True)
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
