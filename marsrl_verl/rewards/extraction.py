"""Final answers in text: the boxes, the answer element, the last number, references."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from marsrl_verl.rewards.box_surroundings import SEEN, read_with_surroundings
from marsrl_verl.rewards.equations import has_letters, is_name
from marsrl_verl.rewards.normal_form import normal_form

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?<![\d.])\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?")
_PERCENT_BEHIND = re.compile(r"\s{0,3}\$?\s{0,3}(?:\\?%|percent\b)")
_NEAR, _WITHIN_A_LIST = 10, 70
"""Characters between two boxes of one list: fewer than this always, fewer than that with a word or mark of
lists (math-verify's distances)."""
_MAX_BOXES = 20
_LIST_MARK = re.compile(r"[,;]|\b(?:and|or)\b")
_STARTS_AFRESH = re.compile(
    r"\b(?:but|no|wait|hmm|actually|instead|rather|correction|corrected|however|finally|final|answer|so|hence|"
    r"thus|therefore|then|gives|giving|becomes|yields)\b",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"[\s$]*(?:=|≈|\\approx)[\s$]*")


@dataclass(frozen=True, slots=True)
class BoxedAnswer:
    """Content of the last box of a text, or of the boxes that make one list with it."""

    text: str
    """Several boxes are joined by `, `, or by `=` where an equality sign stands between them."""
    percent_behind: bool = False
    """True if a percent sign follows the last box."""

    @property
    def readings(self) -> tuple[str, ...]:
        r"""The answer, and with the percent sign behind its box."""
        return (self.text, self.text + r"\%") if self.percent_behind else (self.text,)


def boxed_answer(text: str) -> BoxedAnswer | None:
    r"""The final answer of a text: the last complete `\boxed{…}` or `\fbox{…}` and its list of boxes.

    Two boxes are of one list when little stands between them: fewer than 10 characters, or fewer than 70
    with a comma, a semicolon, "and" or "or". Words such as "but", "so" or "wait" begin a new answer. Boxes
    that say the same count once. So `\boxed{6} or \boxed{5}` is the list 6, 5, and neither 6 nor 5. What
    touches a single box belongs to it (`read_with_surroundings`).

    Returns:
        The answer; None when there is no complete box. Of nested boxes the inner ones count.
    """
    places = boxes(text)
    if not places:
        return None
    contents = [content.strip() for _, content in places]
    ends = [start + len(content) for start, content in places]
    joined, first = contents[-1], places[-1][0]
    normalized = [normal_form(joined)]
    for index in range(len(places) - 2, -1, -1):
        # Behind the closing brace, and before the command of the next box.
        between = text[ends[index] + 1 : places[index + 1][0]].rpartition("\\")[0]
        if not _is_one_list(between):
            break
        if normal_form(contents[index]) in normalized:
            first = places[index][0]
            continue
        normalized.append(normal_form(contents[index]))
        joined = contents[index] + ("=" if _EQUALS.fullmatch(between) else ", ") + joined
    end = ends[-1]
    if len(normalized) == 1:  # not a list of boxes
        command = text.rfind("\\", 0, first)
        joined = read_with_surroundings(
            joined, text[max(0, command - SEEN) : command], text[end + 1 : end + SEEN]
        )
    return BoxedAnswer(joined, _PERCENT_BEHIND.match(text, end + 1) is not None)


def boxes(text: str) -> list[tuple[int, str]]:
    """Returns the last complete boxes of a text, each as the position where its content begins and the
    content; of nested boxes the inner ones."""
    open_braces: list[int | None] = []
    spans: list[tuple[int, int]] = []
    first = min((at for at in (text.find("\\boxed"), text.find("\\fbox")) if at >= 0), default=len(text))
    for token in _TOKEN.finditer(text, first):
        symbol = token.group()
        if symbol == "{":
            open_braces.append(None)
        elif symbol == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and not (spans and spans[-1][0] > start):
                spans.append((start, token.start()))
        elif symbol.endswith("{") and len(symbol) > 2:
            open_braces.append(token.end())
    return [(start, text[start:end]) for start, end in spans[-_MAX_BOXES:]]


def _is_one_list(between: str) -> bool:
    if len(between) >= _WITHIN_A_LIST or _STARTS_AFRESH.search(between):
        return False
    return len(between) < _NEAR or _LIST_MARK.search(between) is not None


def tagged_answer(text: str) -> str | None:
    """Returns the content of the last complete `<answer>…</answer>`; None if there is none."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    return inside.strip() if closed and opened else None


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction in the text; None when there is none."""
    numbers: list[str] = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


_SENTENCE_ENDS = re.compile(r"\n|[.!?;](?=\s|$)|\\\]")
_SAYS_IT = re.compile(
    r"\b(?:is|are|was|be|equals?|gets?|gives?|have|has|had|makes?|so|then|thus|hence|therefore|obtains?|yields?|"
    r"totals?|answer|result|comes to|results in|left with)\b|[:=]",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    r"(?:[\s$*{}~]|\\[(\[,;:! ]|\b(?:to|exactly|just|only|simply|that|now|about|approximately)\b)*"
)
_LEFT_SIDE = re.compile(r"(?<![^\s$=,:])([^\s$=,:]{1,60}(?:\s[-+*/^]\s[^\s$=,:]{1,40}){0,4})\s{0,3}\Z")
_CLAUSE_ENDS = re.compile(r"[,:]|\b(?:so|thus|hence|therefore|then)\b", re.IGNORECASE)
_WORDS_AROUND = 80


@dataclass(frozen=True, slots=True)
class Mention:
    """The last mention of an answer in a text without a box."""

    sentence: str
    """The answer with the words around it: in front those behind a verb or a colon, so that "if x is even,
    the answer is" says nothing."""
    with_unit: str
    """The answer with the unit behind it."""
    clause: str
    """All that stands in front of it behind the last comma, "so", "thus", …"""
    front: str
    """The part of the clause behind its last verb."""
    behind: str
    """The rest of the sentence."""
    is_asked: bool
    """True if the sentence is a question."""
    is_stated: bool
    """True if nothing stands in front of it, or a verb, a colon or an equality sign behind a name."""


def mention(text: str, answer: str) -> Mention | None:
    """Finds the last mention; None where the text has the answer in other words."""
    digits = re.escape(answer.strip()) if not answer.isdigit() else r"[,\s]?".join(answer)
    places = list(re.finditer(rf"(?<![\d.]){digits}(?!\d)" if answer.isdigit() else digits, text))
    if not places:
        return None
    start, end = places[-1].span()
    before = _SENTENCE_ENDS.split(text[max(0, start - _WORDS_AROUND) : start])[-1]
    front = _SAYS_IT.split(before)[-1]
    following = text[end : end + _WORDS_AROUND]
    behind = _SENTENCE_ENDS.split(following)[0]
    unit = re.match(r"[\s$*)\\]{0,4}(%|[a-zA-Z/]{1,20}\b)", behind)
    return Mention(
        sentence=f"{front} {answer} {behind}".replace("$", " ").replace("*", " "),
        with_unit=f"{answer} {unit.group(1)}" if unit else answer,
        clause=_CLAUSE_ENDS.split(before)[-1],
        front=front,
        behind=behind,
        is_asked=following[len(behind) : len(behind) + 1] == "?",
        is_stated=_is_stated(before),
    )


def _is_stated(before: str) -> bool:
    said = list(_SAYS_IT.finditer(before))
    if not said:
        return not any(character.isalnum() for character in before)
    if _BETWEEN.fullmatch(before[said[-1].end() :]) is None:
        return False
    left = _LEFT_SIDE.search(before[: said[-1].start()])
    return said[-1].group() != "=" or left is None or is_name(left.group(1)) or not has_letters(left.group(1))


def references(ground_truth: str) -> list[str]:
    """The reference answers in a ground truth: one, or several as a JSON list of strings.

    Of a reference with boxes their contents count, read as those of a response. White space around it is
    taken off; empty references are left out.
    """
    found = [ground_truth]
    if ground_truth.lstrip().startswith("["):
        try:
            parsed = json.loads(ground_truth)
        except (ValueError, RecursionError):  # an interval or a LaTeX list, not JSON
            parsed = None
        if isinstance(parsed, list) and parsed and all(isinstance(item, str) for item in parsed):
            found = parsed
    answers = [boxed_answer(item) for item in found]
    unwrapped = [item if box is None else box.readings[-1] for item, box in zip(found, answers, strict=True)]
    return [item.strip() for item in unwrapped if item.strip()]
