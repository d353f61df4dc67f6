"""A chat that grows token by token is what the chat template renders of the whole; calls of tools in it."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("verl", reason="verl's continuous-token builders")

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from marsrl_verl.core.sequence import token_ids
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, check_builder
from marsrl_verl.rollout.tool_protocol.chat import CallParser, ChatProtocol, ParsedCall
from marsrl_verl.tools.base import function_schema
from marsrl_verl.verl_adapter.rollout_server.template_builder import ChatTemplateBuilder, model_type
from marsrl_verl.verl_adapter.rollout_server.turn_parser import VerlTurnParser

CHATML = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Roles must alternate, and an assistant's turn ends with the end of the sequence.
ALTERNATING = (
    "{%- for m in messages -%}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{- raise_exception('roles must alternate') -}}{%- endif -%}"
    "{{- '[INST]' + m['content'] + '[/INST]' if m['role'] == 'user' else m['content'] + '</s>' -}}"
    "{%- endfor -%}"
)
R1_END = "<｜end▁of▁sentence｜>"
R1 = (
    "{%- for m in messages -%}{%- if m['role'] == 'user' -%}{{- '<｜User｜>' + m['content'] -}}{%- else -%}"
    "{{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}"
)
TEMPLATES = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>", "qwen3"),
    "alternating": (ALTERNATING, ("[INST]", "[/INST]", "</s>"), "</s>", "default"),
    "r1": (R1, ("<｜User｜>", "<｜Assistant｜>", R1_END), R1_END, "default"),
}


def bytes_tokenizer(template: str, special: tuple[str, ...], eos: str) -> PreTrainedTokenizerFast:
    """A byte a token, and control tokens of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(one) for one in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def made(name: str) -> tuple[ChatTokenizer, ChatTemplateBuilder]:
    if name == "tiny":
        chat = ChatTokenizer(AutoTokenizer.from_pretrained(model_path()))
        return chat, ChatTemplateBuilder.of(chat)
    template, special, eos, family = TEMPLATES[name]
    tokenizer = bytes_tokenizer(template, special, eos)
    builder = create_continuous_token_builder(tokenizer, model_family=family)
    return ChatTokenizer(tokenizer), ChatTemplateBuilder(builder)


NAMES = ("tiny", "chatml", "alternating", "r1")
BUILDERS = {name: made(name) for name in NAMES}
texts = st.text(alphabet="ab 12.?!\n", min_size=1, max_size=12).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), texts)
@settings(max_examples=25, deadline=None)
def test_a_grown_chat_is_the_whole_chat(name, turns, last):
    chat, builder = BUILDERS[name]
    opened = "<think>\n" if name == "r1" else ""  # written by the template for the turn that is open
    messages: list[dict[str, str]] = []
    ids: list[int] = []
    for question, answer in turns:
        prompted = [*messages, {"role": "user", "content": question}]
        ids = chat.prompt_ids(prompted) if not messages else builder.merge(messages, prompted, ids, [])
        ids += [*chat.tokenizer.encode(answer, add_special_tokens=False), *chat.turn_end()]
        messages = [*prompted, {"role": "assistant", "content": answer}]
    prompted = [*messages, {"role": "user", "content": last}]
    grown, whole = builder.merge(messages, prompted, ids, []), chat.prompt_ids(prompted)
    assert grown == whole or opened
    assert chat.decode(grown).replace(opened, "") == chat.decode(whole).replace(opened, "")


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_checked_before_a_chat_grows(name):
    check_builder(*BUILDERS[name])


def test_a_template_that_writes_something_else_is_refused():
    chat, builder = BUILDERS["chatml"]

    class Forgetful:
        def merge(self, previous, updated, tail, tools):
            return builder.merge(previous, updated, tail, tools)[:-1]

    with pytest.raises(ValueError, match="can't be continued token by token"):
        check_builder(chat, Forgetful())


def test_an_end_that_the_model_wrote_itself_is_followed_by_what_the_template_writes():
    chat, builder = BUILDERS["chatml"]
    end = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.turn_end() == [end, *chat.tokenizer.encode("\n")]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    grown = [*said, {"role": "user", "content": "c"}]
    assert builder.merge(said, grown, [end], []) == builder.merge(said, grown, chat.turn_end(), [])


def test_a_tokenizer_that_is_not_of_its_models_family_has_the_general_builder(tmp_path):
    chat, _ = BUILDERS["r1"]
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    chat.tokenizer.name_or_path = str(tmp_path)
    with pytest.raises(ValueError, match="im_end"):
        create_continuous_token_builder(chat.tokenizer, hf_model_type="qwen2")
    assert ChatTemplateBuilder.of(chat).merge([], [{"role": "user", "content": "a"}], [], [])


def test_the_models_own_name_is_read_from_its_folder(tmp_path):
    assert model_type(model_path()) == "qwen3"
    assert model_type(str(tmp_path)) is None


# --- verl's tool parsers read what a model writes, and nothing that it writes raises ----------------

END, OBSERVATION = "<|im_end|>", "<|observation|>"
TOOL_TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' + tools[0]['function']['name'] + '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + m['content'] + "
    "'\\n</tool_response><|im_end|>\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
TOKENIZER = bytes_tokenizer(TOOL_TEMPLATE, ("<|im_start|>", END, OBSERVATION, "<tool_call|>"), END)
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
