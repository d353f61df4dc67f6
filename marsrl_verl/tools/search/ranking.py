"""Which documents of an index answer a query: bm25, and what the best of these name.

A question that needs two steps ("Where was the director of … born?") shares its words with the first document
alone; the second is the one whose title the first one names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.index import Index, name_of
from marsrl_verl.tools.search.query import words

_CANDIDATES = 100
"""Documents with the best bm25 among which all that are named move up."""
_READ = 3
"""Of the best documents so many are read for names of others."""
_READ_WORDS = 400
"""Words of such a document that are read."""
_NAME_WORDS = 8
"""Most words of a name."""
_WORD = re.compile(r"[^\W_]+")


def best(
    index: Index, terms: Sequence[str], k: int, *, title_weight: float, named_weight: float
) -> tuple[Hit, ...]:
    """The k best documents.

    A document's score is the bm25 of its text and that of its title, for any of the words (Robertson and
    Zaragoza 2009, as Lucene has it; k1 = 1.2, b = 0.75). One whose title is named in one of the three best
    gets a share of that one's score in addition, `named_weight`; `terms` are those of `query.search_words`.
    """
    scores = index.scores(terms, title_weight)
    if named_weight:
        _raise_named(index, scores, named_weight)
    order = _highest(scores, k)
    return tuple(
        replace(hit, score=float(scores[number]))
        for number, hit in zip(order, index.documents(order), strict=True)
    )


def _raise_named(index: Index, scores: np.ndarray, share: float) -> None:
    """Raise the scores of documents that the best ones name: of those with a title the first, and every other
    one that is among the candidates."""
    candidates = _highest(scores, _CANDIDATES)
    readers = candidates[:_READ]
    extra: dict[str, float] = {}
    for number, reader in zip(readers, index.documents(readers), strict=True):
        for name in names_in(reader.text) - {name_of(reader.title)}:
            extra[name] = max(extra.get(name, 0.0), share * scores[number])
    for number, name in {**index.names(candidates), **index.first_of(extra)}.items():
        scores[number] += extra.get(name, 0.0)


def _highest(scores: np.ndarray, k: int) -> list[int]:
    """The numbers of the k highest scores above 0; of equal ones the first."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        found = found[scores[found] >= np.partition(scores[found], -k)[-k]]
    return found[np.argsort(-scores[found], kind="stable")][:k].tolist()


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
