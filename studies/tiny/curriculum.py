"""Exercises for the skills that a Verifier is made of, for the warm start.

A network of this size that learns arithmetic first never learns to check: it predicts a claim by
adding, which is right most of the time, instead of looking it up in the solution. These exercises
come first, while it can't add yet.
"""

from __future__ import annotations

import random
from enum import Enum

from marsrl_verl.demo.problems import LARGEST_TOTAL, Step
from marsrl_verl.demo.prompts import VERIFIER_SYSTEM
from studies.tiny.transcripts import Transcript, check, slip

_CHECKS = 6
_COMPARISONS = 16
_TERMS = tuple(term for term in range(-9, 10) if term)


class Drill(str, Enum):
    """The exercises."""

    CHECKING = "checking"
    """Unrelated claims, half of them wrong, each to be worked out and looked up in the prompt."""
    COMPARING = "comparing"
    """Pairs of numbers, half of them unequal, to be judged equal or not. The numbers are random, only
    the judgements can be learnt."""


def draw_drill(drill: Drill, rng: random.Random) -> Transcript:
    """A random exercise."""
    return _checking(rng) if drill is Drill.CHECKING else _comparing(rng)


def _checking(rng: random.Random) -> Transcript:
    claims, checks = [], []
    for term in rng.sample(_TERMS, _CHECKS):
        left = rng.randint(max(0, -term), LARGEST_TOTAL - max(0, term))
        sign, right = "+" if term > 0 else "-", abs(term)
        own = Step(left, sign, right, left + term)
        wrong = rng.random() < 0.5
        claim = slip(own.result, rng) if wrong else own.result
        claims.append(str(Step(left, sign, right, claim)))
        checks.append(check(own, claim))
    messages = (
        {"role": "system", "content": VERIFIER_SYSTEM},
        {"role": "user", "content": "\n".join(claims)},
    )
    return Transcript(messages, "\n".join(checks))


def _comparing(rng: random.Random) -> Transcript:
    lines = []
    for _ in range(_COMPARISONS):
        first = second = rng.randint(0, LARGEST_TOTAL)
        if rng.random() < 0.5:
            second = slip(first, rng)
        lines.append(f"{first} vs {second}" + (" ok" if first == second else " bad"))
    return Transcript(({"role": "system", "content": VERIFIER_SYSTEM},), "\n".join(lines))
