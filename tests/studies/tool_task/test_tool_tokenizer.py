"""The tokenizer of the tool task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, check_builder
from studies.toy_tasks.tool_task.agent import TinyTemplate
from studies.toy_tasks.tool_task.tokenizer import CHAT_TEMPLATE, WORDS, build_tokenizer, vocabulary

SCHEMAS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": {argument: {"type": "string"}}}},
    }
    for name, argument in (("python", "code"), ("search", "query"))
]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_ascii_survives(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_words_are_one_token_and_none_is_a_control_token(tokenizer):
    assert len(vocabulary()) == len(tokenizer)
    for word in WORDS:
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word
    chat = ChatTokenizer(tokenizer)
    assert chat.without_control_tokens("<search>x</search><result>") == "<search>x</search><result>"
    assert "<tool_call>" not in chat.without_control_tokens("<tool_call><|end|>")


def test_a_chat_can_grow(tokenizer):
    chat = ChatTokenizer(tokenizer)
    check_builder(chat, TinyTemplate(chat))
    assert "tools" in CHAT_TEMPLATE
    shown = chat.decode(chat.prompt_ids([{"role": "user", "content": "Compute 34*56"}], SCHEMAS))
    assert shown.startswith("<|system|>python search ") and shown.endswith("<|assistant|>")
