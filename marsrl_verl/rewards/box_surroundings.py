r"""Reads what touches a box as part of its answer: `-\boxed{5}` is -5, `\frac{1}{\boxed{5}}` a fifth,
`\boxed{5} million` 5,000,000."""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import UNIT_LETTERS
from marsrl_verl.rewards.normal_form import MAGNITUDES

SEEN = 80
"""Characters on each side of a box that are looked at."""
_GLANCE = 16
# Nearly all boxes: behind a word or a colon, before a mark or the end.
_QUIET_BEFORE = re.compile(
    r"(?:\A|[^a-zA-Z\\])(?:is|are|get|gives|answer|have|Answer)(?: is)?:? ?\$?\Z|[a-z]:\s{0,3}\$?\Z"
)
_QUIET_BEHIND = re.compile(r"\$?(?:\Z|\.(?!\d)|,(?!\d|\s*(?:no|wait|-?\d))|\n|\*\*|</)")
_LEFT_ENDS = re.compile(
    r"\n|(?<!\\)\$|\\[(\[]|\\\\|=|[:;&]|\\(?:approx|equiv|implies|[lL]?(?:ong)?(?:left)?[rR]ightarrow|"
    r"Leftrightarrow|leadsto|iff|to|q?quad|therefore|text(?:bf|it|rm|sf)?|displaystyle|begin|hspace|"
    r"colorbox)(?![a-zA-Z])(?:\{[^{}]*\}){0,2}|[≈→⇒]|[-=]>"
)
_RIGHT_ENDS = re.compile(
    r"\n|(?<!\\)\$|\\[)\]]|\\\\|=|[:;&,]|\\(?:approx|implies|Rightarrow|text)(?![a-zA-Z])"
)
_PART = r"(?:[-+*/^_{}()\[\]|.!'\d\s]|\\[a-zA-Z]+|\\[,;!]|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))"
_PARTS_BEFORE, _PARTS_BEHIND = re.compile(_PART + r"*\Z"), re.compile(_PART + r"*")
_DENIED = re.compile(
    r"(?:(?<![a-zA-Z])(?<!why )(?:not|never|cannot be|can not be|(?:anything|all) but|"
    r"(?:other|different) (?:than|from)|except|rejects?|excludes?)|n['’]t(?: be)?)[\s$*]*(?:\\[(\[]\s*)?\Z",
    re.IGNORECASE,
)
_RELATION = re.compile(
    r"(\\(?:neq?|lt|gt|neg|lnot|not)(?![a-zA-Z])|[≠¬]|(?<=[\s$][a-zA-Z])\s*[<>]|(?<=\A[a-zA-Z])\s*[<>])\s*\Z"
)
_STYLE = (
    r"(?:text\w*|mathbf|mathrm|mathit|underline|color|textcolor|bm|boldsymbol|emph|[lL]arge|LARGE|[hH]uge|bf)"
)
_ARGUMENT = re.compile(
    rf"(?:\\(?!{_STYLE}(?![a-zA-Z]))[a-zA-Z]+\s*(?:\[[^\]]*\]\s*)?(?:\{{[^{{}}]*\}}\s*)?|[\^_])\s*\{{\s*\Z"
)
_OPERATOR = re.compile(r"(?:[\d)}]|(?<![a-zA-Z\\])[a-zA-Z]|\\[a-zA-Z]+)\s*[-+*/^]\s*\Z")
_FUNCTION = re.compile(
    r"\\(?:cdot|times|div|pm|mp|ln|log|lg|exp|sin|cos|tan|cot|sqrt|max|min|gcd|lcm|det)"
    r"(?:[_^](?:\{[^{}]*\}|\w|\\[a-zA-Z]+)){0,2}\s*\Z"
)
_QUIET_IN_MATH = re.compile(
    rf"(?:\A|[{{≤≥,.*]|\\[,;:! ]|\\(?:leq?|geq?|leqslant|geqslant|in|hfill|because|{_STYLE})(?![a-zA-Z])|"
    r"\\color\s*\{[^{}]*\}|(?<![\\a-zA-Z])[a-zA-Z]{2,})\s*\{?\s*\Z"
)
_OPENED, _CLOSED = re.compile(r"(?:\\left\s*)?[(\[]\s*\Z"), re.compile(r"\s*(?:\\right\s*)?[)\]]")
_NO_WORDS = r"(?:[^(){}\[\]$=a-zA-Z]|\\[a-zA-Z]+|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))*?"
_TUPLE = re.compile(rf"(?:\\left\s*)?(?:\(|\\\{{|\[)({_NO_WORDS})\Z")
_TUPLE_ENDS = re.compile(rf"({_NO_WORDS})(?:\\right\s*)?(?:\)|\\\}}|\])")
_DENIED_BEHIND = re.compile(
    r"[ $*]*(?:\\[)\]] ?)?(?:(?:is|are|was|would be|seems|must be)\s+"
    r"(?:(?:not|never) (?:the|right|correct|a solution|possible|valid|my)|wrong|incorrect|false|impossible|"
    r"rejected|excluded|invalid|extraneous|too)|"
    r",? ?(?:no,? )?wait|(?:is|was|ca|wo)n['’]t (?:the|right|correct|be|a)|"
    r"cannot be (?:the|right|correct|it|true)|fails)\b",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\$?(?:\\[)\]])?\s?\?")
