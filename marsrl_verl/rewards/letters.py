"""Words and sequences of letters are text: computer algebra multiplies their letters, so that EAT is TEA."""

from __future__ import annotations

import re
import string

from marsrl_verl.rewards.normal_form import elements, normal_form

_LETTERS = re.compile(r"[a-zA-Z]+")
_ANY_CASE = frozenset({"yes", "no", "true", "false", "even", "odd", "none", "dne"})
_AS_TEXT = ("\\text", "\\mathrm", "\\mbox")


def words_differ(answer: str, reference: str) -> bool:
    """Whether both are words or sequences of letters, or lists of such, and not the same ones.

    Case counts, but for the first letter of a word, and yes, no, true, false. A product of unknowns may have
    another order: two small letters, or neighbours in the alphabet, such as `xyz`.
    """
    one, other = _letters(answer), _letters(reference)
    if one is not None and other is not None:
        return not _same_letters(one, other, not any(mark in answer + reference for mark in _AS_TEXT))
    left, right = elements(answer), elements(reference)
    if left is None or right is None or len(left[1]) != len(right[1]):
        return False
    if any(_letters(part) is None for part in (*left[1], *right[1])):
        return False
    if left[0] in ("", r"\{\}"):
        return any(all(words_differ(part, one) for one in right[1]) for part in left[1])
    return any(words_differ(part, one) for part, one in zip(left[1], right[1], strict=True))


def same_word(answer: str, reference: str) -> bool:
    """Whether both are one word, whose first letter may be capital, or yes, no, … in any case."""
    one, other = _letters(answer), _letters(reference)
    return one is not None and other is not None and _same_letters(one, other, may_be_products=False)


def _letters(answer: str) -> str | None:
    text = normal_form(answer)
    text = text[1:-1] if isinstance(text, str) and text[:1] == "(" and text[-1:] == ")" else text
    return text if isinstance(text, str) and _LETTERS.fullmatch(text) else None


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
