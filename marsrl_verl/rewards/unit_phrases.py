"""Words behind a number that count something, told from those that make another answer of it."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import is_unit_word
from marsrl_verl.rewards.normal_form import MAGNITUDES

_VERBS_AND_THE_LIKE = """
    is was has does fails works equals exceeds lies misses differs needs gives makes becomes goes says seems
    holds satisfies contradicts violates plus minus always perhaps sometimes besides unless thus this its
    his hers yes contains appears looks means remains stays solves results
"""
"""They end in s and are no nouns in the plural."""
_OTHER_ANSWER = """
    not no cannot can could should would might may must never be been being are were isn't doesn't ain't
    excluded excluding exclude unlikely negative negated wrong false incorrect invalid impossible undefined
    root power powers or if when except than but nor neither either maybe perhaps possibly probably fake
    rejected denied mistaken contradiction opposite inverse reciprocal squared cubed doubled halved tripled
    minus plus approximately about roughly almost nearly around below above under over beyond least most
    only mod modulo factorial th nd rd st ago ish point halves thirds fourths fifths sixths sevenths eighths
    ninths tenths hundredths thousandths millionths any other everything anything else nope nah oops
    error mistake typo joke placeholder bad unknown unsure none zero twice
"""
"""They deny the number, doubt it or make another one of it."""
_NO_PLURALS = frozenset(_VERBS_AND_THE_LIKE.split())
_NO_UNITS = frozenset(_OTHER_ANSWER.split()) | _NO_PLURALS | MAGNITUDES.keys()
_PLURALS = frozenset(
    {"people", "men", "women", "children", "teeth", "mice", "geese", "sheep", "fish", "cattle", "dice"}
)
_TRAILING = frozenset(
    {"total", "altogether", "each", "left", "remaining", "overall", "possible", "all", "over"}
)
_NO_NOUN = re.compile(r".*(?:ed|ly|ive|ble|ful|ous|less|n['’]t)\Z")
_AT_MOST_ONE = re.compile(r"(?:(?<![\d.,}])1|(?<!\d)0?\.\d+|\}|(?<!\d)\d/\d+)[\s$~]*\Z")


def is_unit_phrase(words: list[str], before: str, behind: str) -> bool:
    """True for words behind a number that count something: `cannot be` and `excluded` count nothing.

    Known units do, and nouns in the plural with what is said of them (red apples, inches taller). At the end
    of an answer any one or two words do that are no adverb, adjective or participle by their ending (pizza),
    and behind 1 and what is less any words.

    Args:
        before: what stands in front of them.
        behind: what stands behind them.
    """
    if not _says_more(before):
        return False
    words = [word.lower() for word in words]
    while len(words) > 1 and words[-1] in _TRAILING:
        words = words[:-1]
    if words[-1:] == ["in"]:  # in total, in all
        words = words[:-1]
    if not words or words == ["left"] or all(is_unit_word(word) for word in words):
        return True
    if not _NO_UNITS.isdisjoint(words):
        return False
    if any(
        is_unit_word(word) or word in _PLURALS or word.endswith("s") > word.endswith("ss") for word in words
    ):
        return words != ["times"] or not _says_more(behind)
    if _says_more(behind):
        return False
    if _AT_MOST_ONE.search(before) is not None:
        return True
    return len(words) <= 2 and not any(_NO_NOUN.fullmatch(word) for word in words)


def _says_more(behind: str) -> bool:
    return any(character.isalnum() for character in behind)
