"""Figures of a response's style: repetition, variety and words of reflection (arXiv 2509.26628, logs figures
of this kind; word lists and definitions are our own)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

REPEATED_TOKENS = 20
"""Length of the n-grams whose return counts as repetition."""
DISTINCT_TOKENS = 4
"""Length of the n-grams that variety is measured by."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_REFLECTION = re.compile(
    r"\b(?:wait|hmm|however|alternatively|instead|actually|mistake|"
    r"(?:re-?|double[- ])?check(?:ing|ed)?|verif(?:y|ied|ying)|(?:re)?consider|reconsidering)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TextFigures:
    """Figures of one response; None where it is too short for one n-gram."""

    repetition: float | None
    """Share of its 20-grams of tokens that stood in it before."""
    distinct: float | None
    """Share of its 4-grams of tokens that are different from each other."""
    reflection_words: int
    """Words such as "wait", "however", "check"."""


def text_figures(token_ids: ArrayLike, text: str) -> TextFigures:
    """The figures of a response, in time linear in its length, but for sorting."""
    tokens = np.asarray(token_ids, dtype=np.uint64)
    repeated = distinct_frac(tokens, REPEATED_TOKENS)
    return TextFigures(
        repetition=None if repeated is None else 1.0 - repeated,
        distinct=distinct_frac(tokens, DISTINCT_TOKENS),
        reflection_words=sum(1 for _ in _REFLECTION.finditer(text)),
    )


def distinct_frac(tokens: np.ndarray, length: int) -> float | None:
    """Distinct n-grams over all n-grams, None without any.

    N-grams are told apart by a hash of 64 bits: two of a hundred thousand are taken for one with a chance of
    about 3e-10.
    """
    count = len(tokens) - length + 1
    if count < 1:
        return None
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):  # wraps around, as it is meant to
        hashes = (hashes ^ (tokens[offset : offset + count] + np.uint64(1))) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return len(np.unique(hashes)) / count
