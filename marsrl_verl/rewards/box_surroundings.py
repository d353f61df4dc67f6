r"""What touches a box belongs to its answer: `-\boxed{5}` is -5, `\frac{1}{\boxed{5}}` a fifth, `\boxed{5}`
million are 5,000,000."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import is_unit_letter
from marsrl_verl.rewards.normal_form import MAGNITUDES

SEEN = 80
"""Characters on each side of a box that are looked at."""
_GLANCE = 16
# Nearly all boxes: behind a word or a colon, before a mark or the end.
_QUIET_BEFORE = re.compile(
    r"(?:\A|[^a-zA-Z\\])(?:is|are|get|gives|answer|have|Answer)(?: is)?:? ?\$?\Z|[a-z]:\s{0,3}\$?\Z"
)
_QUIET_BEHIND = re.compile(r"\$?(?:\Z|[.,](?!\d)|\n|\*\*|</)")
_LEFT_ENDS = re.compile(
    r"\n|(?<!\\)\$|\\[(\[]|\\\\|=|[:;&]|\\(?:approx|implies|Rightarrow|iff|to|q?quad|therefore|text|displaystyle)"
    r"(?![a-zA-Z])(?:\{[^{}]*\})?|[≈→⇒]|[-=]>"
)
_RIGHT_ENDS = re.compile(
    r"\n|(?<!\\)\$|\\[)\]]|\\\\|=|[:;&,]|\\(?:approx|implies|Rightarrow|text)(?![a-zA-Z])"
)
_PART = r"(?:[-+*/^_{}()|.!\d\s]|\\[a-zA-Z]+|\\[,;!]|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))"
_PARTS_BEFORE, _PARTS_BEHIND = re.compile(_PART + r"*\Z"), re.compile(_PART + r"*")
_DENIED = re.compile(
    r"(?:(?<![a-zA-Z])(?<!why )(?:not|never|cannot be|can not be)|n['’]t(?: be)?)[\s$*]*(?:\\[(\[]\s*)?\Z",
    re.IGNORECASE,
)
_RELATION = re.compile(
    r"(\\(?:neq?|lt|gt|neg|lnot|not)(?![a-zA-Z])|[≠¬]|(?<=[\s$][a-zA-Z])\s*[<>]|(?<=\A[a-zA-Z])\s*[<>])\s*\Z"
)
_ARGUMENT = re.compile(r"(?:\\[dtc]?frac\s*(?:\{[^{}]*\}\s*)?|\\sqrt\s*(?:\[[^\]]*\])?|[\^_])\s*\{\s*\Z")
_OPERATOR = re.compile(r"(?:[\d)}]|(?<![a-zA-Z\\])[a-zA-Z]|\\[a-zA-Z]+)\s*[-+*/^]\s*\Z")
_FUNCTION = re.compile(r"\\(?:cdot|times|div|pm|mp|ln|log|exp|sin|cos|tan|sqrt)\s*\Z")
_MINUS = re.compile(r"(?:\A|[^a-zA-Z-])-\s*\Z")
_STUCK = re.compile(r"(?:\d|(?<!\d)0\.|\\left\s*\|)\Z")
_OPERATED = re.compile(
    r"\s*(?:\\(?:cdot|times|div|pm|mp)(?![a-zA-Z])|[-+/*]\s*(?=\d|\\[a-zA-Z(]|\(|[a-zA-Z](?![a-zA-Z])))|\s?\^"
)
_OPERATED_WITHOUT_SPACE = re.compile(r"\s*\\(?:cdot|times|div|pm|mp)(?![a-zA-Z])|[-+*]\d|/\d+(?![\d%])|\^")
_STUCK_BEHIND = re.compile(
    r"\.?\d|[a-zA-Z](?![a-zA-Z])|\\right\s*\||_(?:\d|\{)|"
    r"\s*\\(?:pi|sqrt|[dtc]?frac|[dt]?binom|ln|log|exp|sin|cos|tan|infty)(?![a-zA-Z])"
)
_ONE = "|".join(name for name in MAGNITUDES if not name.endswith("s"))
_MAGNITUDE = re.compile(rf"[\s$~]*(?:\\(?:text|mathrm)\s*\{{\s*)?({_ONE})(?![a-zA-Z-])", re.IGNORECASE)


def read_with_surroundings(content: str, before: str, behind: str) -> str:
    """The answer of a box with what touches it; the content alone where nothing does.

    Args:
        content: what stands in the box.
        before: up to `SEEN` characters in front of the box's command.
        behind: up to as many behind its closing brace.
    """
    if _QUIET_BEHIND.match(behind) and _QUIET_BEFORE.search(before[-_GLANCE:]):
        return content
    line = before.rpartition("\n")[2]
    if _DENIED.search(line):
        return f"not {content}"
    relation = _RELATION.search(line)
    if relation is not None:
        return f"{relation.group(1).strip()} {content}"
    if (found := _MAGNITUDE.match(behind)) and not _MAGNITUDE.search(" " + content):
        return rf"{content}\text{{ {found.group(1).lower()}}}"
    in_math = before.count("$") % 2 == 1 and "$" in behind
    in_math = (
        in_math or before.rfind("\\[") > before.rfind("\\]") or before.rfind("\\(") > before.rfind("\\)")
    )
    left = _LEFT_ENDS.split(before)[-1]
    spaced = in_math or not left.endswith(" ")  # a dash in prose has a space behind it
    touched = (
        _ARGUMENT.search(left)
        or _STUCK.search(left)
        or (spaced and (_OPERATOR.search(left) or _MINUS.search(left)))
    )
    touched = touched or _FUNCTION.search(left) or _STUCK_BEHIND.match(behind)
    touched = touched or (_OPERATED if in_math else _OPERATED_WITHOUT_SPACE).match(behind)
    if touched and behind[:1].isalpha() and is_unit_letter(behind[0]):
        touched = None
    if not touched and not (in_math and behind.startswith("!")):
        return content
    if not in_math:
        behind = behind.rstrip(" .!")
    right = _RIGHT_ENDS.split(behind)[0]
    front, back = _PARTS_BEFORE.search(left), _PARTS_BEHIND.match(right)
    if in_math and behind[len(right) :].startswith("="):  # a blank that is filled in
        return content
    front_text = front.group().lstrip() if front else ""
    back_text = back.group().rstrip(" .") if back else ""
    return f"{front_text}{content}{back_text}"
