"""Which policy losses there are, and what an update sends for them. Their means, and that these do not depend
on how an update is cut: `test_update_invariance.py`, `test_gradient_invariance.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted_trainer import ScriptedTrainer

from marsrl_verl.algos.marsrl.method import MarsCredit, MarsRL
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.policy_loss import register_loss

A_NUMBER = 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vanila", "expected package.module:function, or one of verl's: .*vanilla"),
        ("no_such_module:loss", "No module named 'no_such_module'"),
        (f"{__name__}:no_such_loss", "no_such_loss"),
        (f"{__name__}:A_NUMBER", "expected package.module:function"),
    ],
)
def test_a_policy_loss_that_is_not_there_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        register_loss(name)


SPEC = LossSpec(f"{__name__}:a_policy_loss", ("token_versions",), {"clip": 0.1})
NODES = LossSpec(f"{__name__}:a_policy_loss", ("tree_node",))


def reading(spec: LossSpec) -> type[MarsCredit]:
    return type("Credit", (MarsCredit,), {"loss": classmethod(lambda cls, config: spec)})


def note_turns(trajectories):
    for one in trajectories:
        turns = (np.arange(len(one.sequence)) // 8).astype(np.int16)
        one.sequence.annotations = {**one.sequence.annotations, TURN: turns}


class WithLoss(MarsRL):
    """Asks for the versions of tokens beside verl's columns."""

    Credit = reading(SPEC)

    def observe_stage(self, stage, problems, step):
        for groups in problems:
            for group in groups:
                note_turns(group.trajectories)


def a_policy_loss(**_):
    raise AssertionError("scripted workers compute no loss")


def updates(folder, method=WithLoss, mean=None) -> list[dict]:
    """Of a run."""
    trainer = ScriptedTrainer(folder, 3, method=method)
    trainer.settings.training.loss_mean = mean
    trainer.fit()
    assert trainer.updated
    return trainer.updated


def test_the_update_brings_what_the_loss_reads(tmp_path):
    for one in updates(tmp_path):
        assert (one["spec"], one["mean"]) == (SPEC, None)
        assert set(one["columns"]) == {"loss/token_versions"}
        assert one["columns"]["loss/token_versions"].dtype == torch.int32
        assert len(one["columns"]["loss/token_versions"].values()) == len(one["advantages"])


def test_a_mean_over_turns_brings_turns(tmp_path):
    for one in updates(tmp_path, mean=LossMean.TURN):
        turns = one["columns"]["loss/turn"]
        assert (one["mean"], turns.dtype) == (LossMean.TURN, torch.int16)
        # Nothing of these responses is masked, and padding is a token in turn 0.
        counts = [len(row.unique()) for row in turns.unbind()]
        assert one["turns"] == sum(counts) - one["padding"] > one["rows"]


class SomeTurns(WithLoss):
    """Notes turns in the second step alone, of half of a group."""

    def observe_stage(self, stage, problems, step):
        if step == 2:
            for groups in problems:
                for group in groups:
                    note_turns(group.trajectories[::2])


def test_a_step_may_have_no_response_with_what_the_loss_reads(tmp_path):
    """It ends no run: a row whose tokens have no turn is one turn."""
    first, second, third = updates(tmp_path, SomeTurns, LossMean.TURN)
    for one in (first, third):
        assert set(one["columns"]["loss/turn"].values().tolist()) <= {-1, 0}, "0 is a row of padding"
        assert one["turns"] == one["rows"] > 0
    assert second["turns"] > second["rows"]
    assert {-1, 1} < set(second["columns"]["loss/turn"].values().tolist())


class ReadsNodes(WithLoss):
    Credit = reading(NODES)


def test_other_annotations_are_missing_as_nan(tmp_path):
    for one in updates(tmp_path, ReadsNodes):
        values, padding = one["columns"]["loss/tree_node"].values(), one["padding"]
        assert values.dtype == torch.float32 and int((~values.isnan()).sum()) <= padding
