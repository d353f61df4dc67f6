"""Masks against layouts; with a model's own pass in test_collector.py."""

from __future__ import annotations

import pytest
import torch

from marsrl_verl.attention.layout import OUTSIDE, build_layout
from marsrl_verl.attention.masks import MaskCheck

LENGTHS, WIDTH = (1300, 2500), 2600
"""Two padded rows, longer than the rows of a mask that are compared at a time."""


def padded_layout():
    steps = torch.full((2, WIDTH), OUTSIDE)
    for row, length in enumerate(LENGTHS):
        steps[row, :length] = torch.arange(length) // 100
    return build_layout(steps, steps > 0, delta=2)


def causal(rows: int) -> torch.Tensor:
    return torch.ones(rows, 1, WIDTH, WIDTH, dtype=torch.bool).tril()


@pytest.mark.parametrize("rows", [1, 2])
def test_every_row_and_query_is_looked_at(rows):
    layout = padded_layout()
    mask = causal(rows)
    MaskCheck(layout)(mask, WIDTH, None)
    mask[-1, 0, 2499, 7] = False  # the last query of the second row
    with pytest.raises(ValueError, match="False in the mask at query 2499, key 7"):
        MaskCheck(layout)(mask, WIDTH, None)
    mask = causal(rows)
    mask[0, 0, 1100, 1101] = True
    with pytest.raises(ValueError, match="True in the mask at query 1100, key 1101"):
        MaskCheck(layout)(mask, WIDTH, None)


def test_what_padding_sees_does_not_matter():
    mask = causal(2)
    mask[0, 0, 1300:] = True
    MaskCheck(padded_layout())(mask, WIDTH, None)


def test_a_mask_is_looked_at_once_for_each_window():
    check, mask = MaskCheck(padded_layout()), causal(2)
    check(mask, WIDTH, None)
    mask.fill_(True)  # as no pass does: it would be found out
    check(mask, WIDTH, None)
    with pytest.raises(ValueError, match="the last 50 tokens of its sequence"):
        check(mask, WIDTH, 50)
