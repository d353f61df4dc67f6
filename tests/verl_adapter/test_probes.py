"""A probe's columns to the ranks and what they found back, with numbers that tell every token apart."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="batches are verl's")

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.attention.layout import NEVER, OUTSIDE
from marsrl_verl.attention.measure import MeasuredRows, influence_layout
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Probe
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.steps import Steps
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.verl_adapter.engine.batch import BatchLayout, PolicyBatch, arrange
from marsrl_verl.verl_adapter.engine.probe_engine import COLUMNS_KEY, MEASURE_KEY, SETTINGS_KEY
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer
from marsrl_verl.verl_adapter.trainer.probes import rows_to_probe, run_probe

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


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_figures_come_back_to_their_tokens_whatever_the_cut(ranks):
    one, workers = group(), Pass()
    run_probe(PROBE, batch_of(one, ranks=ranks), workers, temperature=1.0, version=4)
    for trajectory in one.trajectories[:3]:
        sequence = trajectory.sequence
        ids, found = sequence.response_ids.astype(float), sequence.annotations
        assert (
            found["trainer_log_probs"].tolist()
            == found["recorded_log_probs"].tolist()
            == (-0.5 * ids).tolist()
        )
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
    assert [row.tolist() for row in data["step_ids"].unbind()] == [
        [0, 0, 1, 2, 2],
        [0, 0, 0],
        [0, 1, 2, 2],
        [0],
    ]
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
    assert found["recorded_log_probs"][[0, 2, 3, 4]].tolist() == [-7.0, -1.5, -2.0, -2.5], (
        "known before: stays"
    )
    assert np.isnan(found["recorded_log_probs"][1])


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


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("whole_rows", [True, False])
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
