r"""Answers compared without what graders of mathematics overlook: units, percent signs, a number's base.

What `normal_form` keeps apart (10 and 10\%, 5 and 5\text{ cm}) is one answer here, as it is for the graders
that AttnRL's verifier is built from (arXiv 2509.26628, released code; the rules are our own). A unit may be
left out, but two units that differ make two answers; nothing is converted.
"""

from __future__ import annotations

import re

from marsrl_verl.rewards.normal_form import MOST_CHARACTERS, normal_form, same_by

_NAMES = (
    "mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, km kilometer kilometre, "
    "m meter metre, mi mile, in inch inches, ft foot feet, yd yard, mg milligram, kg kilogram, g gram, "
    "t ton tonne, lb pound, oz ounce, ml milliliter millilitre, l liter litre, gal gallon, s sec second, "
    "min minute, h hr hour, day, week, month, year yr, mph, km/h kmh kph, m/s, degree deg, rad radian, "
    "dollar usd, cent, euro, percent pct %, am a.m, pm p.m"
)
_UNITS = {
    spelling: group.split()[0]
    for group in _NAMES.split(", ")
    for name in group.split()
    for spelling in (name, name + "s")
}
_WITHOUT_SIZE = frozenset({"unit", "units", "point", "points"})
_PLAIN_LETTER_UNITS = frozenset("mgslht")
"""Units of one letter, which right behind a number may be unknowns: `5 m` has a unit, `5m` has none."""
_DIMENSION = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_GROUP = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s{0,9}\{\s*([^{}\d]*?)\s*\}\Z")
_POWER = re.compile(r"\s{0,9}(?:\^\s{0,9}(?:(\d)|\{\s{0,9}(\d)\s{0,9}\})|([²³]))\s{0,9}\Z")
_SPACE = re.compile(r"(?:\s|~|\\[ ,;:!])+\Z")
_BASE = re.compile(r"([0-9a-zA-Z]{1,200})_(?:(\d)|\{ ?(\d{1,2}) ?\})")
_LONGEST_UNIT = 60


def same_bare_answer(first: str, second: str) -> bool:
    """Whether two answers are one without units, percent signs and bases.

    Lists are compared element by element, their brackets as they stand.
    """
    return same_by(_same_leaf, first, second)


def units_differ(first: str, second: str) -> bool:
    """Whether two answers have units, and those are not one: cm and m, minutes and hours, a.m. and p.m."""
    one, other = split_unit(first)[1], split_unit(second)[1]
    return bool(one and other) and one != other


def bases_differ(first: str, second: str) -> bool:
    """Whether the first number is another one for the base that it is written in: `10_2` is 2 and not 10."""
    return _based(first) is not None and not same_based(first, second)


def same_based(answer: str, reference: str) -> bool:
    """Whether a number with a base is the other number; the reference's base may be left out."""
    one, other = _based(answer), _based(reference)
    if one is None and other is None:
        return False
    if one is None:
        return other is not None and answer.strip().strip("$").strip() == other[0]
    value = _value(one)
    known = _value(other) if other is not None else normal_form(reference)
    return value is not None and value == known


def split_unit(answer: str) -> tuple[str, str]:
    """A number without its unit, and the unit's name with its power, such as `cm2`; "" where it has none
    that is known. What stands behind a number as `\\text{…}` is taken off even where it is no known unit."""
    text = answer.strip().strip("$").strip().removesuffix(".").rstrip()
    if len(text) > MOST_CHARACTERS:
        return text, ""
    head, tail = text[:-_LONGEST_UNIT], text[-_LONGEST_UNIT:]
    power = ""
    if found := _POWER.search(tail):
        power = found.group(1) or found.group(2) or ("2" if found.group(3) == "²" else "3")
        tail = tail[: found.start()]
    name, rest, spaced = "", tail, False
    if tail.endswith("%"):
        name, rest = "%", tail[:-1].removesuffix("\\")
    elif tail.endswith("}"):
        start = max(tail.rfind(command) for command in (r"\text", r"\mathrm", r"\mbox", r"\mathbf"))
        group = _GROUP.match(tail, start) if start >= 0 else None
        if group is not None:
            name, rest, spaced = group.group(1), tail[:start], True
            if inner := _POWER.search(name):
                power, name = inner.group(1) or inner.group(2) or power, name[: inner.start()]
    else:
        rest = tail.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ./ ")
        name = tail[len(rest) :]
        if rest.endswith("\\") and name[:1] != " ":  # a command
            return text, ""
        spaced = name[:1] == " " or rest[-1:] in ("~", "\\")
    bare = _SPACE.sub("", rest.rstrip())
    if not (head + bare) or not (bare[-1:].isdigit() or bare[-1:] in (")", "}") or bare.endswith(r"\pi")):
        return text, ""
    return _unit(text, head + bare, name.strip().lower().removesuffix("."), power, spaced)


def _unit(text: str, bare: str, name: str, power: str, spaced: bool) -> tuple[str, str]:
    first, _, last = name.rpartition(" ")
    if first in _DIMENSION:
        name, power = last, _DIMENSION[first]
    if name in _UNITS and (spaced or name not in _PLAIN_LETTER_UNITS):
        return bare, _UNITS[name] + power
    if name in _WITHOUT_SIZE or (text.endswith("}") and name):
        return bare, ""
    return text, ""


def _same_leaf(first: str, second: str) -> bool:
    (one, unit), (other, other_unit) = split_unit(first), split_unit(second)
    if unit and other_unit and unit != other_unit:
        return False
    if not one.strip():
        return False
    found = normal_form(one)
    return found != "" and (found == normal_form(other) or same_based(one, other))


def _based(answer: str) -> tuple[str, int] | None:
    match = _BASE.fullmatch(answer.strip().strip("$").strip())
    if match is None:
        return None
    digits, base = match.group(1), int(match.group(2) or match.group(3))
    return (digits, base) if 2 <= base <= 36 and digits[:1].isdigit() else None


def _value(number: tuple[str, int]) -> int | None:
    try:
        return int(*number)
    except ValueError:  # a digit that the base does not have
        return None
