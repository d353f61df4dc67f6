"""Means over turns by hand, which policy losses there are, and what an update sends for them.

That neither depends on how an update is cut: `test_update_invariance.py`, `test_gradient_invariance.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted_trainer import ScriptedTrainer

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.method import LossSpec
from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.policy_loss import (
    LossInputs,
    loss_inputs,
    register_loss,
    turn_weights,
)

MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
TURNS = torch.tensor([[0, 0, 1, -1, 0], [4, -1, 7, 7, 9], [-1, 0, 0, 0, 0]], dtype=torch.int16)
"""Two turns with 2 and 1 tokens, three with 1, 2 and 1, and a row that only fills up the batch."""


def inputs(sequences: int = 2, turns: int = 5) -> LossInputs:
    return LossInputs({TURN: TURNS}, {}, tokens=7, sequences=sequences, turns=turns, ranks=1)


def test_mean_over_turns_by_hand():
    found = turn_weights(MASK, inputs(), LossMean.TURN)
    expected = [[0.1, 0.1, 0.2, 0, 0], [0.2, 0, 0.1, 0.1, 0.2], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))
    losses = torch.tensor([[1.0, 3, 4, 9, 9], [5, 9, 6, 8, 2], [9, 9, 9, 9, 9]])
    assert float((losses * found).sum()) == pytest.approx((2 + 4 + 5 + 7 + 2) / 5)


def test_mean_over_sequences_of_their_turns_by_hand():
    found = turn_weights(MASK, inputs(), LossMean.SEQUENCE)
    expected = [[1 / 8, 1 / 8, 1 / 4, 0, 0], [1 / 6, 0, 1 / 12, 1 / 12, 1 / 6], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_means_are_over_the_whole_mini_batch():
    """Of which these rows are one half of the turns, and one sequence in four."""
    of_turns = turn_weights(MASK, inputs(turns=10), LossMean.TURN)
    torch.testing.assert_close(of_turns, turn_weights(MASK, inputs(), LossMean.TURN) / 2)
    of_sequences = turn_weights(MASK, inputs(sequences=8), LossMean.SEQUENCE)
    torch.testing.assert_close(of_sequences, turn_weights(MASK, inputs(), LossMean.SEQUENCE) / 4)


@pytest.mark.parametrize("mean", LossMean)
def test_rows_without_a_token_in_the_loss_have_no_mean(mean):
    assert not turn_weights(torch.zeros_like(MASK), inputs(0, 0), mean).any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vanila", "expected package.module:function, or one of verl's: .*vanilla"),
        ("no_such_module:loss", "No module named 'no_such_module'"),
        (f"{__name__}:no_such_loss", "no_such_loss"),
        (f"{__name__}:MASK", "expected package.module:function"),
    ],
)
def test_a_policy_loss_that_is_not_there_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        register_loss(name)


def test_what_a_policy_loss_reads_is_there_in_an_update_only():
    with pytest.raises(RuntimeError, match="while an update computes them"):
        loss_inputs()


class WithLoss(MarsRL):
    """Asks for the versions of tokens beside verl's columns."""

    SPEC = LossSpec(f"{__name__}:a_policy_loss", ("token_versions",), {"clip": 0.1})

    @classmethod
    def loss(cls, config):
        return cls.SPEC

    def _with_turns(self, groups):
        for group in groups:
            for one in group.trajectories:
                turns = (np.arange(len(one.sequence)) // 8).astype(np.int16)
                one.sequence.annotations = {**one.sequence.annotations, TURN: turns}

    def select(self, groups, step):
        self._with_turns(groups)
        return super().select(groups, step)


def a_policy_loss(**_):
    raise AssertionError("scripted workers compute no loss")


def run(folder, method=WithLoss, mean=None) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(folder, 3, method=method)
    trainer.settings.training.loss_mean = mean
    trainer.fit()
    return trainer


def test_the_update_brings_what_the_loss_reads(tmp_path):
    for one in run(tmp_path).updated:
        assert (one["spec"], one["mean"]) == (WithLoss.SPEC, None)
        assert set(one["columns"]) == {"loss/token_versions"}
        assert one["columns"]["loss/token_versions"].dtype == torch.int32
        assert len(one["columns"]["loss/token_versions"].values()) == len(one["advantages"])


def test_a_mean_over_turns_brings_turns(tmp_path):
    updated = run(tmp_path, mean=LossMean.TURN).updated
    assert updated
    for one in updated:
        turns = one["columns"]["loss/turn"]
        assert (one["mean"], turns.dtype) == (LossMean.TURN, torch.int16)
        # Nothing of these responses is masked, and padding is a token in turn 0.
        counts = [len(row.unique()) for row in turns.unbind()]
        assert one["turns"] == sum(counts) - one["padding"] > one["rows"]


def test_annotations_that_no_response_has_are_refused_by_name(tmp_path):
    with pytest.raises(
        ValueError, match=r"loss_mean=turn-mean-token-mean takes the annotation 'turn', which"
    ):
        run(tmp_path / "mean", MarsRL, LossMean.TURN)

    class Wrong(WithLoss):
        SPEC = LossSpec(columns=("tree_node",))

    with pytest.raises(ValueError, match=r"Wrong.loss reads the annotation 'tree_node', which none of the"):
        run(tmp_path / "annotation", Wrong)

    class NoReference(WithLoss):
        SPEC = LossSpec(columns=("ref_log_probs",))

    with pytest.raises(
        ValueError, match=r"columns \['ref_log_probs'\], which this step does not have; it has"
    ):
        run(tmp_path / "column", NoReference)
