r"""What keeps an answer from being the reference whatever a computer algebra system makes of both.

math-verify drops what it does not understand: `\neq 5`, `5 \text{ is wrong}` and `10_2` are 5 and 10 to it,
`2t` loses its unknown as a unit and `1 2 3` is a sum. These checks are of text, cheap, and come before it.
"""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import bases_differ, is_unit_letter, split_unit, units_differ
from marsrl_verl.rewards.extraction import Mention
from marsrl_verl.rewards.letters import words_differ
from marsrl_verl.rewards.normal_form import MOST_CHARACTERS, apart, elements, name_of, normal_form

_QUALIFIERS = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|wrong|false|incorrect|isn't|never|none|neither|nor|if|when|unless|otherwise|except|"
    r"impossible|undefined|least|most|than|or\s+(?:more|less|fewer|so)|"
    r"maybe|perhaps|possibly|probably|guess|about|approximately|roughly|around|nearly|almost|doubtful|unsure|"
    r"ignore|plus|minus|divided|multiplied|half|halves|squared|cubed|factorial|remainder|twice|"
    r"(?:dozen|hundred|thousand|million|billion|trillion|tenth|hundredth|thousandth|millionth)s|"
    r"(?:dozen|hundred|thousand|million|billion|trillion|tenth|hundredth|thousandth|millionth))(?![a-zA-Z])",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\\(?:neq?|not(?:in)?|neg|lnot)(?![a-zA-Z])|[≠∉¬]|(?<![\d)}])!=")
_BOUND = re.compile(r"[\s$]*(?:[<>≤≥≈]|\\(?:leq?|geq?|lt|gt|approx|sim)(?![a-zA-Z]))")
_SCRIPT = re.compile(r"[_^]\s?(?:\{[^{}\s]*\}|\\[a-zA-Z]+|\w)")
_ARGUMENTS = re.compile(r"\\(?:[dtc]?frac|[dt]?binom)\s*\d\s*\d")
_NUMBERS_SIDE_BY_SIDE = re.compile(r"\d(?:\s|~|\\[ ,;:]|\\q?quad(?![a-zA-Z]))+\d")
_LAST_UNKNOWN = re.compile(
    r"(?<!\\circ)[\d}](?:([a-zA-Z])|\s*\\(text|mathrm|mathbf|mathit|mathsf|textbf|textit|mbox|rm|bf)"
    r"\s*\{\s*([a-zA-Z])\s*\})\Z"
)
_STRANGE_TEXT = re.compile(r"[\d})]\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*[^{}a-zA-Z\s./'%\\$-][^{}]*\}\s*\Z")
_POWER_OF_NO_UNIT = re.compile(r"\d\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*\}\s*\^\s*(?:\d|\{\s*\d\s*\})\Z")
_PERCENT_INSIDE = re.compile(r"%\s*[0-9a-zA-Z(]")
_CONSTANTS = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|cdots?|times|div|left|right|binom|log|ln|sin|cos|tan|text|mathrm|pm|l?dots)"
    r"(?![a-zA-Z])"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_UPRIGHT = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}")
_SYMBOL = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_JOINED = re.compile(
    r"(?:\\text\s*\{[^{}\d]*\}?)?\s*(?=[^}]*(?:\d{3}|(?<!\d)0\d))"
    r"(?:\d+(?:(?:-\d+){2,}|(?:/\d+){2,}|(?:\.\d+){2,})|\d+-0\d*|0\d+-\d+|\d{3}-\d{4})\s*\}?"
)
_SCORE = re.compile(r"(?:\\text\s*\{)?\s*\d+-\d+\s*\}?")
_NAMES_ADDED = re.compile(r"[a-zA-Z](?:_\w|_\{\w+\})?(?: ?[-+] ?[a-zA-Z](?:_\w|_\{\w+\})?)+")
_NAMED = re.compile(
    r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z]).*|"
    r"\\(?:sum|prod|int|lim|max|min|sup|inf|gcd|lcm|deg|det|dim|Pr|operatorname)(?![a-zA-Z]).*|"
    r"\\(?:vec|overline|overrightarrow|hat|bar|tilde|widehat|mathbb|mathcal) ?\{[^{}]*\}.*|"
    r"\|[A-Z]{2}\||\[[A-Z]{3,6}\]|\\frac ?\{ ?(?:d|\\partial)[^{}]*\} ?\{ ?(?:d|\\partial)[^{}]*\}|"
    r"[a-zA-Z]{2,}(?: [a-zA-Z]+)+|.*\|_ ?\{[^{}]*\}",
    re.DOTALL,
)


