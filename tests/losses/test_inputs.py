"""Means of token losses by hand; against verl's they are held in `verl_adapter/test_update_invariance.py`."""

import pytest
import torch

from marsrl_verl.core.sequence import TURN
from marsrl_verl.losses.inputs import LossInputs, giving, loss_inputs, mean_loss, mean_weights
from marsrl_verl.settings.choices import LossMean

MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
TURNS = torch.tensor([[0, 0, 1, -1, 0], [4, -1, 7, 7, 9], [-1, 0, 0, 0, 0]], dtype=torch.int16)
"""Two turns with 2 and 1 tokens, three with 1, 2 and 1, and a row that only fills up the batch."""


def inputs(mean: str, sequences: int = 2, turns: int = 5) -> LossInputs:
    return LossInputs({TURN: TURNS}, {}, tokens=7, sequences=sequences, turns=turns, ranks=1, mean=mean)


def test_mean_over_turns_by_hand():
    found = mean_weights(MASK, inputs(LossMean.TURN))
    expected = [[0.1, 0.1, 0.2, 0, 0], [0.2, 0, 0.1, 0.1, 0.2], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))
    losses = torch.tensor([[1.0, 3, 4, 9, 9], [5, 9, 6, 8, 2], [9, 9, 9, 9, 9]])
    assert float((losses * found).sum()) == pytest.approx((2 + 4 + 5 + 7 + 2) / 5)


def test_mean_over_sequences_of_their_turns_by_hand():
    found = mean_weights(MASK, inputs(LossMean.SEQUENCE))
    expected = [[1 / 8, 1 / 8, 1 / 4, 0, 0], [1 / 6, 0, 1 / 12, 1 / 12, 1 / 6], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_means_are_over_the_whole_mini_batch():
    """Of which these rows are one half of the turns, and one sequence in four."""
    of_turns = mean_weights(MASK, inputs(LossMean.TURN, turns=10))
    torch.testing.assert_close(of_turns, mean_weights(MASK, inputs(LossMean.TURN)) / 2)
    of_sequences = mean_weights(MASK, inputs(LossMean.SEQUENCE, sequences=8))
    torch.testing.assert_close(of_sequences, mean_weights(MASK, inputs(LossMean.SEQUENCE)) / 4)


@pytest.mark.parametrize("mean", [*LossMean, "token-mean", "seq-mean-token-mean"])
def test_rows_without_a_token_in_the_loss_have_no_mean(mean):
    assert not mean_weights(torch.zeros_like(MASK), inputs(mean, 0, 0)).any()


def test_what_a_policy_loss_reads_is_there_in_an_update_only():
    with pytest.raises(RuntimeError, match="while an update computes them"):
        loss_inputs()
    with pytest.raises(RuntimeError, match="while an update computes them"):
        mean_loss(torch.ones(1, 1), torch.ones(1, 1))


def test_micro_batches_and_ranks_add_up_to_the_mean():
    """Rows 0 and 1 on two ranks, whose gradients are averaged; what is no number outside of the loss."""
    losses = torch.tensor([[1.0, 3, 4, 9, torch.nan], [5, torch.inf, 6, 8, 2], [torch.nan] * 5])
    total = 0.0
    for rows in (slice(0, 1), slice(1, 3)):
        part = LossInputs(
            {TURN: TURNS[rows]}, {}, tokens=7, sequences=2, turns=5, ranks=2, mean=LossMean.SEQUENCE
        )
        with giving(part):
            total += float(mean_loss(losses[rows], MASK[rows])) / 2
    assert total == pytest.approx(((2 + 4) / 2 + (5 + 7 + 2) / 3) / 2)


def test_a_mean_without_its_scale_is_refused():
    with pytest.raises(ValueError, match="'seq-mean-token-sum-norm' with the scale None"):
        mean_weights(MASK, inputs("seq-mean-token-sum-norm"))
