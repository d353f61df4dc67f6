"""Text of models, data and endpoints as nothing but text, wherever it is shown.

Such text may hold terminal escapes, characters that turn the reading direction, Markdown, HTML and halves of
characters that no encoding knows. What is kept in files as JSON is the text itself; what a person is shown
goes through one of these functions.
"""

from __future__ import annotations

import json
import re
from typing import Any

REPLACEMENT = "\ufffd"
"""Replaces halves of characters."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_ENDS = (0x2028, 0x2029)
_CONTROLS = (*(code for code in range(0x20) if chr(code) not in "\t\n"), *range(0x7F, 0xA0))
_SHOWN = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROLS, *_BIDI, *_LINE_ENDS, *range(0xD800, 0xE000))
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&!])")
_BACKTICKS = re.compile("`+")


def valid_unicode(text: str) -> str:
    """The text with each half of a surrogate pair, which no encoding takes, replaced by U+FFFD."""
    return _SURROGATE.sub(REPLACEMENT, text)


def holds_surrogates(value: Any) -> bool:
    """True if a text in a JSON value has half of a surrogate pair."""
    return _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None


def printable(text: object) -> str:
    """The text for a terminal or a log: control characters (C0, C1), those that turn the reading direction
    and halves of surrogate pairs are spelt out (`\\x1b`). Tabs and line feeds stay."""
    return str(text).replace("\r\n", "\n").translate(_SHOWN)


def one_line(text: object) -> str:
    """Same as `printable`, with a space for every run of white space."""
    return " ".join(printable(text).split())


def markdown(text: object) -> str:
    """The text as Markdown that shows it on one line, in a table too: nothing in it is markup or HTML."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def code_span(text: object) -> str:
    """The text as a Markdown code span, on one line. Not for a table, where `|` would end the cell."""
    shown = one_line(text)
    if not shown:
        return "(empty)"
    fence = "`" * (_longest_run(shown) + 1)
    padding = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def code_block(text: object) -> str:
    """The text as a Markdown code block, whose fence is longer than any run of backticks inside."""
    shown = printable(text)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}text\n{shown}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)