_DENIED = re.compile(
    r"n['’]t\b|\b(?:cannot|can not|not|never|could|might|may|would|doubt|suppose|supposing|assume|assuming|"
    r"guess|imagine|pretend|rules? out|ruled out|exclud\w+|unlikely|wrong|incorrect|false|impossible|if|"
    r"no reason|no way|no evidence|unless|whether|anything|everything|nothing)\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:either|between|or|nor|near|close|up to|over|under|above|below|beyond|exceed\w*|different|differs|"
    r"other|another|except|but|ranges?|one of|among|within|some|any)\b",
    re.IGNORECASE,
)
_OR_BEHIND = re.compile(r"[\s$*)]{0,4}\b(?:or|to|through)\b")


def doubted(found: Mention, reference: str) -> bool:
    """Whether the words around an answer without a box deny it, hedge it or ask for it, and the reference
    does not."""
    if found.is_asked:
        return True
    if _DENIED.search(reference) or _HEDGED.search(reference):
        return False
    hedged = _HEDGED.search(found.front) or _OR_BEHIND.match(found.behind)
    return bool(hedged or _DENIED.search(found.clause))


def contradiction(answer: str, reference: str) -> str | None:
    """Why the answer can't be the reference; None where nothing speaks against it."""
    if max(len(answer), len(reference)) > MOST_CHARACTERS:
        return None
    if (qualified := qualification(answer, reference)) is not None:
        return qualified
    if units_differ(answer, reference):
        return "their units differ"
    if _is_percent(answer) and not _is_percent(reference):
        return "only the answer has a percent sign"
    if bool(_PERCENT_INSIDE.search(answer)) != bool(_PERCENT_INSIDE.search(reference)):
        return "only one of them has a percent sign inside"
    if _strange_end(answer) != _strange_end(reference):
        return "what stands behind the number of one of them is no unit"
    if bases_differ(answer, reference):
        return "their bases differ"
    if _other_subscript(answer, reference):
        return "they are different quantities of one letter"
    if words_differ(answer, reference):
        return "they are words or sequences of letters, which are compared as text"
    if _numbers_apart(answer, reference):
        return "they are small numbers and differ"
    if _primes_differ(answer, reference):
        return "only one of them has a prime"
    if _other_case(answer, reference):
        return "their unknowns are capital in one of them and small in the other"
    if _JOINED.fullmatch(answer.strip()) or _SCORE.fullmatch(reference.strip()):
        return "numbers joined by marks, such as dates, are compared as text"
    if _JOINED.fullmatch(reference.strip()):
        return "numbers joined by marks, such as dates, are compared as text"
    if _side_by_side(answer) or _side_by_side(reference):
        return "numbers side by side are neither a number nor a list"
    if _kind(answer) != _kind(reference) and {_kind(answer), _kind(reference)} == {"tuple", "set"}:
        return "one is ordered and the other one is not"
    if _drops_unknown(answer, reference) or _drops_unknown(reference, answer):
        return "only one of them has the unknown"
    return None


def _other_subscript(answer: str, reference: str) -> bool:
    r"""Whether they are values of, say, `I_{max}` and `I_{min}`."""
    one, other = (
        name_of(text.split("=")[0]).replace("{", "").replace("}", "").replace("\\", "") if "=" in text else ""
        for text in (answer, reference)
    )
    return one != other and "_" in one and one.partition("_")[0] == other.partition("_")[0] != ""


def _numbers_apart(answer: str, reference: str) -> bool:
    one, other = (normal_form(split_unit(text)[0]) for text in (answer, reference))
    return not isinstance(one, str) and not isinstance(other, str) and apart(one, other)


def _primes_differ(answer: str, reference: str) -> bool:
    """Whether one has marks of a derivative or a complement that the other one lacks; those of a name count
    where both have one."""
    texts = [_UPRIGHT.sub("", text) for text in (answer, reference)]
    if ("=" in texts[0]) != ("=" in texts[1]):
        texts = [text.rpartition("=")[2] for text in texts]
    one, other = (text.count("'") + text.count(r"\prime") for text in texts)
    return one != other


