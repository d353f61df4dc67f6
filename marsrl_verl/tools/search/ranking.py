"""Which documents of an index answer a query: bm25, and what the best of these name.

A question that needs two steps ("Where was the director of … born?") shares its words with the first document
alone; the second is the one whose title the first one names.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.index import name_of
from marsrl_verl.tools.search.query import words

_CANDIDATES = 100
"""Documents with the best bm25 among which those that are named move up."""
_READ = 3
"""Of the best documents so many are read for names of others."""
_READ_WORDS = 400
"""Words of such a document that are read."""
_NAME_WORDS = 8
"""Most words of a name."""
_WORD = re.compile(r"[^\W_]+")
_BY_WORDS = """
    SELECT documents.number, documents.source, documents.title, documents.text, -bm25(terms, ?, 1.0) AS score
    FROM terms JOIN documents ON documents.number = terms.rowid
    WHERE terms MATCH ? ORDER BY score DESC, terms.rowid LIMIT ?
"""
_BY_NAME = """
    SELECT titles.name, documents.number, documents.source, documents.title, documents.text
    FROM (SELECT name, MIN(number) AS number FROM titles WHERE name IN ({}) GROUP BY name) AS titles
    JOIN documents ON documents.number = titles.number
"""
"""Of several documents with one title, such as the passages of a page, the first."""
_AT_ONCE = 500
"""Names in one statement."""


@dataclass(slots=True)
class _Scored:
    number: int
    hit: Hit
    score: float


def best(
    database: sqlite3.Connection, terms: Sequence[str], k: int, *, title_weight: float, named_weight: float
) -> tuple[Hit, ...]:
    """The k best documents.

    A document's score is its bm25 for any of the words (Robertson and Zaragoza 2009, with the constants of
    SQLite's FTS5: k1 = 1.2, b = 0.75). One whose title is named in one of the three best gets a share of that
    one's bm25 in addition.

    Args:
        terms: words as `query.search_words` gives them: letters and digits, nothing that FTS5 would take for
            syntax.
        title_weight: what a word in the title counts for one in the text.
        named_weight: that share; 0: bm25 alone.
    """
    if not terms:
        return ()
    expression = " OR ".join(f'"{term}"' for term in terms)
    most = max(k, _CANDIDATES) if named_weight else k
    rows = database.execute(_BY_WORDS, (title_weight, expression, most))
    found = {
        number: _Scored(number, Hit(title, text, source), score)
        for number, source, title, text, score in rows
    }
    if named_weight:
        _add_named(database, found, named_weight)
    order = sorted(found.values(), key=lambda one: (-one.score, one.number))
    return tuple(Hit(one.hit.title, one.hit.text, one.hit.source, one.score) for one in order[:k])


def _add_named(database: sqlite3.Connection, scored: dict[int, _Scored], share: float) -> None:
    """Raise the scores of documents that the best ones name, and add those that were not found."""
    extra: dict[str, float] = {}
    for reader in list(scored.values())[:_READ]:
        own = name_of(reader.hit.title)
        for name in names_in(reader.hit.text) - {own}:
            extra[name] = max(extra.get(name, 0.0), share * reader.score)
    missing = _named(database, sorted(extra))
    for one in scored.values():
        one.score += extra.get(name_of(one.hit.title), 0.0)
    for name, number, hit in missing:
        if number not in scored:
            scored[number] = _Scored(number, hit, extra[name])


def _named(database: sqlite3.Connection, names: Sequence[str]) -> list[tuple[str, int, Hit]]:
    """The documents with these titles."""
    made = []
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        rows = database.execute(_BY_NAME.format(",".join("?" * len(some))), some)
        made += [(name, number, Hit(title, text, source)) for name, number, source, title, text in rows]
    return made


@lru_cache(256)  # the responses of a group find the same documents
def names_in(text: str) -> frozenset[str]:
    """What in a text may be a title, as `name_of` writes it: up to eight words in a row, the first of which
    is not written in lower case."""
    tokens = []
    for one in _WORD.finditer(text):
        tokens.append((one.group()[0].islower(), words(one.group())))
        if len(tokens) == _READ_WORDS:
            break
    names = set()
    for first, (lower, _) in enumerate(tokens):
        if lower:
            continue
        name: list[str] = []
        for _, some in tokens[first : first + _NAME_WORDS]:
            name += some
            names.add(" ".join(name))
    return frozenset(names - {""})