_CHANGED_BEHIND = re.compile(
    r"[\s$*]*(?:\\[)\]]\s*)?(squared|cubed|factorial|plus|minus|times|divided by|"
    r"and a (?:half|third|quarter)|halves|thirds|tenths)\b",
    re.IGNORECASE,
)
_RELATION_BEHIND = re.compile(r"\s*(<|>|≠|\\(?:neq?|lt|gt)(?![a-zA-Z]))\s*(?=[a-zA-Z](?![a-zA-Z]))")
_GROUPED_BEHIND = re.compile(r"(?:,\d{3})+(?!\d)|:\d+")
_OR_BEFORE = re.compile(r"(-?\d+|\}|(?<![a-zA-Z])[A-Z])\$?\s+or\s+\$?\Z")
_HEDGED = re.compile(r"\b(?:between\s+\S+\s+and|one of(?:\s.{0,20},)?)\s+\$?\Z")
_CLAUSE = re.compile(r"[.;:!?](?:\s|\Z)|\b(?:but|so|hence|thus|therefore)\b")
_DENIED_SENTENCE = re.compile(
    r"(?:\b(?:wrong to (?:say|claim|think|believe|conclude)|"
    r"false that|not true|(?:I|we) doubt|could believe)|"
    r"(?:\bnot|n['’]t) (?:think|believe))\b",
    re.IGNORECASE,
)
_LISTED_BEHIND = re.compile(r"[\s$]*and\s+\$?(-?[\d.]*\d)\$?\s*(?:\.|\Z|\n)")
_COMMA_BEHIND = re.compile(r",\s*(-?\d[\d.]*(?:\s*,\s*-?\d[\d.]*)*)\s*(?:\$|\\\]|\\\))")
_CHANGED_BY_A_WORD = re.compile(
    r"(?<![a-zA-Z\\])(minus|negative|plus|times|half|half of|twice|double|triple|"
    r"(?<!no more )(?<!no less )(?<!no fewer )than|except|between|"
    r"divided by|multiplied by|(?:opposite|reciprocal|inverse|square|cube|square root|cube root|power) of)"
    r"[\s$*]*(?:\\[(\[]\s*)?\Z",
    re.IGNORECASE,
)
_OR_BEHIND = re.compile(
    r"[\s$*]*(?:\\[)\]]\s*)?(?:or|\\text\s*\{\s*or\s*\})\s+(?:\$|\\[(\[])?\s*(-?[\d.]+|\\[a-zA-Z]+)"
)
_MINUS = re.compile(r"(?:\A|[^a-zA-Z-])-\s*\Z")
_STUCK = re.compile(r"(?:\d|(?<!\d)0\.|\\left\s*\|)\Z")
_OPERATED = re.compile(
    r"\s*(?:\\(?:cdot|times|div|pm|mp)(?![a-zA-Z])|[-+/*]\s*(?=\d|\\[a-zA-Z(]|\(|[a-zA-Z](?![a-zA-Z])))|\s?\^|[²³¹⁰-⁹]|'"
)
_OPERATED_WITHOUT_SPACE = re.compile(
    r"\s*\\(?:cdot|times|div|pm|mp)(?![a-zA-Z])|[-+*]\d|/\d+(?![\d%])|\^|[²³¹⁰-⁹]"
)
_STUCK_BEHIND = re.compile(
    r"\.?\d|[a-zA-Z](?![a-zA-Z])|\\right\s*\||_(?:\d|\{)|"
    r"\s*\\(?:prime|pi|sqrt|[dtc]?frac|[dt]?binom|ln|log|exp|sin|cos|tan|infty)(?![a-zA-Z])"
)
_ONE = "|".join(name for name in MAGNITUDES if not name.endswith("s"))
_MAGNITUDE = re.compile(
    rf"(?:[\s$~*-]|\\[,;:! ])*(?:\\(?:text|mathrm)\s*\{{\s*)?({_ONE})s?(?![a-zA-Z-])", re.IGNORECASE
)


