"""Queries as they are compared, and texts as words."""

from __future__ import annotations

import re
import unicodedata

from marsrl_verl.core.sanitize import valid_unicode

_STOP_WORDS = (
    "a about also an and any are as at be been being but by can could did do does for from had has have he "
    "her him his how i if in into is it its me more most my no nor not of on or our she should so some such "
    "than that the their them then there these they this those to was we were what when where which who "
    "whom whose why will with would you your"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that nearly every English text has: in a query of other words they only cost time."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]+")
"""Japanese and Chinese characters, which no spaces separate into words."""
_VOICED = "\u3099\u309a"
"""Marks that make another Japanese letter, and are no accents."""


def normalised(query: str) -> str:
    """Returns what queries of one search have in common: the text without differences of case, of spaces and
    of how Unicode writes a character."""
    folded = unicodedata.normalize("NFKC", valid_unicode(query)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def words(text: str) -> list[str]:
    """The words of a text in their order, as an index has them: lower case, without accents, of letters and
    digits alone. Japanese and Chinese characters are taken in overlapping pairs."""
    found: list[str] = []
    for word in _WORD.findall(_folded(text)):
        found += _pairs(word) if _UNSPACED.search(word) else [word]
    return found


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", valid_unicode(text)).casefold())
    plain = "".join(one for one in apart if one in _VOICED or not unicodedata.combining(one))
    return unicodedata.normalize("NFC", plain)


def _pairs(word: str) -> list[str]:
    """A word with unspaced characters as pairs of these, and what stands between them as it is."""
    found: list[str] = []
    end = 0
    for run in _UNSPACED.finditer(word):
        found += [word[end : run.start()]] * (run.start() > end)
        characters = run.group()
        found += [characters[i : i + 2] for i in range(max(1, len(characters) - 1))]
        end = run.end()
    return [*found, *[word[end:]] * (end < len(word))]


def search_words(query: str, most: int) -> list[str]:
    """The words that an index is asked for, the first `most` of them: each once, without stop words unless
    there are no others."""
    unique = list(dict.fromkeys(words(query)))
    return ([word for word in unique if word not in STOP_WORDS] or unique)[:most]
