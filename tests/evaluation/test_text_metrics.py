from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.evaluation.text_metrics import distinct_share, text_figures


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_distinct_share_is_that_of_the_n_grams_themselves(tokens, length):
    grams = [tuple(tokens[start : start + length]) for start in range(len(tokens) - length + 1)]
    expected = len(set(grams)) / len(grams) if grams else None
    assert distinct_share(np.array(tokens, dtype=np.uint64), length) == expected


def test_zeros_of_different_places_are_told_apart():
    assert distinct_share(np.array([0, 0, 1, 0, 0], dtype=np.uint64), 2) == 0.75


def test_a_loop_is_repetition():
    """Eight tokens five times: 21 20-grams, 8 of them different; 37 4-grams, 8 different."""
    figures = text_figures(list(range(8)) * 5, "")
    assert figures.repetition == pytest.approx(1 - 8 / 21)
    assert figures.distinct == pytest.approx(8 / 37)


def test_a_short_response_has_no_n_grams():
    figures = text_figures([1, 2, 3], "x")
    assert (figures.repetition, figures.distinct, figures.reflection_words) == (None, None, 0)


def test_words_of_reflection_are_counted_as_words():
    text = "Wait, let me double-check. However, 3 + 4 = 7; checking again, verified. Waiter, checkout!"
    assert text_figures([], text).reflection_words == 5