def read_with_surroundings(content: str, before: str, behind: str) -> str:
    """The answer of a box with what touches it; the content alone where nothing does.

    Args:
        content: what stands in the box.
        before: up to `SEEN` characters in front of the box's command.
        behind: up to as many behind its closing brace.
    """
    is_quiet = _QUIET_BEHIND.match(behind) and _QUIET_BEFORE.search(before[-_GLANCE:])
    if is_quiet and not _DENIED_SENTENCE.search(before):
        return content
    before, behind = before.replace("−", "-"), behind.replace("−", "-")
    in_math = (
        (before.count("$") % 2 == 1 and "$" in behind)
        or before.rfind("\\[") > before.rfind("\\]")
        or before.rfind("\\(") > before.rfind("\\)")
    )
    left = _LEFT_ENDS.split(before)[-1]
    said = _said_in_front(content, before.rpartition("\n")[2]) or _said_behind(content, behind)
    listed = said or _listed(content, left, behind, in_math)
    if listed is not None:
        return listed
    if not _is_touched(left, behind, in_math):
        return content
    if not in_math:
        behind = behind.rstrip(" .!")
    right = _RIGHT_ENDS.split(behind)[0]
    if in_math and behind[len(right) :].startswith("="):  # a blank that is filled in
        return content
    front, back = _PARTS_BEFORE.search(left), _PARTS_BEHIND.match(right)
    front_text = front.group().lstrip() if front else ""
    back_text = back.group().rstrip(" .") if back else ""
    if front_text[-1:].isdigit() and content[:1].isdigit():
        front_text += " "
    if back_text[:1].isdigit() and content[-1:].isdigit():
        back_text = f" {back_text}"
    if not front_text and not back_text:
        front_text = left.rstrip()[-1:]
    return f"{front_text}{content}{back_text}"


def _said_in_front(content: str, line: str) -> str | None:
    """The content with a denial, a relation or a word in front that makes another answer of it."""
    if _DENIED.search(line):
        return f"not {content}"
    if found := _RELATION.search(line):
        return f"{found.group(1).strip()} {content}"
    if found := _CHANGED_BY_A_WORD.search(line):
        word = found.group(1).lower()
        return f"-{content}" if word in ("minus", "negative") else f"{word} {content}"
    clause = _CLAUSE.split(line)[-1]
    if _OR_BEFORE.search(line) or _HEDGED.search(line) or _DENIED_SENTENCE.search(clause):
        return f"not {content}"
    return None


def _said_behind(content: str, behind: str) -> str | None:
    """The content with a second answer, a denial, a relation or a word behind it."""
    if found := _OR_BEHIND.match(behind):
        return f"{content} or {found.group(1)}"
    if found := _LISTED_BEHIND.match(behind):
        return f"{content}, {found.group(1)}"
    if _DENIED_BEHIND.match(behind) or _ASKED.match(behind):
        return f"not {content}"
    if found := _CHANGED_BEHIND.match(behind):
        return rf"{content}\text{{ {found.group(1).lower()}}}"
    if found := _RELATION_BEHIND.match(behind):
        return f"{found.group(1)} {content}"
    if found := _GROUPED_BEHIND.match(behind):
        return f"{content}{found.group()}"
    if (found := _MAGNITUDE.match(behind)) and not _MAGNITUDE.search(" " + content):
        return rf"{content}\text{{ {found.group(1).lower()}}}"
    return None


def _listed(content: str, left: str, behind: str, in_math: bool) -> str | None:
    """The tuple, set or list in which the box is one of the elements."""
    opened, closed = _TUPLE.search(left), _TUPLE_ENDS.match(behind)
    if opened and closed and "," in opened.group(1) + closed.group(1):
        return f"({opened.group(1)}{content}{closed.group(1)})"
    if in_math and (found := _COMMA_BEHIND.match(behind)):
        return f"{content}, {found.group(1)}"
    return None


def _is_touched(left: str, behind: str, in_math: bool) -> bool:
    """True where an operator, a function or the like stands next to the box."""
    if in_math and behind.startswith("!"):
        return True
    if behind[:1].isalpha() and behind[0] in UNIT_LETTERS:
        return False
    left, behind = _without_brackets(left, behind)
    spaced = in_math or not left.endswith(" ")  # a dash in prose has a space behind it
    operated = _OPERATED if in_math else _OPERATED_WITHOUT_SPACE
    return any((
        _ARGUMENT.search(left),
        _STUCK.search(left),
        spaced and (_OPERATOR.search(left) or _MINUS.search(left)),
        _FUNCTION.search(left),
        in_math and _QUIET_IN_MATH.search(left) is None,
        _STUCK_BEHIND.match(behind),
        operated.match(behind),
    ))  # fmt: skip


def _without_brackets(left: str, behind: str) -> tuple[str, str]:
    """Both sides of a box without brackets around the box alone."""
    while (opened := _OPENED.search(left)) and (closed := _CLOSED.match(behind)):
        left, behind = left[: opened.start()], behind[closed.end() :]
    return left, behind
