"""Queries as they are compared, and texts as words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.tools.search.query import STOP_WORDS, normalised, search_words, words

TEXT = st.text(st.characters(), max_size=60)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Who was  Bach?", "who was bach?"),
        ("\tBach\n", "bach"),
        ("STRASSE", "straße"),
        ("Cafe\u0301", "café"),
        ("\uff22ach", "bach"),
        ("a\ud800b", "A\ufffdb"),
    ],
)
def test_queries_that_are_one_search(one, other):
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"), [("Bach", "Bach?"), ('"old man"', "old man"), ("a b", "ab"), ("1.5", "15"), ("-3", "3")]
)
def test_queries_that_are_two(one, other):
    assert normalised(one) != normalised(other)


@given(TEXT)
def test_what_is_normalised_stays_so_and_can_be_encoded(text):
    once = normalised(text)
    once.encode()
    assert once == " ".join(once.split())
    assert normalised(normalised(once)) == normalised(once)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Half-Way Girl (1925)", ["the", "half", "way", "girl", "1925"]),
        ("F.W. Murnau's", ["f", "w", "murnau", "s"]),
        ("Chūō-ku, São Paulo, Škoda", ["chuo", "ku", "sao", "paulo", "skoda"]),
        ("15,140 snake_case", ["15", "140", "snake", "case"]),
        ("北京大学", ["北京", "京大", "大学"]),
        ("iPhone价格2024年", ["iphone", "价格", "2024", "年"]),
        ("がか", ["がか"]),
        ("한국어 문서", ["한국어", "문서"]),
        ("", []),
        ('"*^():- \x00', []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@given(st.text(st.characters(max_codepoint=0x24F), max_size=60))
def test_words_are_their_own_words(text):
    """So a query for a document's words finds it. (Pairs of unspaced characters would be paired again.)"""
    assert words(" ".join(words(text))) == words(text)


def test_an_index_is_asked_for_each_word_once_and_no_stop_words():
    question = "Who directed the film that the director of Jaws directed?"
    assert search_words(question, 9) == ["directed", "film", "director", "jaws"]
    assert search_words("Who are you?", 9) == ["who", "are", "you"]
    assert search_words("one two three", 2) == ["one", "two"]
    assert search_words("?!", 9) == []
    assert all(words(word) == [word] for word in STOP_WORDS)
