"""A normal form of answers, in which those that only look different are one, and lists compared element by
element."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from marsrl_verl.rewards.spelling import LONGEST, latex

MAX_CHARACTERS = LONGEST
"""A longer answer is compared as it stands."""
_MAX_DIGITS = 200
_MAX_UNORDERED = 24
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
    (re.compile(r"(?<=[a-zA-Z] )(\d{1,9})(?:st|nd|rd|th)(?![a-zA-Z])"), r"\1"),
    (re.compile(r"\b([Nn]o (?:real |integer |such )?(?:solution|root|value|number))s\b"), r"\1"),
)
_NO_NAME = r"(?!not\b|\\(?:not|neg|lnot|pi|log|ln|lg|exp|sqrt|frac|binom|lfloor|lceil|lvert|lVert|left)\b)"
_LABEL = re.compile(
    rf"({_NO_NAME}(?:[a-zA-Z]{{1,20}}|\\[a-zA-Z]{{1,20}}(?: [a-zA-Z]{{1,20}})?)"
    r"(?:_(?:\w{1,20}|\{[^{}=]{1,40}\}))?'{0,3} ?(?:\([^()=]{1,40}\))?) ?= ?(?!=)"
)
_PRODUCT = re.compile(
    r"(?!ans|sum|age|avg|max|min|gcd|lcm|deg|det|dim|arg|num|res|sol|sin|cos|tan|log|ln)[a-z]{2,3}"
)
"""Unknowns one behind the other, `xy`; capital letters (`AB`) name a segment, longer words what they say."""
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"([+-]?) ?(\d+\.?\d*|\.\d+)")
_FRACTION = re.compile(
    r"([+-]?) ?(?:\\frac ?\{ ?([+-]?) ?(\d+) ?\} ?\{ ?(\d+) ?\}|\\frac ?(\d) ?(\d)|(\d+) ?/ ?(\d+))"
)
_MIXED = re.compile(
    r"([+-]?) ?(\d+)(?: ?\\frac ?\{ ?(\d+) ?\} ?\{ ?(\d+) ?\}| ?\\frac ?(\d) ?(\d)| (\d+) ?/ ?(\d+))"
)
_REPEATING = re.compile(
    r"([+-]?) ?(\d{0,50})\.(\d{0,50})\\(?:overline ?\{ ?(\d{1,50}) ?\}|(?:dot|bar) ?(?:\{ ?(\d) ?\}|(\d)))"
)
_POWER_OF_TEN = r"10 ?\^ ?(?:\{ ?([+-]?\d{1,3}) ?\}|(\d))"
_SCIENTIFIC = re.compile(
    r"([+-]?) ?(?:(\d+\.?\d*|\.\d+) ?"
    rf"(?:[eE]([+-]?\d{{1,3}})|\\(?:times|cdot) ?{_POWER_OF_TEN})|{_POWER_OF_TEN})"
)
MAGNITUDES = {
    spelling: size
    for name, size in (
        ("dozen", 12), ("hundred", 100), ("thousand", 10**3), ("million", 10**6), ("billion", 10**9),
        ("trillion", 10**12),
    )
    for spelling in (name, name + "s")
}  # fmt: skip
# A space says something only between two numbers, two words, a word and a number, or a command and a word.
_IDLE_SPACE = re.compile(r"(?<!\w) | (?!\w)|(?<=\d) (?=[a-zA-Z])")


def normal_form(answer: str) -> Fraction | str:
    r"""A number where the answer is one (integer, decimal, repeating decimal, a/b, \frac{a}{b}, mixed number,
    each with a magnitude such as million), else plain text.

    Dollar and degree signs, `\left`, `\text{…}`, the label in `x = 5` and a closing full stop are taken off,
    thousands separators too; spaces where they say nothing: `2 3` and `1, 234` are no numbers. Nothing is
    computed: 2+2 is text.
    """
    text = _labelled(answer)[1]
    if len(text) <= _MAX_DIGITS:
        number = _number(text)
        if number is not None:
            return number
    return _IDLE_SPACE.sub("", text)


_RATIO, _SIX_PLACES = Fraction(1, 10**5), Fraction(6, 10**7)


def apart(one: Fraction, other: Fraction) -> bool:
    """True if two numbers differ by more than rounding to six places; those below a thousandth by more than a
    hundred-thousandth of their size: 2e-7 is not 1e-7."""
    size = max(abs(one), abs(other))
    limit = _RATIO * min(Fraction(1), size)
    return abs(one - other) > (max(limit, _SIX_PLACES) if 1000 * size >= 1 else limit)


def same_answer(first: str, second: str) -> bool:
    r"""True if two answers have one normal form, or are lists whose elements do.

    The elements of `\{…\}` and of a list without brackets may stand in any order, unless the list is inside
    another one. Labels count where both have one: `x = 5` is 5, but not `y = 5`.
    """
    return same_by(lambda one, other: normal_form(one) == normal_form(other), first, second)


def same_by(same: Callable[[str, str], bool], first: str, second: str, depth: int = 0) -> bool:
    """True if two answers are the same; those that are no lists are compared by `same`."""
    (label, one), (other_label, other) = _labelled(first), _labelled(second)
    if label and other_label and label != other_label:
        return False
    if same(first, second):
        return True
    if depth == _DEEPEST or max(len(one), len(other)) > MAX_CHARACTERS:
        return False
    if depth == 0 and (pairs := aligned(first, second)) is not None:
        return bool(pairs) and all(same_by(same, a, b, 1) for a, b in pairs)
    left, right = elements(one), elements(other)
    if left is None or right is None or len(left[1]) != len(right[1]):
        return False
    kinds = {left[0], right[0]}
    if len(kinds) > 1 and kinds != {"", r"\{\}"}:
        return False

    def equal(a: str, b: str) -> bool:
        return same_by(same, a, b, depth + 1)

    if depth == 0 and kinds <= {"", r"\{\}"}:
        return _same_in_any_order(left[1], right[1], equal)
    return all(equal(a, b) for a, b in zip(left[1], right[1], strict=True))


def elements(answer: str) -> tuple[str, list[str]] | None:
    r"""The brackets of a list (`()`, `[]`, `(]`, `[)`, `\{\}`, or none) and what stands between its commas,
    semicolons, "and" and "or"; None where there is no list. A comma between groups of three digits separates
    only where nothing else does: `1,234` is a number, `(1,234)` a pair, `1,234 and 5` has two elements."""
    text = _plain(answer)
    if len(text) > MAX_CHARACTERS or _GROUPED.fullmatch(text):
        return None
    kind = _enclosing(text)
    if kind:
        text = text[2:-2] if kind == r"\{\}" else text[1:-1]
    text = _LIST_WORD.sub(", ", text)
    if ", " in text or ";" in text:
        text = _GROUPING_COMMA.sub("", text)
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character in ",;" and depth == 0:
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
    for at, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0 and at > 1:
            return (r"\{\}" if is_set else text[0] + text[-1]) if at == len(text) - 1 else ""
    return ""


def aligned(first: str, second: str) -> list[tuple[str, str]] | None:
    """The pairs to compare where one list says which unknown is which and the other one does not, so that the
    order tells: `x = 1, y = 2` and `(1, 2)`. None for all other answers; empty where the lengths differ.
    Unknowns that are neighbours in the alphabet come in its order, others in that of their list."""
    left, right = _named(first), _named(second)
    if (left is None) == (right is None):
        return None
    found = elements(second if left is not None else first)
    if found is None or found[0] not in ("", "()") or all(_labelled(part)[0] for part in found[1]):
        return None
    names, other = dict(left or right or ()), found[1]
    if "".join(sorted(names)) in string.ascii_letters:
        names = dict(sorted(names.items()))
    if len(names) != len(other):
        return []
    pairs = zip(names.values(), other, strict=True)
    return [(one, another) if left is not None else (another, one) for one, another in pairs]


def _named(answer: str) -> list[tuple[str, str]] | None:
    """Unknowns and what they are, in `x = 1, y = 2` and `(x, y) = (1, 2)`."""
    text = _plain(answer)
    if len(text) > MAX_CHARACTERS:
        return None
    sides = text.split("=")
    if len(sides) == 2:
        unknowns, values = elements(sides[0]), elements(sides[1])
        if unknowns is None or values is None or {unknowns[0], values[0]} != {"()"}:
            return None
        if len(unknowns[1]) != len(values[1]) or not all(_NAME.fullmatch(name) for name in unknowns[1]):
            return None
        return list(zip(unknowns[1], values[1], strict=True))
    found = elements(answer)
    if found is None or found[0] not in ("", "()"):
        return None
    named = [_labelled(part) for part in found[1]]
    is_named = all(name for name, _ in named) and len({name for name, _ in named}) == len(named)
    return named if is_named else None


_NAME = re.compile(r"[a-zA-Z](?:_\w)?|\\[a-zA-Z]{1,9}")


def _same_in_any_order(left: list[str], right: list[str], equal: Callable[[str, str], bool]) -> bool:
    if len(left) > _MAX_UNORDERED:
        return False
    rest = list(right)
    for part in left:
        found = next((k for k, other in enumerate(rest) if equal(part, other)), None)
        if found is None:
            return False
        del rest[found]
    return True


_BETWEEN = re.compile(r"(.{1,60}?)(<|\\leq?|\\lt|≤) ?[a-zA-Z] ?(<|\\leq?|\\lt|≤)(?![a-zA-Z])(.{1,60})")
_ONE_SIDED = re.compile(r"[a-zA-Z] ?(<|\\leq?|\\lt|≤|>|\\geq?|\\gt|≥)(?![a-zA-Z])([^<>≤≥]{1,60})")
_MEMBER = re.compile(r"[a-zA-Z] ?\\in(?![a-zA-Z]) ?(?=[\[(])")
_OR = re.compile(r" ?(?:(?<![a-zA-Z])or(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])) ?")
_MAX_PARTS = 4
_STRICT = frozenset({"<", ">", r"\lt", r"\gt"})


def as_interval(answer: str) -> str:
    r"""`1 \le x < 3` as `[1,3)`, `x > 5` as `(5,\infty)`, several with "or" as a union, `x \in` taken off;
    any other answer as it stands."""
    text = _plain(answer) if len(answer) <= _MAX_DIGITS else ""
    if found := _MEMBER.match(text):
        return text[found.end() :]
    parts = _OR.split(text)
    if 1 < len(parts) <= _MAX_PARTS:
        intervals = [as_interval(part) for part in parts]
        changed = all(one != part for one, part in zip(intervals, parts, strict=True))
        return r" \cup ".join(intervals) if changed else answer
    if "=" in text or "," in text:
        return answer
    if match := _BETWEEN.fullmatch(text):
        low, first, second, high = match.groups()
        return f"{'(['[first not in _STRICT]}{low.strip()},{high.strip()}{')]'[second not in _STRICT]}"
    if match := _ONE_SIDED.fullmatch(text):
        sign, bound = match.group(1), match.group(2).strip()
        if sign in ("<", "≤") or sign.startswith(r"\l"):
            return rf"(-\infty,{bound}{')]'[sign not in _STRICT]}"
        return rf"{'(['[sign not in _STRICT]}{bound},\infty)"
    return answer


@lru_cache(maxsize=64)  # each rule asks for it again
def _plain(answer: str) -> str:
    text = answer.strip()
    if len(text) > MAX_CHARACTERS or (text.isascii() and text.isdigit()):
        return text
    text = latex(text)
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    return text.strip().removesuffix(".").rstrip()


def name_of(member: str) -> str:
    """A side of an equation that is a name, such as `x`, `I_{max}`, `f(x)`; "" where it is none."""
    return _labelled(f"{member.replace('=', ',')} = 0")[0]


def _labelled(answer: str) -> tuple[str, str]:
    """The name in front of the only equality sign ("" without one), and the rest."""
    text = _plain(answer)
    label = _LABEL.match(text)
    if label is None or len(text) > MAX_CHARACTERS or "=" in text[label.end() :]:
        return "", text
    name = label.group(1).replace(" ", "")
    return ("", text) if _PRODUCT.fullmatch(name) else (name, text[label.end() :])


def _number(text: str) -> Fraction | None:
    counted, _, magnitude = text.rpartition(" ")
    if magnitude in MAGNITUDES and (count := _number(counted)) is not None:
        return count * MAGNITUDES[magnitude]
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if match := _DECIMAL.fullmatch(text):
        return Fraction(match.group(1) + match.group(2))
    if match := _SCIENTIFIC.fullmatch(text):
        sign, digits, *powers = match.groups()
        value = Fraction(digits or 1) * Fraction(10) ** int(next(one for one in powers if one))
        return -value if sign == "-" else value
    if match := _FRACTION.fullmatch(text):
        sign, *rest = match.groups()
        inner, *parts = rest
        above, below = (int(part) for part in parts if part is not None)
        if below:
            return Fraction(-above if (sign == "-") != (inner == "-") else above, below)
    if match := _MIXED.fullmatch(text):
        sign, integer, *parts = match.groups()
        above, below = (int(part) for part in parts if part is not None)
        if above < below:
            value = int(integer) + Fraction(above, below)
            return -value if sign == "-" else value
    if match := _REPEATING.fullmatch(text):
        sign, integer, fixed, *repeated = match.groups()
        period = next(part for part in repeated if part)
        value = int(integer or 0) + Fraction(int(fixed or 0), 10 ** len(fixed))
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
        return -value if sign == "-" else value
    return None
