"""Whatever a text holds: shown on a terminal, in Markdown or in HTML it is text."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marsrl_verl.core.sanitize import code_block, code_span, markdown, one_line, printable, valid_unicode

MARKUP = (
    *("`", "```", "~~~", "<b>", "<img src=x onerror=alert(1)>", "<!--", "](javascript:x)", "|", "\\"),
    *("# ", "* ", "_", "**", "\n", "\n\n", "&lt;", "![x](y)", "http://a.b", " "),
)
CONTROLS = (
    *("\x1b[31m", "\x1b]0;t\x07", "\x9b31m", "\r", "\x00"),
    *("\u202e", "\u2066", "\u2028", "\ud800"),
)
HOSTILE = st.lists(st.sampled_from((*MARKUP, *CONTROLS)) | st.text(max_size=5)).map("".join)


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)

    def handle_data(self, data):
        self.text += data


def rendered(source: str) -> Elements:
    markdown_it = pytest.importorskip("markdown_it")
    return Elements(markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(source))


def shown_characters(text: str) -> set[str]:
    """Categories of the characters other than tabs and line feeds."""
    return {unicodedata.category(one) for one in text if one not in "\t\n"}


@given(HOSTILE)
def test_no_control_character_reaches_a_terminal(text):
    shown = printable(text)
    assert not {"Cc", "Cs", "Zl", "Zp"} & shown_characters(shown)
    assert not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)
    shown.encode()
    assert "\n" not in one_line(text)


def test_what_was_there_can_be_seen():
    assert printable("a\x1b[31mb\x9b\u202e\ud800\tc\nd\r\ne\r") == (
        "a\\x1b[31mb\\x9b\\u202e\\ud800\tc\nd\ne\\x0d"
    )
    assert printable("ü → 数 🙂 \u200d") == "ü → 数 🙂 \u200d", "letters of any script stay"
    assert valid_unicode("a\ud83d\ude00\ud800") == "a\ufffd\ufffd\ufffd"
    assert valid_unicode("🙂") == "🙂"


@given(HOSTILE)
@example("`<img src=x onerror=alert(1)>`")
@example("5`")
@example("`")
def test_a_code_span_stays_one(text):
    page = rendered(f"1. Solver: answer {code_span(text)}, correct")
    assert page.names <= {"ol", "li", "code"}
    assert page.text.strip().endswith(", correct")
    if one_line(text):
        assert one_line(text) in page.text


@given(HOSTILE)
@example("```\n<script>")
@example("~~~\n````text\n")
def test_a_code_block_stays_one(text):
    page = rendered(f"before\n\n{code_block(text)}\n\nafter")
    assert page.names == {"p", "pre", "code"}
    assert page.text.strip().endswith("after")


@given(HOSTILE)
@example("a|b")
@example("<script>")
def test_a_cell_of_a_table_stays_one(text):
    page = rendered(f"| | |\n|---|---|\n| {markdown(text)} | end |\n| last | row |")
    assert page.names <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.text.split()[-3:] == ["end", "last", "row"]


def test_a_long_text_takes_no_time():
    assert len(code_block("`" * 500_000)) > 1_500_000 - 500_000
    assert len(printable("\x1b" * 500_000)) == 2_000_000
