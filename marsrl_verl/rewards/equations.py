"""Equations as answers: their members, and which of these name what the others are."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import split_unit
from marsrl_verl.rewards.normal_form import MAX_CHARACTERS, elements, name_of, normal_form

_CONSTANTS = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|cdots?|times|div|left|right|[dt]?binom|circ|degree|[lr](?:floor|ceil)|log|ln|sin|cos|tan|text|mathrm|pm|l?dots)"
    r"(?![a-zA-Z])"
)
_NAMES_ADDED = re.compile(r"[a-zA-Z](?:_\w|_\{\w+\})?(?: ?[-+] ?[a-zA-Z](?:_\w|_\{\w+\})?)+")
_NAMED = re.compile(
    r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z]).*|"
    r"\\(?:sum|prod|int|lim|max|min|sup|inf|gcd|lcm|deg|det|dim|Pr|operatorname)(?![a-zA-Z]).*|"
    r"\\(?:vec|overline|overrightarrow|hat|bar|tilde|widehat|mathbb|mathcal) ?\{[^{}]*\}.*|"
    r"\|[A-Z]{1,2}\||\[[A-Z]{3,6}\]|\\frac ?\{ ?(?:d|\\partial)[^{}]*\} ?\{ ?(?:d|\\partial)[^{}]*\}|"
    r"[a-zA-Z]{2,}(?: [a-zA-Z]+)+|.*\|_ ?\{[^{}]*\}",
    re.DOTALL,
)
_UNKNOWNS = frozenset("xyz")
"""Unknowns to solve for: `x+y = 5` names nothing, and `m+n = 25` does."""


def chain(answer: str) -> list[str] | None:
    r"""The members of an equation or a chain of equations, of which all that are without letters must be the
    answer; None where the answer is no equation. What has letters (`A = \pi r^2 = …`) names it. Inside
    brackets, as in `P(X=2)` and `\sum_{i=1}`, equality signs separate nothing."""
    if "=" not in answer or len(answer) > MAX_CHARACTERS or elements(answer) is not None:
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


def is_name(member: str) -> bool:
    """True if a side of an equation names what the other one is: `x`, `f(x)`, `m + n`, `\\sin x`, a sum over
    an index, words, `|S|`; not `2x`, `x^2`, `|x|`."""
    if not isinstance(normal_form(member), str):
        return False
    plain = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", member).strip()
    if _NAMES_ADDED.fullmatch(plain):
        parts = re.split(r" ?[-+] ?", plain)
        return len(set(parts)) == len(parts) and not {part[0] for part in parts} & _UNKNOWNS
    return bool(name_of(member)) or _NAMED.fullmatch(plain) is not None


def has_letters(member: str) -> bool:
    """True if an expression names something: it has letters that are no constants, functions or units."""
    return re.search(r"[a-zA-Z]|\\[a-zA-Z]", _CONSTANTS.sub("", split_unit(member)[0])) is not None
