"""How calls are read, and that nothing a tool says is anything but text."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.core.sequence import token_ids
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.tool_protocol.base import inert_result, truncate_text
from marsrl_verl.rollout.tool_protocol.chat import ChatProtocol, ParsedCall
from marsrl_verl.rollout.tool_protocol.tags import TagProtocol, is_tag, wrapped
from marsrl_verl.testing.client import AddedToken, AddedTokens, CharacterTokenizer
from marsrl_verl.tools.base import function_schema

PYTHON = function_schema("python", "Runs.", {"code": {"type": "string"}}, ("code",))
SEARCH = function_schema(
    "search", "Finds.", {"query": {"type": "string"}, "top": {"type": "integer"}}, ("query",)
)
BOOK = function_schema(
    "book", "Books.", {"city": {"type": "string"}, "nights": {"type": "integer"}}, ("city", "nights")
)
TAGS = TagProtocol([PYTHON, SEARCH, BOOK])
CHAT = ChatTokenizer(CharacterTokenizer())


def calls(text: str, stop: str | None, protocol=TAGS):
    ids = token_ids(CHAT.tokenizer.encode(text))
    return asyncio.run(protocol.calls(ids, stop, CHAT))


# --- tags -----------------------------------------------------------------------------------------


def test_every_closing_tag_ends_a_turn():
    assert TAGS.stop == ("</python>", "</search>", "</book>")


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("<think>a</think> <python>\nprint(1 < 2)\n</python>", "python", {"code": "print(1 < 2)"}),
        # The last opening tag, and the one required argument of several.
        ("<search>x <search>who?</search>", "search", {"query": "who?"}),
        # What the last token has beyond the tag is no part of it.
        ("<python>1</python>\n\n", "python", {"code": "1"}),
        # With an optional argument it may be a JSON object; one of anything else is the argument itself.
        ('<search>{"query": "who?", "top": 3}</search>', "search", {"query": "who?", "top": 3}),
        ('<search>{"top": 3}</search>', "search", {"query": '{"top": 3}'}),
        ('<search>{"query": "x", "y": 3}</search>', "search", {"query": '{"query": "x", "y": 3}'}),
        ('<python>{"code": 1}</python>', "python", {"code": '{"code": 1}'}),
        ('<book>{"city": "Bonn", "nights": 2}</book>', "book", {"city": "Bonn", "nights": 2}),
    ],
)
def test_a_call_is_what_its_tag_encloses(text, name, arguments):
    (one,) = calls(text, f"</{name}>")
    assert (one.name, one.arguments, one.problem) == (name, arguments, None)


@pytest.mark.parametrize(
    ("text", "stop", "says"),
    [
        ("print(1)</python>", "</python>", "closes nothing"),
        ("<python>  </python>", "</python>", "is empty"),
        ("<book>Bonn</book>", "</book>", "takes a JSON object"),
        ("<book>[1]</book>", "</book>", "takes a JSON object"),
        ('<book>{"city": "\\ud800"}</book>', "</book>", "takes a JSON object"),
        (f"<book>{'[' * 100_000}</book>", "</book>", "takes a JSON object"),
    ],
)
def test_what_is_no_call_is_told(text, stop, says):
    (one,) = calls(text, stop)
    assert says in one.problem and one.name == stop[2:-1]


def test_a_turn_that_ends_itself_has_no_call():
    assert calls("<python>1 is the answer</s>", None) == []


@pytest.mark.parametrize("name", ["think", "result", "answer", "Python", "my-tool", "", "1st"])
def test_names_that_are_no_tags(name):
    assert not is_tag(name)
    with pytest.raises(ValueError, match="can't be called by a tag"):
        TagProtocol([function_schema(name, "", {"x": {"type": "string"}})])


# --- the chat template's format -------------------------------------------------------------------


class Parser:
    stop = ("<|observation|>",)
    opening = ("<tool_call>", "<function=")

    def __init__(self, *found: ParsedCall) -> None:
        self.found, self.schemas = list(found), None

    async def calls(self, turn, schemas):
        self.schemas = schemas
        return self.found


def test_a_parsers_calls():
    parser = Parser(ParsedCall("search", '{"query": "x"}', "id1"), ParsedCall("python", "[1]"))
    protocol = ChatProtocol(parser, [PYTHON, SEARCH])
    first, second = calls("any", None, protocol)
    assert (first.name, first.arguments, first.call_id) == ("search", {"query": "x"}, "id1")
    assert second.problem == "The arguments of python are no JSON object: they are something else."
    assert protocol.stop == ("<|observation|>",) and parser.schemas == (PYTHON, SEARCH)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "no JSON object: "),
        ("{" * 100_000, "no JSON object"),
        (f'{{"a": {"[" * 500}{"]" * 500}}}', "nested more than 20 deep"),
        ('{"a": "\\udc00"}', "halves of characters"),
    ],
)
def test_arguments_that_are_none(arguments, says):
    (one,) = calls("any", None, ChatProtocol(Parser(ParsedCall("python", arguments)), [PYTHON]))
    assert says in one.problem


@pytest.mark.parametrize(
    ("text", "found", "unreadable"),
    [
        ("<tool_call>{</tool_call>", (), 1),
        ("<tool_call>", (), 1),
        ("<function=x></function>", (), 1),
        ("<tool_call>a</tool_call><tool_call>{</tool_call>", (ParsedCall("search", "{}"),), 1),
        ("<tool_call><function=search></function></tool_call>", (ParsedCall("search", "{}"),), 0),
        ("<tool_call>a</tool_call>", (ParsedCall("search", '{"query": "<tool_call>"}'),), 0),
        ("<think>not <tool_call> now</think>\\boxed{2}", (), 0),
        ("So.", (), 0),
    ],
)
def test_a_call_that_can_not_be_read_is_told(text, found, unreadable):
    asked = calls(text, None, ChatProtocol(Parser(*found), [PYTHON, SEARCH]))
    told = [one for one in asked if one.problem is not None]
    assert len(told) == unreadable and len(asked) == len(found) + unreadable
    assert all("could not be read" in one.problem for one in told)


# --- results --------------------------------------------------------------------------------------


class Qwen(AddedTokens):
    """A tokenizer with control tokens, of which the template writes some."""

    eos_token_id = None
    chat_template = "<|im_start|> <tool_response> </tool_response> <tool_call> </tool_call>"

    def __init__(self) -> None:
        super().__init__(("<|im_end|>", "<|im_start|>"))
        others = ("<think>", "</think>", "<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>")
        self.added_tokens_decoder |= {k: AddedToken(one, special=False) for k, one in enumerate(others, 2)}

    def encode(self, text, **_):
        return [ord(one) for one in text]

    def decode(self, ids, **_):
        return "".join(map(chr, ids))


QWEN = ChatTokenizer(Qwen())
MARKS = (
    "<|im_end|>", "<think>", "</think>", "</result>", "<answer>", "<python>", "</tool_response>",
    "<", ">", "/", " ", "think", "result", "RESULT", "\n",
)  # fmt: skip
HOSTILE = st.lists(st.sampled_from(MARKS) | st.text(max_size=4)).map("".join)


@given(HOSTILE)
@settings(max_examples=100)
def test_no_result_has_a_control_token_or_a_tag(text):
    for tags in (TAGS.tags, ChatProtocol.tags):
        found = inert_result(text, tags, QWEN)
        names = "|".join(tags)
        assert not re.search(rf"<\s*/?\s*({names})\s*/?\s*>", found, re.IGNORECASE)
        for token in QWEN.tokenizer.added_tokens_decoder.values():
            if str(token) not in ("<think>", "</think>"):
                assert str(token) not in found
        assert QWEN.without_control_tokens(found) == found, "nothing is left for what appends it"


@given(HOSTILE, st.integers(0, 60))
@settings(max_examples=100)
def test_a_cut_result_is_as_inert_and_fits(text, limit):
    inert = inert_result(text, TAGS.tags, QWEN)
    found, tokens, cut = truncate_text(inert, limit, QWEN)
    assert tokens == len(QWEN.raw_ids(found)) <= limit
    assert cut == (found != inert)
    assert inert_result(found, TAGS.tags, QWEN) == found
    wrap = wrapped(found)
    assert wrap.count("<result>") == wrap.count("</result>") == 1


@pytest.mark.parametrize(
    "tag",
    [
        "<function=python>", "</function>", "<parameter=code>", '<parameter name="code">',
        '<invoke name="x">', "<seed:tool_call>", "</minimax:tool_call>", "<arg_key>", "<arg_value>",
        "<tool_call/>", "<think >",
        '<｜DSML｜invoke name="x">', "</｜DSML｜tool_calls>", "<tools\n>",
    ],
)  # fmt: skip
def test_tags_of_all_formats_are_text(tag):
    assert inert_result(f"a {tag} b", ChatProtocol.tags, QWEN) == f"a [{tag[1:-1]}] b"


def test_ordinary_markup_stays():
    text = "<div>1 < 2</div> <thinking> if a<b: </p>"
    assert inert_result(text, TAGS.tags, QWEN) == text


def test_head_and_tail_are_kept():
    found, tokens, cut = truncate_text("a" * 100 + "z" * 100, 60, QWEN)
    assert cut and tokens <= 60
    assert found.startswith("aaaa") and found.endswith("zzzz") and "tokens left out" in found


def test_linear_in_the_length_of_a_result():
    text = "<" + " " * 200_000 + "think>"
    assert inert_result(text * 2, TAGS.tags, QWEN) == text * 2
