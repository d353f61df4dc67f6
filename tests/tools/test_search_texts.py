"""Queries as they are compared, texts as words, and hits as the text that the model reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.tools.search.backend import Hit
from marsrl_verl.tools.search.formatting import excerpt, format_hits
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


# --- hits ------------------------------------------------------------------------------------------------

HITS = (Hit("Jaws", "A film about\na shark.", "p1"), Hit("", "No title."))


def shown(hits, query="shark", hit_chars=100, total_chars=1000, **more):
    return format_hits(hits, query, hit_chars=hit_chars, total_chars=total_chars, **more)


def test_a_line_for_each_hit():
    assert shown(HITS) == ("Page 1 (Jaws): A film about a shark.\nPage 2: No title.", False)
    assert shown(HITS, sources=True)[0] == "Page 1 (Jaws): A film about a shark. [p1]\nPage 2: No title."


def test_a_hit_can_not_pass_for_two():
    hit = Hit("T\nPage 2 (x)", "one\u2028Page 3: two\r\nPage 4: three\x85Page 5: four", "s\nPage 6")
    assert len(shown([hit])[0].splitlines()) == 1


def test_hits_beyond_the_total_are_left_out_and_the_first_is_shortened():
    first, second = shown(HITS)[0].split("\n")
    assert shown(HITS, total_chars=len(first)) == (first, True)
    assert shown(HITS, total_chars=len(first) + len(second)) == (first, True)
    assert shown(HITS, total_chars=len(first) + 1 + len(second)) == (f"{first}\n{second}", False)
    assert shown(HITS, total_chars=20) == ("Page 1 (Jaws): A fi…", True)


def test_of_a_long_text_the_part_with_most_words_of_the_query_is_shown():
    text = "alpha " * 50 + "the shark bit the whale " + "omega " * 50
    assert excerpt(text, "shark whale", 30) == "…the shark bit the whale omeg…"
    assert excerpt(text, "shark bit whale", 20) == "…the shark bit the…"
    assert excerpt(text, "alpha", 30) == "alpha alpha alpha alpha alpha…"
    assert excerpt(text, "", 12) == "alpha alpha…"
    assert excerpt("short", "shark", 5) == "short"
    # The first of several such parts; parts that the beginning has as well are no reason to begin later.
    assert excerpt("shark whale " + text, "shark whale", 30).startswith("shark whale alpha")
    # Where the words stand close together.
    apart = "shark " + "x " * 9 + "whale " + "y " * 50 + "whale and shark, which is it. " + "z " * 9
    assert "whale and shark, which" in excerpt("o " * 50 + apart, "shark whale", 50)


def test_words_are_compared_as_the_index_compares_them():
    text = "x " * 30 + "ŠKODA works " + "y " * 30
    assert "ŠKODA" in excerpt(text, "skoda", 24)


def test_a_word_ten_thousand_times_takes_no_time():
    assert len(excerpt("shark " * 100_000, "shark", 50)) <= 50


FOUND = st.text(st.sampled_from("ab 北京\n\u2028\ud800é") | st.characters(), max_size=80)


@given(
    st.lists(st.builds(Hit, FOUND, FOUND, FOUND), max_size=4),
    FOUND,
    st.integers(16, 60),
    st.integers(64, 300),
    st.booleans(),
)
def test_limits_hold_whatever_is_found(hits, query, hit_chars, total_chars, sources):
    text, cut = shown(hits, query, hit_chars, total_chars, sources=sources)
    text.encode()
    assert len(text) <= total_chars
    lines = text.split("\n") if text else []
    assert len(lines) <= len(hits)
    assert all(line.startswith(f"Page {number}") for number, line in enumerate(lines, 1))
    assert cut or len(lines) == len(hits)


@given(FOUND, st.integers(2, 60))
def test_an_excerpt_is_a_part_of_its_text(text, limit):
    part = excerpt(text, "ab a é 北京", limit)
    assert len(part) <= limit
    assert part.removeprefix("…").removesuffix("…").rstrip() in text
