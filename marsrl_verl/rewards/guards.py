r"""What keeps an answer from being the reference whatever a computer algebra system makes of both.

math-verify drops what it does not understand: `\neq 5`, `5 \text{ is wrong}` and `10_2` are 5 and 10 to it,
`2t` loses its unknown as a unit and `1 2 3` is a sum. These checks are of text, cheap, and come before it.
"""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import bases_differ, is_unit_letter, split_unit, units_differ
from marsrl_verl.rewards.normal_form import MOST_CHARACTERS, elements, normal_form

_QUALIFIERS = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|wrong|false|incorrect|isn't|never|none|neither|nor|if|when|unless|otherwise|except|"
    r"impossible|undefined|least|most|than|or\s+(?:more|less|fewer|so)|"
    r"maybe|perhaps|possibly|probably|guess|about|approximately|roughly|around|nearly|almost|doubtful|unsure|"
    r"ignore|plus|minus|divided|multiplied|half|halves|squared|cubed|factorial|remainder|twice|"
    r"(?:dozen|hundred|thousand|million|billion|trillion|tenth|hundredth|thousandth|millionth)s|"
    r"(?:dozen|hundred|thousand|million|billion|trillion|tenth|hundredth|thousandth|millionth))(?![a-zA-Z])",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\\(?:neq?|not(?:in)?)(?![a-zA-Z])|≠|∉|(?<![\d)}])!=")
_BOUND = re.compile(r"[\s$]*(?:[<>≤≥≈]|\\(?:leq?|geq?|lt|gt|approx|sim)(?![a-zA-Z]))")
_SCRIPT = re.compile(r"[_^]\s?(?:\{[^{}\s]*\}|\\[a-zA-Z]+|\w)")
_ARGUMENTS = re.compile(r"\\(?:[dtc]?frac|[dt]?binom)\s*\d\s*\d")
_NUMBERS_SIDE_BY_SIDE = re.compile(r"\d(?:\s|~|\\[ ,;:]|\\q?quad(?![a-zA-Z]))+\d")
_LAST_UNKNOWN = re.compile(
    r"(?<!\\circ)[\d}](?:([a-zA-Z])|\s*\\(text|mathrm|mathbf|mathit|mathsf|textbf|textit|mbox|rm|bf)"
    r"\s*\{\s*([a-zA-Z])\s*\})\Z"
)
_STRANGE_TEXT = re.compile(r"[\d})]\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*[^{}a-zA-Z\s./'%\\$-][^{}]*\}\s*\Z")
_POWER_OF_NO_UNIT = re.compile(r"\d\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}\s*\^\s*(?:\d|\{\s*\d\s*\})\Z")
_PERCENT_INSIDE = re.compile(r"%\s*[0-9a-zA-Z(]")
_CONSTANTS = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|cdots?|times|div|left|right|binom|log|ln|sin|cos|tan|text|mathrm|pm|l?dots)"
    r"(?![a-zA-Z])"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")


def contradiction(answer: str, reference: str) -> str | None:
    """Why the answer can't be the reference; None where nothing speaks against it."""
    if max(len(answer), len(reference)) > MOST_CHARACTERS:
        return None
    if (qualified := qualification(answer, reference)) is not None:
        return qualified
    if units_differ(answer, reference):
        return "their units differ"
    if _is_percent(answer) and not _is_percent(reference):
        return "only the answer has a percent sign"
    if bool(_PERCENT_INSIDE.search(answer)) != bool(_PERCENT_INSIDE.search(reference)):
        return "only one of them has a percent sign inside"
    if _strange_end(answer) != _strange_end(reference):
        return "what stands behind the number of one of them is no unit"
    if bases_differ(answer, reference):
        return "their bases differ"
    if _side_by_side(answer) or _side_by_side(reference):
        return "numbers side by side are neither a number nor a list"
    if _kind(answer) != _kind(reference) and {_kind(answer), _kind(reference)} == {"tuple", "set"}:
        return "one is ordered and the other one is not"
    if _drops_unknown(answer, reference) or _drops_unknown(reference, answer):
        return "only one of them has the unknown"
    return None


