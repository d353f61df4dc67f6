r"""Answers compared without what graders of mathematics overlook: units, percent signs, mixed numbers.

What `extraction.normal_form` keeps apart (10 and 10\%, 5 and 5\text{ cm}) is one answer here, as it is for
the graders that AttnRL's verifier is built from (arXiv 2509.26628, released code; the rules are our own).
"""

from __future__ import annotations

import re
from fractions import Fraction

from marsrl_verl.rewards.extraction import normal_form

_UNITS = (
    r"mm|cm|dm|km|m|meters?|metres?|centimeters?|kilometers?|miles?|inch(?:es)?|foot|feet|ft|yards?|"
    r"g|kg|mg|grams?|kilograms?|pounds?|lbs?|ounces?|oz|l|ml|liters?|litres?|gallons?|"
    r"s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|mph|"
    r"degrees?|radians?|dollars?|cents?|percent|points?|units?"
)
_POWER = r"(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?"
_AFTER_NUMBER = r"(?<=[\d})])(?:\s|~|\\[ ,;])*"
_PERCENT = re.compile(_AFTER_NUMBER + r"\\?%\s*$")
_TEXT_UNIT = re.compile(
    _AFTER_NUMBER + r"\\(?:text|mathrm|mbox)\s*\{[^{}\d]*" + _POWER + r"\s*\}" + _POWER + r"\s*$"
)
_WORD_UNIT = re.compile(_AFTER_NUMBER + rf"(?:square\s+|cubic\s+)?(?:{_UNITS})" + _POWER + r"\s*$")
_MIXED = re.compile(r"([+-]?)\s*(\d+)\s*(?:\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}|\s(\d+)\s*/\s*(\d+))")
_OPEN, _CLOSE = "([{", ")]}"


def same_bare_answer(first: str, second: str) -> bool:
    """Whether two answers are one without units, percent signs and the way to write a mixed number.

    Tuples and intervals are compared element by element, their brackets as they stand.
    """
    one, other = _bare(first), _bare(second)
    if one == other:
        return one != ""
    left, right = _elements(first), _elements(second)
    if left is None or right is None or left[0] != right[0] or len(left[1]) != len(right[1]):
        return False
    return all(same_bare_answer(a, b) for a, b in zip(left[1], right[1], strict=True))


def _bare(answer: str) -> Fraction | str:
    text = answer.strip().strip("$").strip().removesuffix(".")
    for pattern in (_PERCENT, _TEXT_UNIT, _WORD_UNIT):
        text = pattern.sub("", text)
    mixed = _MIXED.fullmatch(text.strip())
    if mixed is not None:
        sign, whole, *parts = mixed.groups()
        above, below = (int(part) for part in parts if part is not None)
        if below:
            value = int(whole) + Fraction(above, below)
            return -value if sign == "-" else value
    return normal_form(text)


def _elements(answer: str) -> tuple[str, list[str]] | None:
    """The brackets around a list and what stands between its commas; None where there is no list."""
    text = re.sub(r"\\(?:left|right)(?![a-zA-Z])", "", answer).strip().strip("$").strip()
    if len(text) < 3 or text[0] not in "([" or text[-1] not in ")]":
        return None
    parts, depth, start = [], 0, 1
    for at, mark in enumerate(text[1:-1], start=1):
        depth += (mark in _OPEN) - (mark in _CLOSE)
        if depth < 0:
            return None
        if mark == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:-1])
    return (text[0] + text[-1], parts) if len(parts) > 1 and depth == 0 else None
