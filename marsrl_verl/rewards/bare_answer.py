r"""Answers compared without what graders of mathematics overlook: units, percent signs, a number's base.

What `normal_form` keeps apart (10\% and 10, 5 and 5\text{ cm}) is one answer here, as it is for the graders
that the verifier of arXiv 2509.26628 is built from (released code; the rules are our own). A unit may be
left out, a percent sign only where the reference has it; two units that differ make two answers, and nothing
is converted.
"""

from __future__ import annotations

import re
from functools import lru_cache

from marsrl_verl.rewards.normal_form import MAGNITUDES, MAX_CHARACTERS, normal_form, same_by

_NAMES = (
    "nm nanometer nanometre, mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, "
    "km kilometer kilometre, m meter metre, mi mile, in inch inches, ft foot feet, yd yard, mg milligram, "
    "kg kilogram, g gram, t ton tonne, lb pound, oz ounce, ml milliliter millilitre, l L liter litre, "
    "gal gallon, s sec second, min minute, h hr hour, day, week, month, year yr, degree deg, rad radian, "
    "dollar usd, cent, euro eur, % percent pct, am a.m, pm p.m, C celsius, F fahrenheit, N newton, J joule, "
    "W watt, K kelvin, V volt, A ampere, Mm megameter megametre, Mg megagram, Hz hertz, kHz kilohertz, "
    "MHz megahertz, Pa pascal, kPa kilopascal, kJ kilojoule, kW kilowatt, kWh, mol mole, eV, cal calorie, "
    "kcal, oz ounce, cup, pint, quart, acre, ha hectare, rpm, fps, ohm, bit, byte, kB kilobyte, MB megabyte, "
    "GB gigabyte, dB decibel, pence penny pennies"
)
_UNITS = {
    spelling: group.split()[0]
    for group in _NAMES.split(", ")
    for name in group.split()
    for spelling in ((name, name + "s") if len(name) > 1 else (name,))
} | {"mph": "mi/h", "kmh": "km/h", "kph": "km/h"}
_SMALL = {spelling.lower(): unit for spelling, unit in _UNITS.items()}
_WITHOUT_SIZE = frozenset({"unit", "units", "point", "points"})
UNIT_LETTERS = frozenset(name for name in _UNITS if len(name) == 1 and name.isalpha())
"""Units only upright or behind a space: `5 m` and `5\\text{m}` have a unit, `5m` has none."""
_DIMENSION = {"square": "2", "sq": "2", "cubic": "3", "cu": "3", "squared": "2", "cubed": "3"}
_UPRIGHT = (r"\text", r"\mathrm", r"\mbox")
_GROUP = re.compile(r"\\(?:text|mathrm|mbox)\s{0,9}\{[\s~]*([^{}\d]*?)[\s~]*\}\Z")
_POWER = re.compile(r"\s{0,9}(?:\^\s{0,9}(?:(\d)|\{\s{0,9}(\d)\s{0,9}\})|([²³]))\s{0,9}\Z")
_POWER_INSIDE = re.compile(r"\s*\^\s*(?:(\d)|\{\s*(\d)\s*\})\s*\}\Z")
_DEGREES = re.compile(
    r"(?:\^\s{0,3}(?:\\circ|\{\s{0,3}\\circ\s{0,3}\})|\\degree|°)\s{0,3}"
    r"(?:\\(?:text|mathrm)\s{0,3}\{\s{0,3}([CFK])\s{0,3}\}|([CFK]))?\Z"
)
_WORDS = re.compile(r"[a-zA-Z](?:[a-zA-Z ./'-]|\\ )*")
_SPACE = re.compile(r"(?:\s|~|\\[ ,;:!])+\Z")
_BASE = re.compile(r"([0-9a-zA-Z]{1,200})_(?:(\d)|\{ ?(\d{1,2}) ?\})")
_LONGEST_UNIT = 60


def same_bare_answer(answer: str, reference: str) -> bool:
    """True if two answers are equal without units, bases, and a percent sign that the reference has; lists
    are compared by element, their brackets as they stand."""
    return same_by(_same_leaf, answer, reference)


def units_differ(first: str, second: str) -> bool:
    """True if two answers have units, and different ones: cm and m, men and women, a.m. and p.m. A name that
    is no known unit may say more than the other: apples and red apples."""
    return _apart(split_unit(first)[1], split_unit(second)[1])


def _apart(one: str, other: str) -> bool:
    if not one or not other or one == other:
        return False
    if {one, other} in ({"degree", "C"}, {"degree", "F"}):
        return False  # 5° for 5 °C: a name is missing
    words, others = ({word.removesuffix("s") for word in name.split(" ")} for name in (one, other))
    are_known = all(name.rstrip("23") in _UNITS for name in (one, other))
    is_rate = any("/" in name or " per " in name for name in (one, other))
    return are_known or is_rate or not (words <= others or others <= words)


