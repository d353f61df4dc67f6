"""Words behind a number that count something, told from those that make another answer of it."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import is_unit_word
from marsrl_verl.rewards.normal_form import MAGNITUDES

_VERBS_AND_THE_LIKE = """
    is was has does fails works equals exceeds lies misses differs needs gives makes becomes goes says seems
    holds satisfies contradicts violates times plus minus always perhaps sometimes besides unless thus this
    its his hers yes as us contains appears looks means remains stays solves results
"""
"""They end in s and are no nouns in the plural."""
_OTHER_ANSWER = """
    not no cannot can could should would might may must never be been being are were isn't doesn't ain't
    excluded excluding exclude unlikely negative negated wrong false incorrect invalid impossible undefined
    root roots power powers or if when except than but nor neither either maybe perhaps possibly probably
    fake rejected denied mistaken contradiction opposite inverse reciprocal squared cubed doubled halved
    tripled less more fewer minus plus times approximately about roughly almost nearly around below above
    under over beyond least most only mod modulo factorial th nd rd st ago digits digit places ish point
    halves thirds fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths millionths any
    other every everything anything else
"""
"""They deny the number, doubt it or make another one of it."""
_IRREGULAR = """
    people men women children feet teeth mice geese oxen fish sheep deer cattle dice data vertices indices
    matrices axes bacteria criteria phenomena radii foci loci cacti fungi series species money water milk
    rice sugar flour oil gas paint sand juice time food bread paper fruit work energy
"""
_NO_PLURALS = frozenset(_VERBS_AND_THE_LIKE.split())
_NO_UNITS = frozenset(_OTHER_ANSWER.split()) | _NO_PLURALS | MAGNITUDES.keys()
_PLURALS = frozenset(_IRREGULAR.split())
_TRAILING = frozenset(
    {
        "total",
        "altogether",
        "each",
        "left",
        "remaining",
        "overall",
        "old",
        "long",
        "tall",
        "wide",
        "high",
        "deep",
        "away",
    }
)
_PREPOSITION = re.compile(r"\b(?:of|per|in|for|from|on|with|to|a|an|each|at|by|the)\b")
_AT_MOST_ONE = re.compile(r"(?:(?<![\d.,}])1|(?<!\d)0?\.\d+|\}|(?<!\d)\d/\d+)[\s$~]*\Z")


def is_unit_phrase(words: list[str], before: str) -> bool:
    """Whether words behind a number count something: `cannot be` counts nothing.

    Known units do, and a noun in the plural with what is said of it (red apples, ways to go); one in the
    singular does behind 1 and what is less.

    Args:
        words: in small letters.
        before: what stands in front of them.
    """
    while words and words[-1] in _TRAILING:
        words = words[:-1]
    if words[-1:] == ["in"]:  # in total
        words = words[:-1]
    if not words or all(is_unit_word(word) for word in words):
        return True
    if not _NO_UNITS.isdisjoint(words):
        return False
    head = _PREPOSITION.split(" ".join(words))[0].split()
    if not head:
        return False
    noun = head[-1]
    is_plural = noun in _PLURALS or (noun.endswith("s") and not noun.endswith("ss"))
    return is_plural or is_unit_word(noun) or _AT_MOST_ONE.search(before) is not None