def qualification(answer: str, reference: str) -> str | None:
    """How only one of two answers, or of the sentences that they stand in, is qualified; None: it is not."""
    if _words(answer) != _words(reference):
        return "only one of them is qualified by a word such as not, if, at least, about, thousand"
    if bool(_NEGATION.search(answer)) != bool(_NEGATION.search(reference)):
        return "only one of them is a negation"
    if bool(_BOUND.match(answer)) != bool(_BOUND.match(reference)):
        return "only one of them is a bound or an approximation"
    return None


def chain(answer: str) -> list[str] | None:
    r"""The members of an equation or a chain of equations, of which all that are without letters must be the
    answer; None where the answer is no equation. What has letters (`A = \pi r^2 = …`) names it.

    Equality signs inside brackets, as in `P(X=2)` and `\sum_{i=1}`, separate nothing.
    """
    if "=" not in answer or len(answer) > MOST_CHARACTERS or elements(answer) is not None:
        return None
    members, depth, start = [], 0, 0
    for at, character in enumerate(answer):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth = max(0, depth - 1)
        elif character == "=" and depth == 0 and _separates(answer, at):
            members.append(answer[start:at].strip(" $"))
            start = at + 1
    members.append(answer[start:].strip(" $"))
    return members if len(members) > 1 and all(members) else None


def _separates(answer: str, at: int) -> bool:
    before, behind = answer[max(0, at - 2) : at], answer[at + 1 : at + 2]
    if before.endswith("!"):  # a factorial, or "not equal"
        return before[:1].isdigit() or before[:1] in (")", "}")
    return not before.endswith(("\\", "<", ">", ":", "=")) and behind != "="


def has_letters(member: str) -> bool:
    """Whether an expression names something: it has letters that are no constants, functions or units."""
    return re.search(r"[a-zA-Z]|\\[a-zA-Z]", _CONSTANTS.sub("", split_unit(member)[0])) is not None


def _words(answer: str) -> set[str]:
    """The words that make another answer of a number. Names of units have none; `NO` is a segment."""
    bare, unit = split_unit(answer)
    text = bare if unit and not _QUALIFIERS.search(unit) else answer
    found = (word for word in _QUALIFIERS.findall(text) if word not in ("NO", "IF"))
    return {" ".join(word.lower().split()).removesuffix("s") for word in found}


def _is_percent(answer: str) -> bool:
    found = elements(answer)
    return any(split_unit(part)[1] == "%" for part in (answer, *(found[1] if found else ())))


def _strange_end(answer: str) -> str:
    """Text behind a number that is no words: `(guess)`, and a power of what has none."""
    text = answer.strip().strip("$").strip().removesuffix(".")
    found = _STRANGE_TEXT.search(text)
    if found is None and not split_unit(text)[1]:
        found = _POWER_OF_NO_UNIT.search(text)
    return "" if found is None else " ".join(found.group()[1:].split())


def _side_by_side(answer: str) -> bool:
    # Mixed numbers and thin spaces between groups of digits are numbers, exponents and indices belong to what
    # stands before them.
    plain = _ARGUMENTS.sub(r"\\frac", _SCRIPT.sub("'", answer))
    if _NUMBERS_SIDE_BY_SIDE.search(plain) is None or not isinstance(normal_form(split_unit(answer)[0]), str):
        return False
    parts = elements(answer)
    return parts is None or any(_side_by_side(part) for part in parts[1] if len(part) < len(answer))


def _kind(answer: str) -> str:
    found = elements(answer)
    if found is None or len(found[1]) < 2:
        return ""
    return {"()": "tuple", r"\{\}": "set"}.get(found[0], "")


def _drops_unknown(first: str, second: str) -> bool:
    r"""Whether a number ends in an unknown, as `2t` and `2\mathbf{t}` do, that the other one lacks."""
    text = re.sub(r"\\(?:circ|degree)\}? ?[CF]\Z|[\s$.]+\Z", "", first.strip())
    match = _LAST_UNKNOWN.search(text)
    if match is None:
        return False
    letter = match.group(1) or match.group(3)
    if match.group(2) in ("text", "mathrm", "mbox", "rm") and is_unit_letter(letter):
        return False
    return letter not in _COMMAND.sub("", second)
