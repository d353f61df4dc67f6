"""Numbers in words: below 1,000, fractions, dozens, thousands and millions."""

from __future__ import annotations

import re

_SMALL = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15,
    "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40,
    "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
SMALL_WORD = rf"(?:{'|'.join(_SMALL)})"
SPELLED = re.compile(rf"\b{SMALL_WORD}\b(?:(?:[ -]|\sand\s)(?:{SMALL_WORD}|hundred)\b){{0,4}}", re.IGNORECASE)


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


_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10,
}  # fmt: skip
_MANY = {"dozen": 12, "thousand": 10**3, "million": 10**6}
_PART = "(?:half|halves|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?)"
_LARGE = "(?:dozen|thousand|million)"
WORDED_VALUES = re.compile(
    rf"\b(?:(?P<above>{SMALL_WORD})[ -](?P<below>{_PART})\b(?! of\b)|"
    rf"(?:negative|minus) (?P<negative>{SMALL_WORD})\b|"
    rf"(?P<count>an?|{SMALL_WORD}(?: hundred)?) (?P<many>{_LARGE})\b(?! of\b)|"
    rf"(?:is|makes?|takes?|equals?|as|with) (?P<said>{SMALL_WORD})\b"
    rf"(?![ -](?:of|or|more|and|at|{_PART}|{_LARGE})\b))",
    re.IGNORECASE,
)
"""Numbers in words that say a value: two thirds, negative four, a dozen, "is eight"."""


def number_of(found: re.Match[str]) -> str:
    """The number of a match of `WORDED_VALUES` in digits, such as `2/3`."""
    if found["above"]:
        part = found["below"].lower().replace("halves", "half").removesuffix("s")
        return f"{spelled(found['above'])}/{_PARTS[part]}"
    if found["negative"]:
        return f"-{spelled(found['negative'])}"
    if found["many"]:
        count = 1 if found["count"].lower() in ("a", "an") else spelled(found["count"])
        return str((count or 0) * _MANY[found["many"].lower()])
    return str(spelled(found["said"]))
