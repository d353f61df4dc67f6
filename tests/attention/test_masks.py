"""Masks against layouts; with a model's own pass in test_collector.py."""

from __future__ import annotations

import pytest
import torch
from attention_cases import padded_layout

from marsrl_verl.attention.masks import MaskCheck

LENGTHS, WIDTH = (1300, 2500), 2600
"""Two padded rows, longer than the rows of a mask that are compared at a time."""


LAYOUT = padded_layout([[100] * (length // 100) for length in LENGTHS], width=WIDTH, delta=2, unmeasured=(0,))


def causal(rows: int) -> torch.Tensor:
    return torch.ones(rows, 1, WIDTH, WIDTH, dtype=torch.bool).tril()


@pytest.mark.parametrize("rows", [1, 2])
def test_every_row_and_query_is_looked_at(rows):
    mask = causal(rows)
    MaskCheck(LAYOUT)(mask, WIDTH, None)
    mask[-1, 0, 2499, 7] = False  # the last query of the second row
    with pytest.raises(ValueError, match="False in the mask at query 2499, key 7"):
        MaskCheck(LAYOUT)(mask, WIDTH, None)
    mask = causal(rows)
    mask[0, 0, 1100, 1101] = True
    with pytest.raises(ValueError, match="True in the mask at query 1100, key 1101"):
        MaskCheck(LAYOUT)(mask, WIDTH, None)


def test_what_padding_sees_does_not_matter():
    mask = causal(2)
    mask[0, 0, 1300:] = True
    MaskCheck(LAYOUT)(mask, WIDTH, None)


def test_a_mask_is_looked_at_once_for_each_window():
    check, mask = MaskCheck(LAYOUT), causal(2)
    check(mask, WIDTH, None)
    mask.fill_(True)  # as no pass does: it would be found out
    check(mask, WIDTH, None)
    with pytest.raises(ValueError, match="the last 50 tokens of its sequence"):
        check(mask, WIDTH, 50)
