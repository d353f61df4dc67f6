r"""Claims of a text about results, and all values that it holds: by text alone, without a grader.

"The answer is 12", "it's 12", `= 12`, a box with 12 and "you end up with twelve apples" claim 12; "add 12 and
7" claims nothing, and holds 12 and 7."""

from __future__ import annotations

import re
from fractions import Fraction

from marsrl_verl.rewards.extraction import boxes
from marsrl_verl.rewards.normal_form import normal_form, same_answer
from marsrl_verl.rewards.number_words import SMALL_WORD, SPELLED, WORDED_VALUES, number_of, spelled
from marsrl_verl.rewards.spelling import latex

LONGEST_TEXT = 20_000
"""Characters of a text that are looked at, from its end."""
MAX_CLAIMS = 24
"""Claims of a text that are compared, the last ones."""
MAX_VALUES = 400
"""Values of a text that are compared, the last ones."""
_LONGEST_CLAIM = 200

_NOUN = (
    "answer|result|solution|value|total|sum|product|difference|quotient|probability|area|volume|number|choice|"
    "guess|amount|count|estimate|conclusion|remainder|mean|median|mode|average|percentage|derivative|slope|root|"
    "divisor|multiple|factor|distance|speed|cost|price|length|width|height|radius|diameter|perimeter|diagonal|"
    "integer|term|interval|option|ratio|maximum|minimum|unknown"
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
"""Words before a result; of the text after them only what looks like an answer is a claim."""
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
"""The beginning of a sentence, not of a value."""

_LIKE_AN_ANSWER = re.compile(rf"[\d\\π√∞]|(?i:\b{SMALL_WORD}\b)")

_STEP = re.compile(
    r"^[ \t>*#_-]{0,8}\(?\d{1,2}[.):](?=\s)|\b(?:step|part)[ \t]+\d{1,2}\b|(?<![\w.])\(\d{1,2}\)(?=\s+[A-Z])",
    re.IGNORECASE | re.MULTILINE,
)
"""The number of a step in a list of steps."""
_BESIDE_UNKNOWNS = re.compile(
    r"(?<!\d)\d{1,12}(?:/\d{1,12})?\s{0,3}[*/^·×]\s{0,3}(?:[a-zA-Z](?![a-zA-Z])|P\(|\\?[a-z]{3,})|"
    r"(?:(?<![a-zA-Z])[a-zA-Z]|\))\s{0,3}[-+*/^·×]\s{0,3}\d{1,12}(?:/\d{1,12})?(?![\d\s]{0,3}=)|[a-zA-Z]_\{?\d{1,12}\}?"
)
"""Numbers of a formula with unknowns."""
_THING = (
    r"(?:year|month|week|day|hour|minute|century|decade|foot|yard|mile|inch|pound|ton|dollar|dime|quarter|"
    r"nickel|penny|kilogram|kilomet(?:er|re)|met(?:er|re)|centimet(?:er|re)|lit(?:er|re)|"
    r"(?:full )?circle|(?:full )?turn|(?:right |straight )?angle|triangle|square|rectangle|cube|"
    r"quadrilateral|pentagon|hexagon|"
    r"octagon|dozen|die|deck)"
)
_FACT = re.compile(
    rf"\b\d[\d,]{{0,15}} [a-z]{{1,20}} in (?:an?|one|each|every) {_THING}\b|"
    r"\bper 100\b|"
    rf"\b(?:an?|one|each|every|1)(?: regular)? {_THING}s? "
    r"(?:has|have|is|are|equals?|contains?|measures?|is worth) "
    rf"(?:\d[\d,]{{0,15}}|{SMALL_WORD})(?: (?:equal|congruent|square|right))* [a-z]+|"
    rf"\bangles? (?:sum )?(?:of|in) (?:an?|the|any) {_THING} (?:add up to|sum to|total|is|are|of) \d+|"
    r"\b(?:divid|split)[a-z]*\b[^.;\n]{0,60}\bby \d[\d,]*(?:\.\d+)?|"
    r"\b(?:90|180|360)(?:[ -]degrees?|°)[^.\n]{0,20}\b(?:angle|sum|triangle|circle|turn)",
    re.IGNORECASE,
)
"""Well-known numbers, and those after "divided by"."""
_PERCENT = re.compile(r"(-?\d[\d,]{0,12}(?:\.\d{1,9})?)%")
_ROOTS = re.compile(
    r"(?:(?<!\d)\d{1,12}\s{0,3}[*·+/-]?\s{0,3})?(?:√\d{1,12}|\bsqrt\(\d{1,12}\)|π|\bpi\b)(?:\s{0,3}/\s{0,3}\d{1,12})?|"
    r"(?<!\d)\d{1,12} \d{1,12}/\d{1,12}|(?<!\d)\d{1,12}(?:\.\d{1,12})? (?:thousand|million)\b"
)
"""Values with a root or pi, mixed numbers, large ones with a word."""
_ANY_NUMBER = re.compile(rf"(?<![\w.\\])(?:{_NUMBER})(?![\w]|\.\d)")
_FORMULA = re.compile(
    r"\$([^$\n]{1,100})\$|\\\(([^\n]{1,100}?)\\\)|([-+]?\\[dt]?frac\s?\{[^{}]{1,40}\}\s?\{[^{}]{1,40}\})"
)


def claims(text: str) -> list[str]:
    r"""Returns the results that a text claims, in their order: contents of boxes; what follows "the answer
    is", "you get", "it's", "should be", "output" or the like, or stands before "is the answer"; what follows
    an equality sign or an arrow; and the whole text if it is a value and nothing else.

    Every member of a chain `3 + 4 = 7 = x` after its first sign counts. `17 apples` claims 17 too, and
    `seventeen` is 17. Numbers elsewhere are no claims.
    """
    text = text[-LONGEST_TEXT:]
    found = [(at, claim) for at, claim in boxes(text) if len(claim) <= _LONGEST_CLAIM]
    found += [(match.start("said"), _first_part(match["said"])) for match in _NAMED.finditer(text)]
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
    return list(dict.fromkeys(read))[-MAX_CLAIMS:]


def _first_part(text: str) -> str:
    """Returns the text up to where the phrase ends."""
    return _END.split(text, maxsplit=1)[0]


def _readings(claim: str) -> list[str]:
    """Returns the claim; with words or a percent sign after its number, or its number in words, also the
    number."""
    if (match := _WITH_UNIT.fullmatch(claim)) is not None:
        return [claim, match[1].strip("$")]
    if claim.endswith("%") and (match := _PERCENT.fullmatch(claim)) is not None:
        return [claim, match[1], str(Fraction(match[1].replace(",", "")) / 100)]
    number = _number_in_words(claim)
    return [claim] if number is None else [claim, str(number)]


def _number_in_words(text: str) -> int | None:
    """Returns the number with which a text begins in words, if at most two more follow; None without one."""
    match = SPELLED.match(text)
    if match is None or len(text[match.end() :].split()) > 2:
        return None
    return spelled(match[0])


def values(text: str) -> list[str]:
    """Returns every value that a text holds, claimed or not: numbers in digits and, from eleven on, in words;
    fractions; formulas between dollar signs; and its claims.

    Numbers of steps, of a formula with unknowns (`n(n-3)/2`) and of well-known facts (60 minutes of an hour)
    are left out. `one` to `ten` count only where a verb says what something is, since every plan has such
    words.
    """
    text = text[-LONGEST_TEXT:]
    unnumbered = _STEP.sub(_blank, text)
    formulas = [at for at in _FORMULA.finditer(unnumbered) if not _PROSE.search(at[0])]
    found = [(at.start(), next(filter(None, at.groups()))) for at in formulas]
    plain = _FORMULA.sub(_blank_formula, _FACT.sub(_blank, unnumbered))
    for at in _ANY_NUMBER.finditer(_BESIDE_UNKNOWNS.sub(_blank, plain)):
        found += [(at.start(), one) for one in _readings(at[0].strip("$"))]
    found += [(at.start(), at[0]) for at in _ROOTS.finditer(plain)]
    found += [(at.start(), number_of(at)) for at in WORDED_VALUES.finditer(unnumbered)]
    for at in SPELLED.finditer(unnumbered):
        if (number := spelled(at[0])) is not None and number > 10:
            found.append((at.start(), str(number)))
    found.sort(key=lambda one: one[0])
    shown = [value.strip() for _, value in found][-MAX_VALUES:]
    return list(dict.fromkeys([*shown, *claims(text)]))


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _blank_formula(found: re.Match[str]) -> str:
    return found[0] if _PROSE.search(found[0]) else " " * len(found[0])


def tells_in_words(text: str, question: str, answer: str) -> bool:
    """True if a text has an answer that is no number (a day, `2x+1`), and the question does not.

    Letters of choices count where they are chosen, yes and no where they are said first.
    """
    if _LETTER.fullmatch(answer):
        chosen = rf"\b(?i:option|choice|answer)\s*(?:is\s*)?\(?{answer}(?=\)|\s*(?:[.,;:]|\Z|\n))"
        return re.search(chosen, text) is not None
    if answer.lower() in ("yes", "no"):
        return re.search(rf"(?:\A|[.!?:]\s+){answer}\b\s*[,.]", text, re.IGNORECASE) is not None
    if _WORD.fullmatch(answer):
        word = re.compile(rf"\b{re.escape(answer)}\b", re.IGNORECASE)
        return word.search(text) is not None and word.search(question) is None
    if isinstance(normal_form(answer), str) and len(answer) > 2:
        whole = _anywhere(latex(answer))
        return whole.search(latex(text)) is not None and whole.search(latex(question)) is None
    return False


def _anywhere(answer: str) -> re.Pattern[str]:
    """Returns a pattern of an expression with any spaces, braces and dollar signs in it."""
    tokens = [re.escape(one) for one in _TOKENS.findall(answer) if one not in "{}$"]
    begin = r"(?<![a-zA-Z0-9])" if answer[0].isalnum() else ""
    end = r"(?![a-zA-Z0-9])" if answer[-1].isalnum() else ""
    return re.compile(begin + r"(?:[\s${}]|\\[,;:! ]|\\cdot )*".join(tokens) + end)


_LETTER, _WORD = re.compile("[A-J]"), re.compile("[a-zA-Z][a-z]{2,}")
_PROSE = re.compile(r"(?<!\\)\b[a-z]{2,} [a-z]{2,}")
"""Prose, as between the dollar signs of two amounts of money, not in a formula."""
_TOKENS = re.compile(r"(?!\\(?:left|right)(?![a-zA-Z]))(?:\\[a-zA-Z]+|[a-zA-Z]|\d+|[^\s\\])")


def states(question: str, claim: str) -> bool:
    """True if a question itself claims the same result: `x = 5` in the question is no secret."""
    bare = _PLAIN.sub("", claim)
    return any(bare == _PLAIN.sub("", one) for one in claims(question))


def holds(question: str, value: str) -> bool:
    """True if a question holds a value, in any wording that is equal by text."""
    return any(same_answer(one, value) for one in values(question))
