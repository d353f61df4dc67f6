"""Steps and the thinking part of responses, with characters or longer pieces as tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.reasoning_steps import Steps, TokenTexts, split_steps
from marsrl_verl.core.thinking import closing_token, final_text

CLOSE = 7


def pieces(*texts: str) -> tuple[list[int], TokenTexts]:
    """Each text as a token of its own; `</think>` has the id CLOSE."""
    table: dict[int, str] = {CLOSE: "</think>"}
    ids = []
    for at, text in enumerate(texts):
        ids.append(CLOSE if text == "</think>" else 100 + at)
        table[ids[-1]] = text
    return ids, TokenTexts(table.__getitem__)


def split(*texts: str, **options) -> Steps:
    return split_steps(*pieces(*texts), **options)


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        ((), ()),
        (("<eos>",), (1,)),
        (("a", "b", "c"), (3,)),
        (("a", "\n\n", "b", "c", "\n\n", "d"), (2, 5, 6)),
        (("a", "\n", "\n", "b"), (3, 4)),  # a separator in two tokens
        (("a.\n", "\nb", "c"), (2, 3)),  # … that hold text as well
        (("a", "\n\n\n", "\n", "b"), (3, 4)),  # one long break is one end
        (("a", "\n", "b", "\n\n", "c"), (4, 5)),  # blank lines win over line breaks
        (("a", "\n", "b", "\n", "c"), (2, 4, 5)),  # … which count where there is none
        (("\n\n", "a", "\n\n", "b"), (3, 4)),  # a break before all text ends nothing
        (("a", "b", "\n\n"), (3,)),  # nor does one at the very end
        (("a\n\nb\n\nc", "d"), (1, 2)),  # two ends in one token are one
        (("a", " \n \n ", "b"), (2, 3)),  # blanks inside a break
    ],
)
def test_where_steps_end(texts, ends):
    assert split(*texts).ends == ends


def test_one_kind_of_separator_alone():
    assert split("a", "\n", "b", separators=("\n\n",)).ends == (3,)
    assert split("a", "\n\n", "b", "\n", "c", separators=("\n",)).ends == (2, 4, 5)
    assert split("a", "\n\n", "b", separators=()).ends == (3,)


def test_the_step_that_closes_the_thinking_part():
    steps = split("a", "\n\n", "b", "\n\n", "</think>", "c", "\n\n", "d")
    assert steps.ends == (2, 4, 7, 8) and steps.thinking == 2
    assert split("a", "\n\n", "b").thinking == 2
    assert split("</think>", "\n\n", "b").thinking == 0


@pytest.mark.parametrize(
    "tag",
    [
        ("</", "think", ">"),
        ("</", "think", ">\n"),
        ("<", "/", "t", "h", "i", "n", "k", ">"),
        ("b</", "think>c"),
        ("", "</thi", "", "nk>", ""),
        ("</think", "</thi", "nk>"),
    ],
    ids="|".join,
)
def test_a_closing_tag_of_several_tokens(tag):
    steps = split("a", "\n\n", "b", "\n\n", *tag, "c", "\n\n", "d", "\n\n", "e")
    assert steps.ends[:2] == (2, 4) and len(steps) == 5
    assert steps.thinking == 2
    assert split("a", "\n\n", *tag, "\n\n", "b", "\n\n", *tag, "c").thinking == 3, "the last one counts"
    assert split("a", "\n\n", "b", *tag[:-2], "\n\n", "c").thinking == 3, "a part of it closes nothing"


def test_a_closing_tag_that_begins_in_the_token_of_a_line_break():
    """The step in which it ends; what begins it has ended the step before."""
    steps = split("a", "\n\n", "b", ".\n\n</", "think", ">", "c")
    assert steps.ends == (2, 4, 7) and steps.thinking == 2


def test_starts_and_ids():
    steps = Steps((2, 3), 2)
    assert [steps.start(0), steps.start(1)] == [0, 2]
    assert steps.step_ids() == [0, 0, 1]


@pytest.mark.parametrize(("ends", "thinking"), [((0,), 0), ((3, 3), 0), ((2, 1), 0), ((2,), 2)])
def test_impossible_steps_are_refused(ends, thinking):
    with pytest.raises(ValueError, match="steps"):
        Steps(ends, thinking)


TEXTS = ("a", "\n", "\n\n", " ", "b\n", "</think>", ".\n\n", "c\n\nd", "think>", "<")


@given(st.lists(st.sampled_from(TEXTS), max_size=30))
def test_every_token_is_in_one_step_and_a_tag_of_one_token_closes_its_step(texts):
    steps = split(*texts)
    ids = steps.step_ids()
    assert len(ids) == len(texts) and (steps.ends[-1] if texts else 0) == len(texts)
    closing = [at for at, text in enumerate(texts) if text == "</think>"]
    assert steps.thinking == (ids[closing[-1]] if closing else len(steps))


@given(st.text("ab\n ", max_size=40), st.integers(1, 5))
def test_the_tokenizer_hardly_matters(text, size):
    """In whatever pieces a text comes, there are at most as many steps as with single characters: two ends
    in one token are one."""
    options = {"separators": ("\n",)}
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert len(split(*parts, **options)) <= max(len(split(*text, **options)), 1)


@given(
    st.lists(st.sampled_from(["</think>", "a", "\n\n", "<", "</", "think"]), max_size=12).map("".join),
    st.data(),
)
def test_where_a_tag_ends_does_not_depend_on_the_tokens(text, data):
    """The token with the tag's last character, whatever the pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    parts = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    closing, found = text.rfind("</think>"), closing_token(parts)
    if closing < 0:
        assert found is None
    else:
        before = sum(map(len, parts[:found]))
        assert before < closing + len("</think>") <= before + len(parts[found])


def test_a_long_response_of_single_characters():
    text = "<" * 9_000 + "\n\n" + "</think" * 3_000 + "\n\nb</think>\n\nc"
    steps = split(*text)
    assert len(steps) == 4 and steps.thinking == 2


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>a</think>\nb\n", False, "b"),
        ("a</think>b", False, "b"),
        ("<think>a</think>b<think>c</think>d", False, "d"),
        ("no thinking at all ", False, "no thinking at all"),
        ("<think>never closed, \\boxed{3}", False, ""),
        ("<think>a</think>b<think>again", False, ""),
        ("<think>a</think>", False, ""),
        ("", False, ""),
        ("opened by the prompt </think> answer", True, "answer"),
        ("opened, without end, \\boxed{3}", True, ""),
    ],
)
def test_only_what_follows_the_last_thinking_part_is_final(text, opened, expected):
    assert final_text(text, thinking_opened=opened) == expected
