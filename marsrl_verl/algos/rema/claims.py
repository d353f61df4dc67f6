r"""What a text claims that something comes to, and all values that it holds: text alone, no grader.

"The answer is 12", "it's 12", `= 12`, a box with 12 and "you end up with twelve apples" claim 12; "add 12 and
7" claims nothing, and holds 12 and 7."""

from __future__ import annotations

import re

from marsrl_verl.rewards.extraction import boxes
from marsrl_verl.rewards.normal_form import same_answer

LONGEST_TEXT = 20_000
"""Characters of a text that are looked at, from its end."""
MOST_CLAIMS = 24
"""Claims of a text that are compared, the last ones."""
MOST_VALUES = 400
"""Values of a text that are compared, the last ones."""
_LONGEST_CLAIM = 200

_NOUN = (
    "answer|result|solution|value|total|sum|product|difference|quotient|probability|area|volume|number|choice|"
    "guess|amount|count|estimate|conclusion"
)
_SAID = r"(?=(?P<said>[^\n]{1,200}))"
_NAMED = re.compile(
    rf"\b(?:{_NOUN})\b"
    r"(?:[^.:=\n]|\.(?=\d)){0,60}?(?:\b(?:is|are|was|be|equals|will\s+be|should\s+be|must\s+be|comes\s+to)\b|[:=])"
    rf"[ \t*]{{0,6}}{_SAID}",
    re.IGNORECASE,
)
_GAP = r"[ \t]{1,3}"
_REACHED = re.compile(
    # Verbs of reaching something.
    r"\b(?:(?:gets?|getting|gives?|giving|yields?|yielding|obtains?|obtaining|equals?|equalling)\b"
    rf"|(?:makes?|making)\b(?!{_GAP}(?:sure|certain)\b)"
    r"|(?:leaves?|leaving|reach(?:es|ing)?|match(?:es|ing)?|finds?|finding|produc(?:es?|ing)|becom(?:es?|ing)"
    r"|return(?:s|ing)?|totals?|totalling)\b"
    rf"|(?:end(?:s|ed|ing)?|wind(?:s|ing)?|finish(?:es|ed|ing)?){_GAP}(?:up{_GAP})?(?:with|at|on)\b"
    rf"|(?:left|leaves?{_GAP}(?:you|us)){_GAP}with\b"
    rf"|(?:comes?|coming|works?){_GAP}(?:out{_GAP})?(?:as|at|to)\b"
    rf"|(?:arriv(?:es?|ed|ing)|land(?:s|ed|ing)?){_GAP}(?:at|on)\b"
    rf"|(?:evaluates?|simplif(?:y|ies)|amounts?|reduces?|adds?{_GAP}up|sums?(?:{_GAP}up)?|sets?|equal){_GAP}to\b"
    rf"|(?:results?|resulting){_GAP}in\b|(?:so|thus|hence|therefore|namely)\b"
    # Of thinking and telling: "I think 17 is right".
    rf"|I{_GAP}(?:think|believe|guess|bet|reckon)\b|(?:expect|say|tell{_GAP}(?:them|him|her|me))\b"
    # Words of being something: "it's 17", "x should be 17".
    rf"|(?:it|that|this|which|there|x|y|z|n)(?:['’]s|{_GAP}is)\b|(?:they|these|those){_GAP}are\b"
    rf"|(?:should|must|will|would|can{_GAP}only|has{_GAP}to|have{_GAP}to|needs?{_GAP}to|ought{_GAP}to)"
    rf"{_GAP}(?:be|equal|read|say)\b"
    # Orders to say it.
    rf"|(?:output|print|submit|report|box|write(?:{_GAP}down)?|enter|put|choose|conclude(?:{_GAP}with)?"
    rf"|answer(?:{_GAP}with)?|(?:respond|reply){_GAP}with)\b)"
    rf"[ \t]{{0,3}}(?:that\b|[:,])?[ \t*]{{0,6}}"
    rf"(?:(?:exactly|precisely|just|only|simply|about|approximately|you|us|with|a{_GAP}total{_GAP}of){_GAP}){{0,2}}"
    rf"{_SAID}",
    re.IGNORECASE,
)
"""Words before what something comes to; of these only what looks like an answer is a claim."""
_REVERSED = re.compile(
    r"(?P<said>\$[^$\n]{1,100}\$|(?<!\S)[^\s$]{1,80})[ \t*]{1,6}"
    r"(?:is|are|was|(?:will|should|must)[ \t]+be)[ \t]{1,3}"
    rf"(?:the|your|our|its)[ \t]{{1,3}}(?:[a-z]{{1,12}}[ \t]{{1,3}})?(?:{_NOUN})\b",
    re.IGNORECASE,
)
_APPROVED = re.compile(
    r"(?P<said>\$[^$\n]{1,100}\$|(?<!\S)[^\s$]{1,80})[ \t*]{1,6}(?:is|are|seems|looks|sounds)[ \t]{1,3}"
    r"(?:right|correct|true|it|what|plausible|likely|best)\b",
    re.IGNORECASE,
)
_LABELLED = re.compile(
    rf"^[ \t>*#_-]{{0,8}}(?:(?:final|ans|result|total)\b[ \t:.*]{{1,6}}|"
    rf"(?:{_NOUN})\b[ \t*]{{0,3}}:[ \t*]{{0,3}})(?!\d+[:)]){_SAID}",
    re.IGNORECASE | re.MULTILINE,
)
_EQUAL = re.compile(
    r"(?:=>|->|(?<![=<>!:\\])=(?![=>])|[≡≈→⇒⟹]"
    r"|\\(?:equiv|approx|cong|simeq|to|[lL]?(?:ong)?[rR]ightarrow|implies)(?![a-zA-Z]))\s{0,6}"
)
_END = re.compile(
    r"[;!?\n]|,\s|\.(?:\s|$)|\s(?:and|so|then|but|where|because|since|which|to)\s|\\\]|\$\$"
    rf"|\s(?:as|for|in|into)\s(?:the|your|our|its|a)\s(?:[a-z]{{1,12}}\s)?(?:box|{_NOUN})\b|\s(?:in|into)\s\$?\\"
)
_PARENTHESIS = re.compile(r"\([^()\d]*\)\s*\Z")
_MARKS = " \t$*`_\"'()."
_PLAIN = re.compile(r"[\s$*`{}\\()\[\]]")
_NUMBER = r"[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[ ]?/[ ]?\d+)?%?"
_HELD = re.compile(
    rf"\b(?:has|have|had|number|there{_GAP}(?:are|is|will{_GAP}be)|altogether|in{_GAP}total|overall){_GAP}"
    rf"(?P<said>{_NUMBER}(?:[ \t-][a-zA-Z]{{2,20}}){{0,3}})[.!]?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A possession at the end of a line: "she has 17 hens now"."""
_WITH_UNIT = re.compile(rf"({_NUMBER}\$?)(?:[ \t-][a-zA-Z]{{2,20}}){{1,2}}")
_WORDED = re.compile(
    r"(?!(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|min|max)\b)[a-zA-Z'’]{2,}\s+\w|[a-zA-Z]\s+[a-zA-Z]{2}"
)
"""Begins as a sentence does, and not as a value."""

_SMALL = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15,
    "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40,
    "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_SMALL_WORD = rf"(?:{'|'.join(_SMALL)})"
_SPELLED = re.compile(
    rf"\b{_SMALL_WORD}\b(?:(?:[ -]|\sand\s)(?:{_SMALL_WORD}|hundred)\b){{0,4}}", re.IGNORECASE
)
_LIKE_AN_ANSWER = re.compile(rf"[\d\\π√∞]|(?i:\b{_SMALL_WORD}\b)")

_STEP = re.compile(
    r"^[ \t>*#_-]{0,8}(?:\(?\d{1,2}[.):](?=\s)|\(?(?:step|part)[ \t]+\d{1,2}\b)", re.IGNORECASE | re.MULTILINE
)
"""The number of a step in a list of steps."""
_ANY_NUMBER = re.compile(rf"(?<![\w.\\])(?:{_NUMBER})(?![\w]|\.\d)")
_FORMULA = re.compile(
    r"\$([^$\n]{1,100})\$|\\\(([^\n]{1,100}?)\\\)|([-+]?\\[dt]?frac\s?\{[^{}]{1,40}\}\s?\{[^{}]{1,40}\})"
)


def claims(text: str) -> list[str]:
    r"""What a text says that something comes to, in its order: contents of boxes; what follows "the answer
    is", "you get", "it's", "should be", "output" or the like, or stands before "is the answer"; and what
    follows an equality sign or an arrow; a text that is a value and nothing else.

    Every member of a chain `3 + 4 = 7 = x` behind its first sign counts. `17 apples` claims 17 too, and
    `seventeen` is 17. Numbers elsewhere are no claims.
    """
    found: list[tuple[int, str]] = []
    text = text[-LONGEST_TEXT:]
    found += [(at, claim) for at, claim in boxes(text) if len(claim) <= _LONGEST_CLAIM]
    for match in _NAMED.finditer(text):
        found.append((match.start("said"), _first_part(match["said"])))
    patterns = (_REACHED, _REVERSED, _APPROVED, _LABELLED, _HELD)
    for match in (match for pattern in patterns for match in pattern.finditer(text)):
        claim = _first_part(match["said"])
        if _LIKE_AN_ANSWER.search(claim) and (_number_in_words(claim) or not _WORDED.match(claim)):
            found.append((match.start("said"), claim))
    for match in _EQUAL.finditer(text):
        behind = text[match.end() : match.end() + _LONGEST_CLAIM]
        found.append((match.end(), _first_part(_EQUAL.split(behind)[0])))
    bare = _PARENTHESIS.sub("", text).strip(_MARKS)
    is_value = " " not in bare or _WITH_UNIT.fullmatch(bare) or _number_in_words(bare) is not None
    if is_value and _LIKE_AN_ANSWER.search(bare):  # the text is nothing else
        found.append((0, bare))
    cleaned = [claim.strip(_MARKS) for _, claim in sorted(found)]
    read = [each for claim in cleaned if claim for each in _readings(claim)]
    return list(dict.fromkeys(read))[-MOST_CLAIMS:]


def _first_part(text: str) -> str:
    """Up to where the phrase ends."""
    return _END.split(text, maxsplit=1)[0]


def _readings(claim: str) -> list[str]:
    """The claim; with words behind its number, or its number in words, also the number."""
    if (match := _WITH_UNIT.fullmatch(claim)) is not None:
        return [claim, match[1].strip("$")]
    number = _number_in_words(claim)
    return [claim] if number is None else [claim, str(number)]


def _number_in_words(text: str) -> int | None:
    """The number with which a text begins in words, where at most two more follow; None without one."""
    match = _SPELLED.match(text)
    if match is None or len(text[match.end() :].split()) > 2:
        return None
    return spelled(match[0])


def spelled(words: str) -> int | None:
    """The number below 1,000 that words say, `one hundred and five`; None where they say none."""
    total = last = 0
    for word in re.split(r"[\s-]+", words.lower()):
        if word == "and" and total >= 100:
            continue
        if word == "hundred" and 1 <= total <= 9 and last:
            total, last = 100 * total, 100
            continue
        value = _SMALL.get(word)
        if value is None or (last and not (last >= 20 and value < (10 if last < 100 else 100))):
            return None
        total, last = total + value, max(value, 1)
    return total if last else None


def values(text: str) -> list[str]:
    """Every value that a text holds, claimed or not: numbers in digits and, from eleven on, in words;
    fractions; formulas between dollar signs; and its claims. Numbers of steps in a list are none.

    `one` to `ten` are left out: they are words of every plan.
    """
    text = text[-LONGEST_TEXT:]
    unnumbered = _STEP.sub(" ", text)
    found = [(at.start(), at[0].strip("$")) for at in _ANY_NUMBER.finditer(unnumbered)]
    found += [(at.start(), next(filter(None, at.groups()))) for at in _FORMULA.finditer(unnumbered)]
    for at in _SPELLED.finditer(unnumbered):
        if (number := spelled(at[0])) is not None and number > 10:
            found.append((at.start(), str(number)))
    shown = [value.strip() for _, value in sorted(found)][-MOST_VALUES:]
    return list(dict.fromkeys([*shown, *claims(text)]))


def states(question: str, claim: str) -> bool:
    """Whether a question itself states a claim as what something is: `x = 5` in the question is no secret."""
    bare = _PLAIN.sub("", claim)
    return any(bare == _PLAIN.sub("", one) for one in claims(question))


def holds(question: str, value: str) -> bool:
    """Whether a question holds a value, in any wording that text tells to be the same."""
    return any(same_answer(one, value) for one in values(question))
