"""Final answers in text: the box, the last number, references, and a normal form to compare them in."""

from __future__ import annotations

import json
import re
from fractions import Fraction

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?<![\d.])\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?")


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{…}` (or `\fbox{…}`), braces nested to any depth.

    Returns:
        The stripped content; None when there is no complete box. Of two nested boxes the inner one.
    """
    open_braces: list[int | None] = []
    best: tuple[int, int] | None = None
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark == "{":
            open_braces.append(None)
        elif mark == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (best is None or start > best[0]):
                best = (start, token.start())
        elif mark.endswith("{") and len(mark) > 2:
            open_braces.append(token.end())
    return None if best is None else text[best[0] : best[1]].strip()


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction in the text; None when there is none."""
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def references(ground_truth: str) -> list[str]:
    """The reference answers in a ground truth: one, or several as a JSON list of strings.

    Boxes around a reference are taken off, as is white space; empty references are left out.
    """
    found = [ground_truth]
    if ground_truth.lstrip().startswith("["):
        try:
            parsed = json.loads(ground_truth)
        except ValueError:  # an interval or a LaTeX list, not JSON
            parsed = None
        if isinstance(parsed, list) and parsed and all(isinstance(item, str) for item in parsed):
            found = parsed
    boxes = [last_boxed(item) for item in found]
    unwrapped = [item if box is None else box for item, box in zip(found, boxes, strict=True)]
    return [item.strip() for item in unwrapped if item.strip()]


# LaTeX that changes how an answer looks and not what it says.
_LOOKS = (
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![a-zA-Z])|\\[!,;:]"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\[$ ]|[\s$~]"), ""),
    (re.compile(r"^[a-zA-Z]=|\.$"), ""),
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_FRACTION = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{(\d+)\}|\\frac(\d)(\d)|([+-]?\d+)/(\d+))")
_MOST_DIGITS = 200


def normal_form(answer: str) -> Fraction | str:
    r"""A number where the answer is one (integer, decimal, a/b, \frac{a}{b}), else plain text.

    Spaces, dollar signs, `\left`, `\text{…}`, degree signs, a leading `x=` and a closing full stop
    are taken off, thousands separators too. Nothing is computed: 2+2 is text.
    """
    text = answer.strip()
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if len(text) <= _MOST_DIGITS:
        if _DECIMAL.fullmatch(text):
            return Fraction(text)
        match = _FRACTION.fullmatch(text)
        if match is not None:
            sign, *parts = match.groups()
            above, below = (int(part) for part in parts if part is not None)
            if below:
                return Fraction(-above if sign == "-" else above, below)
    return text


def same_answer(first: str, second: str) -> bool:
    """Whether two answers have one normal form."""
    return normal_form(first) == normal_form(second)