def is_unit_word(word: str) -> bool:
    """True for a word of the name of a known unit: metres, square, per, units."""
    return _known(word) is not None or word in _DIMENSION or word in _WITHOUT_SIZE or word == "per"


def bases_differ(first: str, second: str) -> bool:
    """True if the first number's base makes it another number than the second: `10_2` is not 10 but 2."""
    return _based(first) is not None and not same_based(first, second)


def same_based(answer: str, reference: str) -> bool:
    """True if a number with a base equals the other number; the reference's base may be left out."""
    one, other = _based(answer), _based(reference)
    if one is None:
        return other is not None and answer.strip().strip("$").strip() == other[0]
    value = _value(one)
    known = _value(other) if other is not None else normal_form(reference)
    return value is not None and value == known


@lru_cache(maxsize=64)
def split_unit(answer: str) -> tuple[str, str]:
    """A number without its unit, and the unit's name with its power, such as `cm2`; "" where it has none.
    Words behind a number as `\\text{…}` are a unit even where they are none that is known; a letter is one
    only where it is known, and magnitudes (`5\\text{ million dollars}`) stay with the number."""
    text = answer.strip().removesuffix(".").strip()
    is_money = text.lstrip("$ ").startswith("\\$") or text.startswith("\\$")
    text = text.strip("$").strip().removesuffix(".").rstrip()
    bare, unit = _split_behind(text)
    return bare, "dollar" if is_money and (not unit or unit.startswith("per ")) else unit


def _split_behind(text: str) -> tuple[str, str]:
    if len(text) > MAX_CHARACTERS:
        return text, ""
    head, tail = text[:-_LONGEST_UNIT], text[-_LONGEST_UNIT:]
    if found := _DEGREES.search(tail):
        return head + tail[: found.start()], found.group(1) or found.group(2) or "degree"
    power = ""
    if found := _POWER.search(tail):
        power = found.group(1) or found.group(2) or ("2" if found.group(3) == "²" else "3")
        tail = tail[: found.start()]
    name, rest, spaced, upright = "", tail, False, False
    if tail.endswith("%"):
        name, rest = "%", tail[:-1].removesuffix("\\")
    elif tail.endswith("}"):
        if found := _POWER_INSIDE.search(tail):
            power, tail = found.group(1) or found.group(2), tail[: found.start()] + "}"
        start = max(tail.rfind(command) for command in _UPRIGHT)
        group = _GROUP.match(tail, start) if start >= 0 else None
        if group is not None:
            name, rest, spaced, upright = group.group(1), tail[:start], True, True
            if inner := _POWER.search(name):
                power, name = inner.group(1) or inner.group(2) or power, name[: inner.start()]
    else:
        rest = tail.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ./ ")
        name = tail[len(rest) :]
        if rest.endswith("\\") and name[:1] != " ":  # a command
            return text, ""
        spaced = name[:1] == " " or rest[-1:] in ("~", "\\")
    bare = head + _SPACE.sub("", rest.rstrip())
    if not (bare[-1:].isdigit() or bare[-1:] in (")", "}") or bare.endswith(r"\pi")):
        return text, ""
    name = name.replace("\\ ", " ").strip().removesuffix(".")
    magnitude, _, behind = name.partition(" ")
    if upright and magnitude in MAGNITUDES:
        if not behind:
            return text, ""
        bare, name = f"{bare} {magnitude}", behind
    unit = _unit(name, power, spaced, upright)
    return (text, "") if unit is None else (bare, unit)


def _unit(name: str, power: str, spaced: bool, upright: bool) -> str | None:
    """The unit of a name; "" where it has no size, None where it is no unit."""
    first, _, last = name.partition(" ")
    if first in _DIMENSION:
        name, power = last, _DIMENSION[first]
    elif last in _DIMENSION:
        name, power = first, _DIMENSION[last]
    parts = [_known(part) for part in re.split(r" ?/ ?| per ", name)]
    if all(parts) and (spaced or name not in UNIT_LETTERS):
        return None if power and parts == ["%"] else "/".join(part for part in parts if part) + power
    if name.lower() in _WITHOUT_SIZE:
        return ""
    if power or not upright or len(name) < 2 or not _WORDS.fullmatch(name):
        return None
    return re.sub(" +", " ", name.lower() if len(name) > 3 else name)


def _known(name: str) -> str | None:
    if name in _UNITS:
        return _UNITS[name]
    return _SMALL.get(name.lower()) if len(name) > 1 else None


def _same_leaf(answer: str, reference: str) -> bool:
    (one, unit), (other, other_unit) = split_unit(answer), split_unit(reference)
    if _apart(unit, other_unit) or (unit == "%" and other_unit != "%") or not one.strip():
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
