"""Figures of k answers to a problem, expected over all draws of k of its n answers: unbiased from n of them,
and exact, since binomial coefficients are integers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

TAUS = (0.5, 0.75, 1.0)
"""Shares of k answers for which G-Pass@k is reported: those of the paper's tables."""


def reported_k(answers: int) -> list[int]:
    """The k that are reported: 2, 4, 8, … and the number of answers."""
    return sorted({*(2**power for power in range(1, answers.bit_length())), answers} - {0, 1})


def pass_at_k(answers: int, correct: int, k: int) -> float:
    """The chance that k answers, drawn from so many without replacement, hold a correct one:
    1 - C(answers - correct, k) / C(answers, k), unbiased for any k up to their number (Chen et al. 2021,
    arXiv 2107.03374, eq. 1).

    Raises:
        ValueError: on numbers that no problem can have; the message names them. So the next two.
    """
    return 1 - _ways(answers, correct, k)[0] / math.comb(answers, k)


def g_pass_at_k(answers: int, correct: int, k: int, tau: float) -> float:
    """G-Pass@k_tau: the chance that at least ceil(tau k) of k answers, drawn from so many without
    replacement, are correct, the upper tail of a hypergeometric distribution (Liu et al. 2024, arXiv
    2412.13147, eq. 5). With tau up to 1/k it is pass@k."""
    if not 0 < tau <= 1:
        raise ValueError(f"tau must be above 0 and at most 1, found {tau}")
    least = max(1, math.ceil(tau * k - 1e-9))  # 0.28 x 25 is 7.000000000000001
    return sum(_ways(answers, correct, k)[least:]) / math.comb(answers, k)


def mg_pass_at_k(answers: int, correct: int, k: int) -> float:
    """mG-Pass@k: twice the integral of G-Pass@k_tau over tau from 1/2 to 1 (arXiv 2412.13147, eq. 6).

    With j correct ones among k it is the mean of max(0, 2j/k - 1). For an even k that is the paper's sum
    over i/k; that of an odd k leaves out the half step between 1/2 and (k + 1)/2k, and stays below 1.
    """
    ways = _ways(answers, correct, k)
    return sum(max(0, 2 * j - k) * number for j, number in enumerate(ways)) / (k * math.comb(answers, k))


def _ways(answers: int, correct: int, k: int) -> list[int]:
    """Draws of k answers, counted by how many are correct, from 0 to k."""
    if not 1 <= k <= answers or not 0 <= correct <= answers:
        raise ValueError(
            f"pass@{k} of {answers} answers, {correct} of them correct: expected 1 <= k <= answers and "
            "0 <= correct <= answers"
        )
    return [math.comb(correct, j) * math.comb(answers - correct, k - j) for j in range(k + 1)]


def majority_of_k(answers: Sequence[tuple[Hashable | None, bool]], k: int) -> float:
    """The chance that the most frequent of k answers is correct: drawn from all without replacement, in a
    random order, of equally frequent ones the first. None does not vote; without any vote it is not correct.

    Args:
        answers: what was answered, and whether it counts as correct.
        k: how many are drawn.
    """
    _ways(len(answers), 0, k)
    votes: dict[Hashable, list[bool]] = {}
    for answer, correct in answers:
        if answer is not None:
            votes.setdefault(answer, []).append(correct)
    counts = sorted(map(len, votes.values()))
    chance, silent = 0.0, len(answers) - sum(counts)
    for own in votes.values():
        if any(own):
            others = list(counts)
            others.remove(len(own))
            chance += sum(own) / len(own) * _chance_to_win(len(own), tuple(others), silent, k)
    return chance


@lru_cache(maxsize=4096)
def _chance_to_win(own: int, others: tuple[int, ...], silent: int, k: int) -> float:
    """The chance to win of an answer that was given `own` times, against the counts of `others` and `silent`
    answers without a vote. Among t + 1 equally frequent ones each is the first in one of t + 1 orders."""
    chance, draws = 0.0, math.comb(own + sum(others) + silent, k)
    for most in range(1, min(own, k) + 1):
        ways = {(drawn, 0): math.comb(silent, drawn) for drawn in range(min(silent, k - most) + 1)}
        for count in others:
            grown: dict[tuple[int, int], int] = {}
            for (drawn, ties), number in ways.items():
                for taken in range(min(count, most, k - most - drawn) + 1):
                    key = drawn + taken, ties + (taken == most)
                    grown[key] = grown.get(key, 0) + number * math.comb(count, taken)
            ways = grown
        for (drawn, ties), number in ways.items():
            if drawn == k - most:
                chance += math.comb(own, most) * number / ((ties + 1) * draws)
    return chance


def best_of_k(answers: Sequence[tuple[float, bool]], k: int) -> float:
    """The chance that the answer with the highest score among k, drawn from all without replacement, is
    correct; of equal scores each is taken as likely.

    Args:
        answers: the score of each, and whether it is correct.
        k: how many are drawn.
    """
    _ways(len(answers), 0, k)
    by_score: dict[float, list[bool]] = {}
    for score, correct in answers:
        by_score.setdefault(score, []).append(correct)
    chance, left, draws = 0.0, len(answers), math.comb(len(answers), k)
    for score in sorted(by_score, reverse=True):
        equal = by_score[score]
        best = math.comb(left, k) - math.comb(left - len(equal), k)  # draws whose best one is among these
        chance += sum(equal) * best / (len(equal) * draws)
        left -= len(equal)
    return chance


def by_problem(counts: Mapping[str, Sequence[bool]], k: int) -> dict[str, dict[str, float]]:
    """pass@k and, from k = 4 on, G-Pass@k and mG-Pass@k of each problem, by the end of the figure's name."""
    found = {f"pass_at_{k}": {name: pass_at_k(len(one), sum(one), k) for name, one in counts.items()}}
    if k >= 4:
        for tau in TAUS:
            values = {name: g_pass_at_k(len(one), sum(one), k, tau) for name, one in counts.items()}
            found[f"g_pass_at_{k}_tau_{tau:g}"] = values
        values = {name: mg_pass_at_k(len(one), sum(one), k) for name, one in counts.items()}
        found[f"mg_pass_at_{k}"] = values
    return found
