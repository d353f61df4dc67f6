r"""Checks that keep an answer from being the reference whatever a computer algebra system makes of both.

math-verify drops what it does not understand: `\neq 5`, `5 \text{ is wrong}` and `10_2` are 5 and 10 to it,
`2t` loses its unknown as a unit and `1 2 3` is a sum. These checks are of text, cheap, and come before it.
"""

from __future__ import annotations

import re

from marsrl_verl.rewards.bare_answer import UNIT_LETTERS, bases_differ, split_unit, units_differ
from marsrl_verl.rewards.extraction import Mention
from marsrl_verl.rewards.letters import words_differ
from marsrl_verl.rewards.normal_form import MAX_CHARACTERS, apart, elements, name_of, normal_form
from marsrl_verl.rewards.notation import foreign

_QUALIFIERS = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|wrong|false|incorrect|isn't|never|none|neither|nor|if|when|unless|otherwise|except|"
    r"impossible|undefined|least|most|than|or\s+(?:more|less|fewer|so)|"
    r"maybe|perhaps|possibly|probably|guess|about|approximately|roughly|around|nearly|almost|doubtful|unsure|"
    r"ignore|plus|minus|divided|multiplied|half|halves|squared|cubed|factorial|remainder|twice|"
    r"(?:dozen|hundred|thousand|million|billion|trillion|tenth|hundredth|thousandth|millionth)s?)(?![a-zA-Z])",
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
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_UPRIGHT = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\s*\{[^{}]*\}")
_MARK = re.compile(r"(?<=[A-Z)}\]])\^\{?(T|c|C|H|\*|\\ast|\\dagger|\\perp|\\complement)\}?(?![a-zA-Z\d])")
_CROSS = re.compile(r"\\times\s*\\(?:mathbf|vec|hat|overrightarrow|boldsymbol)(?![a-zA-Z])")
_SYMBOL = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_JOINED = re.compile(
    r"(?:\\text\s*\{[^{}\d]*\}?)?\s*(?=[^}]*(?:\d{3}|(?<!\d)0\d))"
    r"(?:\d+(?:(?:-\d+){2,}|(?:/\d+){2,}|(?:\.\d+){2,})|\d+-0\d*|0\d+-\d+|\d{3}-\d{4})\s*\}?"
)
_COMMA = re.compile(r"(?<=[\d}])\s*(?:,(?!\d{3}(?!\d)|\\!)\s*(?=[-\d\\])|;|\s+or\s)")
_INNER_EQUALS = re.compile(r"\(\s*-?\d+\s*=|\d\s*\\(?:circ|max|min|deg|ell)(?![a-zA-Z])\s*\d")
_RATIO = re.compile(r"\d+(?:\s*:\s*\d+)+")
_SCORE = re.compile(r"(?:\\text\s*\{)?\s*\d+-\d+\s*\}?")


_DENIED = re.compile(
    r"n['’]t\b|\b(?:cannot|can not|not|never|could|might|may|would|doubt|suppose|supposing|assume|assuming|"
    r"guess|imagine|pretend|maybe|perhaps|possibly|rules? out|ruled out|exclud\w+|unlikely|wrong|"
    r"incorrect|false|impossible|if|no (?:reason|way|evidence)|unless|whether|anything|everything|nothing)\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:either|between|or|nor|near|close|up to|over|under|above|below|beyond|exceed\w*|different|differs|"
    r"other|another|except|but|ranges?|one of|among|within|some|any)\b",
    re.IGNORECASE,
)
_OR_BEHIND = re.compile(r"[\s$*)]{0,4}(?:\b(?:or|to|through|(?:times|plus|minus)(?=\s+\$?\d))\b|,\s*-?\d)")


def doubted(found: Mention, reference: str) -> bool:
    """True if the words around an answer without a box deny it, hedge it or make it a question, and the
    reference's do not."""
    if found.is_asked or not found.is_stated:
        return True
    if _DENIED.search(reference) or _HEDGED.search(reference):
        return False
    hedged = _HEDGED.search(found.front) or _OR_BEHIND.match(found.behind)
    return bool(hedged or _DENIED.search(found.clause))


def contradiction(answer: str, reference: str) -> bool:
    """True if any of these checks finds that the answer can't be the reference."""
    if max(len(answer), len(reference)) > MAX_CHARACTERS:
        return False
    return (
        qualification(answer, reference)
        or foreign(answer, reference)
        or units_differ(answer, reference)
        or _percent_differs(answer, reference)
        or _strange_end(answer) != _strange_end(reference)
        or bases_differ(answer, reference)
        or _other_subscript(answer, reference)
        or words_differ(answer, reference)
        or _is_several(answer, reference)
        or _numbers_apart(answer, reference)
        or _primes_differ(answer, reference)
        or _marks(answer) != _marks(reference)
        or _products_of_vectors_differ(answer, reference)
        or _other_case(answer, reference)
        or _joined_by_marks(answer, reference)
        or _side_by_side(answer)
        or _side_by_side(reference)
        or {_kind(answer), _kind(reference)} == {"tuple", "set"}
        or _drops_unknown(answer, reference)
        or _drops_unknown(reference, answer)
    )


