"""A normal form of answers, in which those that only look different are one, and lists compared element by
element."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

MOST_CHARACTERS = 2000
"""A longer answer is compared as it stands."""
_MOST_DIGITS = 200
_MOST_UNORDERED = 24
_DEEPEST = 8

# LaTeX that changes how an answer looks and not what it says.
_LOOKS = (
    (re.compile(r"\\(?:left|right|displaystyle|bigl|bigr)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|textit|mbox|operatorname)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])|°"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\?\$"), ""),
    # Commas and thin spaces between groups of three digits.
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|,\\!|\{,\}\\!|\\!)(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\(?:quad|qquad)(?![a-zA-Z])|(?<!\\)\\[,;: ]|~|\s"), " "),
    (re.compile(r"  +"), " "),
)
_LABEL = re.compile(
    r"((?!not\b|\\(?:not|pi)\b)(?:[a-zA-Z]{1,20}|\\[a-zA-Z]{1,20}(?: [a-zA-Z]{1,20})?)"
    r"(?:_(?:\w{1,20}|\{[^{}=]{1,40}\}))?'{0,3} ?(?:\([^()=]{1,40}\))?) ?= ?(?!=)"
)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"([+-]?) ?(\d+\.?\d*|\.\d+)")
_FRACTION = re.compile(
    r"([+-]?) ?(?:\\frac ?\{ ?([+-]?) ?(\d+) ?\} ?\{ ?(\d+) ?\}|\\frac ?(\d) ?(\d)|(\d+) ?/ ?(\d+))"
)
_MIXED = re.compile(
    r"([+-]?) ?(\d+)(?: ?\\frac ?\{ ?(\d+) ?\} ?\{ ?(\d+) ?\}| ?\\frac ?(\d) ?(\d)| (\d+) ?/ ?(\d+))"
)
# A space says something only between two numbers, two words, a word and a number, or a command and a word.
_IDLE_SPACE = re.compile(r"(?<!\w) | (?!\w)|(?<=\d) (?=[a-zA-Z])")


def normal_form(answer: str) -> Fraction | str:
    r"""A number where the answer is one (integer, decimal, a/b, \frac{a}{b}, mixed number), else plain text.

    Dollar and degree signs, `\left`, `\text{…}`, the label in `x = 5` and a closing full stop are taken off,
    thousands separators too; spaces where they say nothing: `2 3` and `1, 234` are no numbers. Nothing is
    computed: 2+2 is text.
    """
    text = _labelled(answer)[1]
    if len(text) <= _MOST_DIGITS:
        number = _number(text)
        if number is not None:
            return number
    return _IDLE_SPACE.sub("", text)


def same_answer(first: str, second: str) -> bool:
    r"""Whether two answers have one normal form, or are lists whose elements do.

    The elements of `\{…\}` and of a list without brackets may stand in any order, unless the list is inside
    another one. Labels count where both have one: `x = 5` is 5, but not `y = 5`.
    """
    return same_by(lambda one, other: normal_form(one) == normal_form(other), first, second)


def same_by(same: Callable[[str, str], bool], first: str, second: str, depth: int = 0) -> bool:
    """Whether two answers are the same, those that are no lists by `same`."""
    (label, one), (other_label, other) = _labelled(first), _labelled(second)
    if label and other_label and label != other_label:
        return False
    if same(first, second):
        return True
    if depth == _DEEPEST or max(len(one), len(other)) > MOST_CHARACTERS:
        return False
    left, right = elements(one), elements(other)
    if left is None or right is None or len(left[1]) != len(right[1]):
        return False
    kinds = {left[0], right[0]}
    if len(kinds) > 1 and kinds != {"", r"\{\}"}:
        return False

    def equal(a: str, b: str) -> bool:
        return same_by(same, a, b, depth + 1)

    if depth == 0 and kinds <= {"", r"\{\}"} and not _named_apart(left[1], right[1]):
        return _same_in_any_order(left[1], right[1], equal)
    return all(equal(a, b) for a, b in zip(left[1], right[1], strict=True))


def elements(answer: str) -> tuple[str, list[str]] | None:
    r"""The brackets of a list (`()`, `[]`, `(]`, `[)`, `\{\}`, or none) and what stands between its commas.

    None where there is no list. Semicolons, "and" and "or" separate as commas do. A comma between groups of
    three digits separates only where nothing else does: `1,234` is a number and `(1,234)` a pair, but `1,234
    and 5` has two elements.
    """
    text = _plain(answer)
    if len(text) > MOST_CHARACTERS or _GROUPED.fullmatch(text):
        return None
    kind = _enclosing(text)
    if kind:
        text = text[2:-2] if kind == r"\{\}" else text[1:-1]
    text = _LIST_WORD.sub(", ", text)
    if ", " in text or ";" in text:
        text = _GROUPING_COMMA.sub("", text)
    parts, depth, start = [], 0, 0
    for at, mark in enumerate(text):
        depth += (mark in _OPEN) - (mark in _CLOSE)
        if mark in ",;" and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    if not all(parts):
        return None
    return (kind, parts) if len(parts) > 1 or kind == r"\{\}" else None


_OPEN, _CLOSE = "([{", ")]}"
_LIST_WORD = re.compile(r",? ?(?<![a-zA-Z])(?:and|or)(?![a-zA-Z]) ?")
_GROUPING_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def _enclosing(text: str) -> str:
    """The brackets that are opened with the first character and closed with the last one; "" without."""
    is_set = text.startswith(r"\{") and text.endswith(r"\}")
    if not is_set and (text[:1] not in ("(", "[") or text[-1:] not in (")", "]")):
        return ""
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark in _OPEN) - (mark in _CLOSE)
        if depth == 0 and at > 1:
            return (r"\{\}" if is_set else text[0] + text[-1]) if at == len(text) - 1 else ""
    return ""


def _named_apart(left: list[str], right: list[str]) -> bool:
    """Whether one list says which unknown is which and the other one does not, so that the order tells."""
    names = [{_labelled(part)[0] for part in side} for side in (left, right)]
    return any(len(one) > 1 and other == {""} for one, other in (names, names[::-1]))


def _same_in_any_order(left: list[str], right: list[str], equal: Callable[[str, str], bool]) -> bool:
    if len(left) > _MOST_UNORDERED:
        return False
    rest = list(right)
    for part in left:
        found = next((k for k, other in enumerate(rest) if equal(part, other)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _plain(answer: str) -> str:
    text = answer.strip()
    if len(text) > MOST_CHARACTERS:
        return text
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    return text.strip().removesuffix(".").rstrip()


def _labelled(answer: str) -> tuple[str, str]:
    """The name in front of the only equality sign ("" without one), and the rest."""
    text = _plain(answer)
    label = _LABEL.match(text)
    if label is None or len(text) > MOST_CHARACTERS or "=" in text[label.end() :]:
        return "", text
    return label.group(1).replace(" ", ""), text[label.end() :]


def _number(text: str) -> Fraction | None:
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if match := _DECIMAL.fullmatch(text):
        return Fraction(match.group(1) + match.group(2))
    if match := _FRACTION.fullmatch(text):
        sign, *rest = match.groups()
        inner, *parts = rest
        above, below = (int(part) for part in parts if part is not None)
        if below:
            return Fraction(-above if (sign == "-") != (inner == "-") else above, below)
    if match := _MIXED.fullmatch(text):
        sign, whole, *parts = match.groups()
        above, below = (int(part) for part in parts if part is not None)
        if above < below:
            value = int(whole) + Fraction(above, below)
            return -value if sign == "-" else value
    return None
