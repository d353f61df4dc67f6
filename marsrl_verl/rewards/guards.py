r"""What keeps an answer from being the reference whatever a computer algebra system makes of both.

math-verify drops what it does not understand: `\neq 5`, `5 \text{ is wrong}` and `10_2` are 5 and 10 to it,
`2t` loses its unknown as a unit and `1 2 3` is a sum. These checks are of text, cheap, and come before it.
"""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import bases_differ, split_unit, units_differ
from marsrl_verl.rewards.normal_form import MOST_CHARACTERS, elements, normal_form

_QUALIFIERS = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|wrong|false|incorrect|isn't|never|none|neither|nor|if|when|unless|otherwise|except|"
    r"impossible|undefined|least|most|than)(?![a-zA-Z])",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\\(?:neq?|not(?:in)?)(?![a-zA-Z])|≠|∉|!=")
_BOUND = re.compile(r"[\s$]*(?:[<>≤≥]|\\(?:leq?|geq?|lt|gt)(?![a-zA-Z]))")
_NUMBERS_SIDE_BY_SIDE = re.compile(r"\d(?:\s|~|\\[ ,;:]|\\q?quad(?![a-zA-Z]))+\d")
_LAST_UNKNOWN = re.compile(r"(?<!\\circ)[\d}]([a-zA-Z])\Z")
_EQUALS = re.compile(r"(?<![\\<>!:=])=(?!=)")
_CONSTANTS = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|cdots?|times|div|left|right|binom|log|ln|sin|cos|tan|text|mathrm|pm|l?dots)"
    r"(?![a-zA-Z])"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")


def contradiction(answer: str, reference: str) -> str | None:
    """Why the answer can't be the reference; None where nothing speaks against it."""
    if max(len(answer), len(reference)) > MOST_CHARACTERS:
        return None
    if _qualifiers(answer) != _qualifiers(reference):
        return "only one of them is qualified by a word such as not, if, at least"
    if bool(_NEGATION.search(answer)) != bool(_NEGATION.search(reference)):
        return "only one of them is a negation"
    if bool(_BOUND.match(answer)) != bool(_BOUND.match(reference)):
        return "only one of them is a bound"
    if units_differ(answer, reference):
        return "their units differ"
    if bases_differ(answer, reference):
        return "their bases differ"
    if _side_by_side(answer) or _side_by_side(reference):
        return "numbers side by side are neither a number nor a list"
    if _kind(answer) != _kind(reference) and {_kind(answer), _kind(reference)} == {"tuple", "set"}:
        return "one is ordered and the other one is not"
    if _drops_unknown(answer, reference) or _drops_unknown(reference, answer):
        return "only one of them has the unknown"
    return None


def chain(answer: str) -> list[str] | None:
    r"""The members of an equation or a chain of equations, of which all that are without letters must be the
    answer; None where the answer is no equation. What has letters (`A = \pi r^2 = …`) names it."""
    if "=" not in answer or len(answer) > MOST_CHARACTERS or elements(answer) is not None:
        return None
    members = [part.strip(" $") for part in _EQUALS.split(answer)]
    return members if len(members) > 1 and all(members) else None


def has_letters(member: str) -> bool:
    """Whether an expression names something: it has letters that are no constants, functions or units."""
    return re.search(r"[a-zA-Z]|\\[a-zA-Z]", _CONSTANTS.sub("", split_unit(member)[0])) is not None


def _qualifiers(answer: str) -> set[str]:
    return {word.lower() for word in _QUALIFIERS.findall(answer)}


def _side_by_side(answer: str) -> bool:
    # Mixed numbers and thin spaces between groups of digits are numbers.
    if _NUMBERS_SIDE_BY_SIDE.search(answer) is None or not isinstance(
        normal_form(split_unit(answer)[0]), str
    ):
        return False
    parts = elements(answer)
    return parts is None or any(_side_by_side(part) for part in parts[1] if len(part) < len(answer))


def _kind(answer: str) -> str:
    found = elements(answer)
    if found is None or len(found[1]) < 2:
        return ""
    return {"()": "tuple", r"\{\}": "set"}.get(found[0], "")


def _drops_unknown(first: str, second: str) -> bool:
    """Whether a number ends in an unknown, as `2t` does, that the other answer does not have."""
    text = re.sub(r"\\(?:circ|degree)\}? ?[CF]\Z|[\s$.]+\Z", "", first.strip())
    match = _LAST_UNKNOWN.search(text)
    if match is None:
        return False
    return match.group(1) not in _COMMAND.sub("", second)
