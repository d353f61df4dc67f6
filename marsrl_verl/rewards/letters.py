"""Words and sequences of letters are text: computer algebra multiplies their letters, so that EAT is TEA."""

from __future__ import annotations

import re
import string

from marsrl_verl.rewards.normal_form import elements, normal_form
from marsrl_verl.rewards.number_words import spelled

_LETTERS = re.compile(r"[a-zA-Z]+")
_CODE = re.compile(r"[A-Z](?=[A-Z0-9]*[A-Z])(?=[A-Z0-9]*[0-9])[A-Z0-9]{2,}")
"""Capital letters and digits, `A1B2`; what begins with a digit may be a product."""
_CAPITALS = re.compile(r"[A-Z0-9]+")
_SPACED = re.compile(r"[A-Z](?: [A-Z])+")
_ANGLE = re.compile(r"\\angle ?\{? ?([A-Z]) ?([A-Z]) ?([A-Z]) ?\}?")
_POWERS = re.compile(r"(?:[A-Z]|\^ ?(?:\d|\{ ?\d+ ?\}))+")
_ARTICLE = re.compile(r"\A(?:an?|the) (?=[a-z]{2})", re.IGNORECASE)
_WORDS = re.compile(r"[a-zA-Z]{3,}(?:[ -][a-zA-Z]+)*")
_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:]) ?(?!.*(?:\([A-J]\)|\b(?:or|and|not)\b))(?![a-zA-Z]\W*\Z)(.+)")
_SYMBOLS = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]")
_COMMUTES = re.compile(r"\\(?:cup|cap|land|lor|wedge|vee)(?![a-zA-Z])|[()\[\]]")
_ANY_CASE = frozenset({"yes", "no", "true", "false", "even", "odd", "none", "dne"})
_AS_TEXT = ("\\text", "\\mathrm", "\\mbox")


def words_differ(answer: str, reference: str) -> bool:
    """True if both are words or sequences of letters, or lists of such, and not the same ones. Case counts,
    except for the first letter of a word, and for yes, no, true, false. A product of unknowns may have
    another order: two small letters, or neighbours in the alphabet, such as `xyz`."""
    one, other = _letters(answer), _letters(reference)
    if one is not None and other is not None:
        return not _same_letters(one, other, not any(mark in answer + reference for mark in _AS_TEXT))
    plain = [_plain(text) for text in (answer, reference)]
    if all(_CAPITALS.fullmatch(text) for text in plain) and any(_CODE.fullmatch(text) for text in plain):
        return plain[0] != plain[1]
    if _spelt_as_powers(one, reference) or _spelt_as_powers(other, answer):
        return True
    if _angles_differ(answer, reference):
        return True
    left, right = elements(answer), elements(reference)
    if left is None or right is None or len(left[1]) != len(right[1]):
        return False
    if any(_letters(part) is None for part in (*left[1], *right[1])):
        return False
    if left[0] in ("", r"\{\}"):
        return any(all(words_differ(part, one) for one in right[1]) for part in left[1])
    return any(words_differ(part, one) for part, one in zip(left[1], right[1], strict=True))


def same_word(answer: str, reference: str) -> bool:
    """True if both are one word, with a capital first letter or not, or yes, no, … in any case. An article in
    front may be missing, several words may begin with a capital letter each, the letter of a choice may have
    its text behind it, and a number may be written in words."""
    one, other = _letters(answer), _letters(reference)
    if one is not None and other is not None and _same_letters(one, other, may_be_products=False):
        return True
    found, known = normal_form(answer), normal_form(reference)
    if not isinstance(found, str):
        return False
    if not isinstance(known, str):
        chosen = _CHOICE.fullmatch(found)
        return known == (spelled(found) if chosen is None else normal_form(chosen.group(2)))
    if (chosen := _CHOICE.fullmatch(found)) is not None and chosen.group(1) == known.strip("()"):
        return True
    if _unordered(found) is not None and _unordered(found) == _unordered(known):
        return True
    words = [_ARTICLE.sub("", text) for text in (found, known)]
    if not all(_WORDS.fullmatch(text) for text in words):
        return False
    small, known_small = ([_small(word) for word in text.split()] for text in words)
    if len(small) > 1:
        small[-1], known_small[-1] = small[-1].removesuffix("s"), known_small[-1].removesuffix("s")
    return small == known_small


def _unordered(text: str) -> tuple[str, list[str]] | None:
    r"""The operator and the sorted operands of `A \cup B`, `p \land q`; None for all else."""
    operators = set(_COMMUTES.findall(text))
    if len(operators) != 1 or not operators.isdisjoint("()[]"):
        return None
    return operators.pop(), sorted(part.strip() for part in _COMMUTES.split(text))


def _small(word: str) -> str:
    return word.lower() if len(word) > 2 and word[1:].islower() else word


def _letters(answer: str) -> str | None:
    """Letters; None for all else."""
    text = _plain(answer)
    return text if _LETTERS.fullmatch(text) else None


def _plain(answer: str) -> str:
    text = normal_form(answer)
    if not isinstance(text, str):
        return str(text)
    text = text[1:-1] if text[:1] == "(" and text[-1:] == ")" else text
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _angles_differ(answer: str, reference: str) -> bool:
    """True for the angles of two triples of points; either leg may come first."""
    one, other = (_ANGLE.fullmatch(text.strip(" $")) for text in (answer, reference))
    if one is None or other is None:
        return False
    return one.groups() not in (other.groups(), other.groups()[::-1])


def _spelt_as_powers(letters: str | None, other: str) -> bool:
    """True if one is a sequence of capital letters, the other a product of their powers: ABBA, `A^2B^2`."""
    is_sequence = letters is not None and len(letters) > 2 and letters.isupper()
    return is_sequence and "^" in other and _POWERS.fullmatch(other.strip(" $")) is not None


def _same_letters(one: str, other: str, may_be_products: bool) -> bool:
    if one == other:
        return True
    small, other_small = one.lower(), other.lower()
    if small == other_small:
        begins = len(one) > 2 and {one[1:], other[1:]} == {small[1:]}
        return small in _ANY_CASE or begins
    if not may_be_products or one != small or other != other_small or sorted(one) != sorted(other):
        return False
    if {one, other} & _ANY_CASE:
        return False
    return len(one) == 2 or "".join(sorted(set(one))) in string.ascii_lowercase


def distinct_cases(answer: str, reference: str) -> tuple[str, str]:
    """Both with other letters for capital ones whose small ones occur too: math-verify reads R as r."""
    symbols = {found for text in (answer, reference) for found in _SYMBOLS.findall(text) if len(found) == 1}
    clashing = sorted(letter for letter in symbols if letter.isupper() and letter.lower() in symbols)
    if not clashing:
        return answer, reference
    free = (letter for letter in "uvwpqszhkmn" if letter not in symbols and letter.upper() not in symbols)
    names = dict(zip(clashing, free, strict=False))

    def renamed(text: str) -> str:
        return _SYMBOLS.sub(lambda found: names.get(found.group(), found.group()), text)

    return renamed(answer), renamed(reference)
