r"""What touches a box belongs to its answer: `-\boxed{5}` is -5, `\frac{1}{\boxed{5}}` a fifth, `\boxed{5}`
million are 5,000,000."""

from __future__ import annotations

import re

from marsrl_verl.rewards.normal_form import MAGNITUDES, name_of

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
    r"(?:(?<![a-zA-Z])(?:not|never|cannot be|can not be)|n['’]t(?: be)?)[\s$*]*(?:\\[(\[]\s*)?\Z",
    re.IGNORECASE,
)
_RELATION = re.compile(r"(\\(?:neq?|lt|gt|leq?|geq?|neg|lnot|not)(?![a-zA-Z])|[≠<≤≥¬]|(?<![-=])>)\s*\Z")
_TAG = re.compile(r"<[/a-zA-Z][^<>]*>\s*\Z")
_ARGUMENT = re.compile(r"(?:\\[dtc]?frac\s*(?:\{[^{}]*\}\s*)?|\\sqrt\s*(?:\[[^\]]*\])?|[\^_])\s*\{\s*\Z")
_OPERATOR = re.compile(
    r"(?:[\d)}]|(?<![a-zA-Z\\])[a-zA-Z]|\\[a-zA-Z]+)\s*[-+*/^]\s*\Z|\\(?:cdot|times|div|pm|mp|ln|log|exp|sin|cos|tan|sqrt)\s*\Z"
)
_LEFT_ENDS_BUT_EQUALS = re.compile(
    r"\n|(?<!\\)\$|\\[(\[]|\\\\|[:;&,]|\b[a-zA-Z]{2,}\b(?<!sqrt)(?<!left)(?<!right)(?<!frac)|[≈→⇒]"
)
_EQUATED = re.compile(r"\A([^=]{1,30})=\s*\Z")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])|(?<=\d)[a-zA-Z](?![a-zA-Z])")
_CHANGED = re.compile(r"\d|[|^/+-]|sqrt")
_MINUS = re.compile(r"-(\s*)\Z")
_STUCK = re.compile(r"(?:\d\.?|(?<![a-zA-Z\\])[a-zA-Z]|\\left\s*\|)\Z")
_OPERATED = re.compile(
    r"\s*(?:\\(?:cdot|times|div|pm|mp)(?![a-zA-Z])|[-+/*]\s*(?=\d|\\[a-zA-Z(]|\(|[a-zA-Z](?![a-zA-Z])))|\s?\^"
)
_STUCK_BEHIND = re.compile(
    r"\.?\d|[a-zA-Z](?![a-zA-Z])|\\right\s*\||_(?:\d|\{)|"
    r"\s*\\(?:pi|sqrt|[dtc]?frac|[dt]?binom|ln|log|exp|sin|cos|tan|infty)(?![a-zA-Z])"
)
_MAGNITUDE = re.compile(
    rf"[\s$~]*(?:\\(?:text|mathrm)\s*\{{\s*)?({'|'.join(sorted(MAGNITUDES, reverse=True))})(?![a-zA-Z])",
    re.IGNORECASE,
)


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
    relation = None if _TAG.search(line) or line.strip() == ">" else _RELATION.search(line)
    if relation is not None:
        return f"{relation.group(1)} {content}"
    if found := _EQUATED.search(_LEFT_ENDS_BUT_EQUALS.split(before)[-1]):
        side = found.group(1).strip()
        if len(set(_LETTER.findall(side))) == 1 and not name_of(side) and _CHANGED.search(side):
            return f"{side} = {content}"
    if found := _MAGNITUDE.match(behind):
        return rf"{content}\text{{ {found.group(1).lower()}}}"
    left = _LEFT_ENDS.split(before)[-1]
    at_line = not before[: len(before) - len(left)].rstrip(" ").endswith(("$", "[", "(", "="))
    touched = any(found.search(left) for found in (_ARGUMENT, _OPERATOR, _STUCK)) or _is_minus(left, at_line)
    in_math = before.count("$") % 2 == 1 or before.rfind("\\[") > before.rfind("\\]")
    touched = touched or _OPERATED.match(behind) is not None or _STUCK_BEHIND.match(behind) is not None
    if not touched and not (in_math and behind.startswith("!")):
        return content
    if not in_math:
        behind = behind.rstrip(" .!")
    right = _RIGHT_ENDS.split(behind)[0]
    front, back = _PARTS_BEFORE.search(left), _PARTS_BEHIND.match(right)
    front_text = front.group().lstrip() if front else ""
    back_text = back.group().rstrip(" .") if back else ""
    return f"{front_text}{content}{back_text}"


def _is_minus(left: str, at_line: bool) -> bool:
    """Whether the box has a sign, which a bullet and a dash between words are not."""
    found = _MINUS.search(left)
    if found is None or left[: found.start()].endswith("-"):
        return False
    return not (found.group(1) and at_line)