def _other_subscript(answer: str, reference: str) -> bool:
    r"""True if they are values of, say, `I_{max}` and `I_{min}`."""
    one, other = (
        name_of(text.split("=")[0]).replace("{", "").replace("}", "").replace("\\", "") if "=" in text else ""
        for text in (answer, reference)
    )
    return one != other and "_" in one and one.partition("_")[0] == other.partition("_")[0] != ""


def _is_several(answer: str, reference: str) -> bool:
    """True where the reference is a number, and the answer a list or an equation inside brackets."""
    if isinstance(normal_form(split_unit(reference)[0]), str):
        return False
    plain = answer.strip(" $.,")
    return _COMMA.search(plain) is not None or _INNER_EQUALS.search(plain) is not None


def _numbers_apart(answer: str, reference: str) -> bool:
    one, other = (normal_form(split_unit(text)[0]) for text in (answer, reference))
    return not isinstance(one, str) and not isinstance(other, str) and apart(one, other)


def _primes_differ(answer: str, reference: str) -> bool:
    """True if one has marks of a derivative or a complement that the other one lacks; those of a name count
    where both have one."""
    texts = [_UPRIGHT.sub("", text) for text in (answer, reference)]
    if ("=" in texts[0]) != ("=" in texts[1]):
        texts = [text.rpartition("=")[2] for text in texts]
    one, other = (text.count("'") + text.count(r"\prime") for text in texts)
    return one != other


def _marks(answer: str) -> list[str]:
    """Superscripts of a capital letter, a matrix or a bracket that are no exponents."""
    return _MARK.findall(answer.replace(" ", ""))


def _products_of_vectors_differ(answer: str, reference: str) -> bool:
    """True if one has a cross product, which is compared as text, and the texts differ."""
    is_cross = _CROSS.search(answer) or _CROSS.search(reference)
    return is_cross is not None and normal_form(answer) != normal_form(reference)


def _joined_by_marks(answer: str, reference: str) -> bool:
    """True if numbers are joined by marks, as in dates, scores and ratios, which are compared as text."""
    if any(_JOINED.fullmatch(text.strip()) for text in (answer, reference)):
        return True
    if _SCORE.fullmatch(reference.strip()):
        return True
    return all(_RATIO.fullmatch(text.strip(" $")) for text in (answer, reference))


def _other_case(answer: str, reference: str) -> bool:
    """True if their unknowns are the same but for capital letters: `3R^2` and `3r^2`."""
    one, other = (set(_SYMBOL.findall(_UPRIGHT.sub("", text))) for text in (answer, reference))
    return one != other and {name.lower() for name in one} == {name.lower() for name in other}


def qualification(answer: str, reference: str) -> bool:
    """True if only one of two answers, or of the sentences that they stand in, is qualified: by a word such
    as not, if, at least, about, thousand, as a negation, or as a bound or an approximation."""
    return (
        _words(answer) != _words(reference)
        or bool(_NEGATION.search(answer)) != bool(_NEGATION.search(reference))
        or bool(_BOUND.match(answer)) != bool(_BOUND.match(reference))
    )


def _words(answer: str) -> set[str]:
    """The words that make another answer of a number. Names of units have none; `NO` is a segment."""
    bare, unit = split_unit(answer)
    text = bare if unit and not _QUALIFIERS.search(unit) else answer
    found = (word for word in _QUALIFIERS.findall(text) if word not in ("NO", "IF"))
    return {" ".join(word.lower().split()).removesuffix("s") for word in found}


def _percent_differs(answer: str, reference: str) -> bool:
    """True if only the answer has a percent sign, or only one of them has one inside."""
    if _is_percent(answer) and not _is_percent(reference):
        return True
    return bool(_PERCENT_INSIDE.search(answer)) != bool(_PERCENT_INSIDE.search(reference))


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
    """True if numbers stand side by side that are neither a number (mixed, or with thin spaces between groups
    of digits) nor a list; exponents and indices belong to what stands before them."""
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
    r"""True if a number ends in an unknown, as `2t` and `2\mathbf{t}` do, that the other one lacks."""
    text = re.sub(r"\\(?:circ|degree)\}? ?[CF]\Z|[\s$.]+\Z", "", first.strip())
    match = _LAST_UNKNOWN.search(text)
    if match is None:
        return False
    letter = match.group(1) or match.group(3)
    if match.group(2) in ("text", "mathrm", "mbox", "rm") and letter in UNIT_LETTERS:
        return False
    return letter not in _COMMAND.sub("", second)
