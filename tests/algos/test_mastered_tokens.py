"""Masking of well-mastered positive tokens, with values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.mastered_tokens import mastered_positive_tokens, tokens_to_mask
from marsrl_verl.settings.choices import EntropyScope

# Four samples: entropies 0.1 and 0.3 | 0.05 | 0.5 | 0.1, the last one with a negative advantage.
LOG_PROBS = torch.log(torch.tensor([[0.995, 0.5], [0.995, 0.99], [0.999, 0.2], [0.999, 0.999]]))
ENTROPIES = torch.tensor([[0.1, 0.3], [0.05, 9.0], [0.5, 0.5], [0.1, 0.1]])
ADVANTAGES = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
MASK = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])
ROLES = ["solver", "solver", "verifier", "verifier"]


def masked(**settings) -> list[list[bool]]:
    mastered = mastered_positive_tokens(LOG_PROBS, ADVANTAGES, MASK)
    return tokens_to_mask(mastered, ENTROPIES, MASK, ROLES, **settings).tolist()


def test_mastered_tokens_are_probable_positive_and_sampled():
    # 0.5, 0.2: improbable; 0.99 of the second row: no token of the model; the last row: negative
    expected = [[True, False], [True, False], [True, False], [False, False]]
    assert mastered_positive_tokens(LOG_PROBS, ADVANTAGES, MASK).tolist() == expected
    assert not mastered_positive_tokens(LOG_PROBS, torch.zeros_like(ADVANTAGES), MASK).any()


def test_sequence_scope_looks_at_each_samples_own_tokens():
    # means: 0.2 (not below 0.2), 0.05 (its second token is no token of the model), 0.5, 0.1
    assert masked() == [[False, False], [True, False], [False, False], [False, False]]
    assert masked(target_entropy=0.21)[0] == [True, False]


def test_batch_scope_looks_at_all_tokens():
    # (0.1 + 0.3 + 0.05 + 0.5 + 0.5 + 0.1 + 0.1) / 7 = 0.2357
    assert not any(map(any, masked(scope="batch", target_entropy=0.235)))
    expected = [[True, False], [True, False], [True, False], [False, False]]
    assert masked(scope="batch", target_entropy=0.236) == expected


def test_role_scope_looks_at_the_roles_tokens():
    # solver: 0.45 / 3 = 0.15; verifier: 1.2 / 4 = 0.3
    assert masked(scope="role") == [[True, False], [True, False], [False, False], [False, False]]


def test_the_probability_threshold_counts_itself():
    exact = mastered_positive_tokens(
        torch.tensor([[0.0]]), torch.ones(1, 1), torch.ones(1, 1), probability=1.0
    )
    assert exact.tolist() == [[True]]


@given(st.sampled_from(list(EntropyScope)), st.permutations(range(4)))
def test_the_order_of_rows_does_not_matter(scope, order):
    expected = torch.tensor(masked(scope=scope))[list(order)]
    index = torch.tensor(order)
    mastered = mastered_positive_tokens(LOG_PROBS[index], ADVANTAGES[index], MASK[index])
    found = tokens_to_mask(mastered, ENTROPIES[index], MASK[index], [ROLES[i] for i in order], scope=scope)
    assert torch.equal(found, expected)


def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match="token"):
        masked(scope="token")


def test_nothing_is_masked_without_tokens():
    nothing = torch.zeros_like(MASK)
    mastered = mastered_positive_tokens(LOG_PROBS, ADVANTAGES, nothing)
    assert not tokens_to_mask(mastered, ENTROPIES, nothing, ROLES, target_entropy=math.inf).any()
