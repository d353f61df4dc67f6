"""Hits as the text that the model reads: a line each, of limited length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from marsrl_verl.core.sanitize import valid_unicode
from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.query import search_words, words

NOTHING = "No results were found."
_TITLE = 200
"""Most characters of a title."""
_SOURCE = 500
"""Most characters of what says where a hit is from."""
_QUERY_WORDS = 64
"""Words of a query that excerpts are chosen by."""
_LOOKED_AT = 200_000
"""Characters of a text in which the best part is looked for."""
_WORD = re.compile(r"\w+")


def format_hits(
    hits: Sequence[Hit], query: str, *, hit_chars: int, total_chars: int, sources: bool = False
) -> tuple[str, bool]:
    """The hits, numbered, each on a line of its own, so that none can pass for two; and whether one was
    shortened or left out.

    Args:
        hit_chars: most characters of one hit's text; of a longer one the part with most words of the query.
        total_chars: of all together: hits beyond it are left out, the first one is shortened.
        sources: say where each is from.
    """
    lines: list[str] = []
    complete, remaining = True, total_chars
    for number, hit in enumerate(hits, 1):
        title = _cut(_one_line(hit.title), _TITLE)
        head = f"Page {number} ({title}): " if title else f"Page {number}: "
        text = _one_line(hit.text)
        shown = excerpt(text, query, hit_chars)
        source = _cut(_one_line(hit.source), _SOURCE) if sources else ""
        line = head + shown + (f" [{source}]" if source else "")
        if len(line) > remaining:
            complete = False
            if lines:
                break
            line = _cut(line, remaining)
        complete = complete and shown == text
        remaining -= len(line) + 1
        lines.append(line)
    return "\n".join(lines), not complete


def excerpt(text: str, query: str, limit: int) -> str:
    """At most `limit` characters of a text: its beginning, or what lies around the place with most of the
    query's words where the beginning has fewer. What is left out is marked by `…`."""
    if len(text) <= limit:
        return text
    query_words = frozenset(search_words(query, _QUERY_WORDS))
    found = [
        (one.start(), one.end(), word)
        for one in _WORD.finditer(text, 0, _LOOKED_AT)
        for word in words(one.group())
        if word in query_words
    ]
    place = _densest(found, limit - 2)
    if place is None or place[0] <= len({word for _, end, word in found if end < limit}):
        return _cut(text, limit)
    _, start, span = place
    begin = start - (limit - 2 - span) // 2
    if begin <= 0:
        return _cut(text, limit)
    space = text.find(" ", begin - 1, start)
    return _cut("…" + text[space + 1 if space >= 0 else start :], limit)


def _densest(matches: Sequence[tuple[int, int, str]], limit: int) -> tuple[int, int, int] | None:
    """The place where most different words are together (of matches: begin, end and word, in order), in as
    few characters as possible, `limit` at most: their number, begin and length; None where no word fits."""
    inside: Counter[str] = Counter()
    first, best = 0, None
    for last, (_, end, word) in enumerate(matches):
        inside[word] += 1
        while first <= last and (end - matches[first][0] > limit or inside[matches[first][2]] > 1):
            gone = matches[first][2]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if inside:
            start = matches[first][0]
            if best is None or (len(inside), start - end) > (best[0], -best[2]):
                best = (len(inside), start, end - start)
    return best


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + "…" * (limit > 0)


def _one_line(text: str) -> str:
    return " ".join(valid_unicode(text).split())
