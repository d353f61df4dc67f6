"""verl's tool parsers read what a model writes, and nothing that it writes raises."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("verl", reason="its tool parsers")

from hypothesis import given, settings
from hypothesis import strategies as st
from test_template_builder import bytes_tokenizer
from verl.experimental.agent_loop.tool_parser import ToolParser

from marsrl_verl.core.sequence import token_ids
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.tool_protocol.chat import CallParser, ChatProtocol, ParsedCall
from marsrl_verl.tools.base import function_schema
from marsrl_verl.verl_adapter.rollout_server.template_builder import ChatTemplateBuilder
from marsrl_verl.verl_adapter.rollout_server.turn_parser import VerlTurnParser

END, OBSERVATION = "<|im_end|>", "<|observation|>"
TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' + tools[0]['function']['name'] + '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + m['content'] + "
    "'\\n</tool_response><|im_end|>\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
TOKENIZER = bytes_tokenizer(TEMPLATE, ("<|im_start|>", END, OBSERVATION, "<tool_call|>"), END)
SCHEMAS = (function_schema("search", "Finds.", {"query": {"type": "string"}}, ("query",)),)
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm": "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "seed": "<seed:tool_call><function=search><parameter=query>x</parameter></function></seed:tool_call>",
    "minimax": '<minimax:tool_call><invoke name="search"><parameter name="query">x</parameter></invoke>'
    "</minimax:tool_call>",
    "gemma4": '<|tool_call>call:search{query:<|"|>x<|"|>}<tool_call|>',
}


def calls(name: str, text: str, schemas=SCHEMAS) -> list[ParsedCall]:
    parser = VerlTurnParser.of(name, TOKENIZER)
    ids = token_ids(TOKENIZER.encode(text, add_special_tokens=False))
    return asyncio.run(parser.calls(ids, schemas))


def test_the_formats_are_verls():
    assert {str(one) for one in CallParser} == set(ToolParser._registry)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_read(name):
    (one,) = calls(name, f"I look. {WRITTEN[name]}{END}")
    assert one.name == "search" and json.loads(one.arguments) == {"query": "x"}


@pytest.mark.parametrize("name", WRITTEN)
def test_schemas_that_verl_does_not_read_hide_no_call(name):
    either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    richer = function_schema("search", "Finds.", {"query": either}, ("query",))
    bare = {"type": "function", "function": {"name": "other"}}
    assert calls(name, WRITTEN[name] + END, (richer, bare)) == calls(name, WRITTEN[name] + END)


def test_several_calls_in_their_order():
    found = calls("hermes", f"{WRITTEN['hermes']}{WRITTEN['hermes'].replace('x', 'y')}{END}")
    assert [json.loads(one.arguments)["query"] for one in found] == ["x", "y"]


@pytest.mark.parametrize(
    "text", ["So.", "<tool_call>\n{\n</tool_call>", "<tool_call>[1]</tool_call>", "<tool_call>"]
)
def test_what_can_not_be_read_is_no_call(text):
    assert calls("hermes", text + END) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_that_is_cut_is_told(name):
    protocol = ChatProtocol(VerlTurnParser.of(name, TOKENIZER), SCHEMAS)

    def asked(text):
        ids = token_ids(TOKENIZER.encode(text + END, add_special_tokens=False))
        return asyncio.run(protocol.calls(ids, None, ChatTokenizer(TOKENIZER)))

    whole = WRITTEN[name]
    assert [one.problem for one in asked(whole)] == [None]
    (one,) = asked(whole[: whole.index("search")])
    # One parser reads what is left as the call of a tool that there is not; that is told, too.
    assert "could not be read" in (one.problem or "") or (name, one.name) == ("qwen3_coder", "<|im_end|")
    assert asked("So.") == []


@given(st.text(max_size=30), st.sampled_from(sorted(WRITTEN)))
@settings(max_examples=30)
def test_nothing_that_a_model_writes_raises(text, name):
    half = WRITTEN[name][: len(text) * 3]
    assert isinstance(calls(name, half + text.replace("\ud800", "") + END), list)


def test_a_parser_that_raises_found_no_call():
    """The tokenizer has no padding token, which verl's parser of this format takes for granted."""
    assert TOKENIZER.pad_token is None
    assert calls("gpt-oss", "text") == []


def test_where_a_model_does_not_end_its_turn_itself_a_token_does():
    assert VerlTurnParser.of("hermes", TOKENIZER).stop == ()
    assert VerlTurnParser.of("glm", TOKENIZER).stop == (OBSERVATION,)
    assert VerlTurnParser.of("gemma4", TOKENIZER).stop == ("<tool_call|>",)


def test_a_parser_has_a_tokenizer_of_its_own():
    assert VerlTurnParser.of("hermes", TOKENIZER).parser.tokenizer is not TOKENIZER


def test_an_unknown_format():
    with pytest.raises(ValueError, match="nothing"):
        VerlTurnParser.of("nothing", TOKENIZER)


def test_a_chat_grows_by_results_as_the_template_renders_it():
    chat = ChatTokenizer(TOKENIZER)
    builder = ChatTemplateBuilder.of(chat)
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "I look."}]
    grown = [*said, *({"role": "tool", "name": "search", "content": one} for one in ("a", "b"))]
    end = chat.turn_end()
    added = builder.merge(said, grown, list(end), [dict(one) for one in SCHEMAS])
    whole = chat.prompt_ids(grown, SCHEMAS)
    assert added == whole[len(whole) - len(added) :]
    assert chat.decode(added).count("<tool_response>") == 2