def _other_case(answer: str, reference: str) -> bool:
    """Whether their unknowns are the same but for capital letters: `3R^2` and `3r^2`."""
    one, other = (set(_SYMBOL.findall(_UPRIGHT.sub("", text))) for text in (answer, reference))
    return one != other and {name.lower() for name in one} == {name.lower() for name in other}


def qualification(answer: str, reference: str) -> str | None:
    """How only one of two answers, or of the sentences that they stand in, is qualified; None: it is not."""
    if _words(answer) != _words(reference):
        return "only one of them is qualified by a word such as not, if, at least, about, thousand"
    if bool(_NEGATION.search(answer)) != bool(_NEGATION.search(reference)):
        return "only one of them is a negation"
    if bool(_BOUND.match(answer)) != bool(_BOUND.match(reference)):
        return "only one of them is a bound or an approximation"
    return None


def chain(answer: str) -> list[str] | None:
    r"""The members of an equation or a chain of equations, of which all that are without letters must be the
    answer; None where the answer is no equation. What has letters (`A = \pi r^2 = …`) names it.

    Equality signs inside brackets, as in `P(X=2)` and `\sum_{i=1}`, separate nothing.
    """
    if "=" not in answer or len(answer) > MOST_CHARACTERS or elements(answer) is not None:
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
    """Whether a side of an equation names what the other one is: `x`, `f(x)`, `m + n`, `\\sin x`, a sum over
    an index, words; not `2x`, `x^2`, `|x|`."""
    text = normal_form(member)
    if not isinstance(text, str):
        return False
    plain = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", member).strip()
    is_sum = _NAMES_ADDED.fullmatch(plain) is not None
    if is_sum:
        parts = re.split(r" ?[-+] ?", plain)
        return len(set(parts)) == len(parts)
    return bool(name_of(member)) or _NAMED.fullmatch(plain) is not None


def has_letters(member: str) -> bool:
    """Whether an expression names something: it has letters that are no constants, functions or units."""
    return re.search(r"[a-zA-Z]|\\[a-zA-Z]", _CONSTANTS.sub("", split_unit(member)[0])) is not None


def _words(answer: str) -> set[str]:
    """The words that make another answer of a number. Names of units have none; `NO` is a segment."""
    bare, unit = split_unit(answer)
    text = bare if unit and not _QUALIFIERS.search(unit) else answer
    found = (word for word in _QUALIFIERS.findall(text) if word not in ("NO", "IF"))
    return {" ".join(word.lower().split()).removesuffix("s") for word in found}


def _is_percent(answer: str) -> bool:
    found = elements(answer)
    return any(split_unit(part)[1] == "%" for part in (answer, *(found[1] if found else ())))


def _strange_end(answer: str) -> str:
    """Text behind a number that is no words: `(guess)`, and a power of what has none."""
    text = answer.strip().strip("$").strip().removesuffix(".")
    found = _STRANGE_TEXT.search(text)
    if found is None and not split_unit(text)[1]:
        found = _POWER_OF_NO_UNIT.search(text)
    return "" if found is None else " ".join(found.group()[1:].split())


def _side_by_side(answer: str) -> bool:
    # Mixed numbers and thin spaces between groups of digits are numbers, exponents and indices belong to what
    # stands before them.
    plain = _ARGUMENTS.sub(r"\\frac", _SCRIPT.sub("'", answer))
    if _NUMBERS_SIDE_BY_SIDE.search(plain) is None or not isinstance(normal_form(split_unit(answer)[0]), str):
        return False
    parts = elements(answer)
    return parts is None or any(_side_by_side(part) for part in parts[1] if len(part) < len(answer))


def _kind(answer: str) -> str:
    found = elements(answer)
    if found is None or len(found[1]) < 2:
        return ""
    return {"()": "tuple", r"\{\}": "set"}.get(found[0], "")


def _drops_unknown(first: str, second: str) -> bool:
    r"""Whether a number ends in an unknown, as `2t` and `2\mathbf{t}` do, that the other one lacks."""
    text = re.sub(r"\\(?:circ|degree)\}? ?[CF]\Z|[\s$.]+\Z", "", first.strip())
    match = _LAST_UNKNOWN.search(text)
    if match is None:
        return False
    letter = match.group(1) or match.group(3)
    if match.group(2) in ("text", "mathrm", "mbox", "rm") and is_unit_letter(letter):
        return False
    return letter not in _COMMAND.sub("", second)
