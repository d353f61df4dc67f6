"""The tiny tokenizer loses nothing and keeps the protocol short."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.tiny.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@given(text=st.text(alphabet=string.printable, max_size=60))
def test_printable_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_worked_solution_is_short(tokenizer):
    ids = tokenizer.encode("7+5=12\n12-3=9\n\\boxed{9}", add_special_tokens=False)
    pieces = ["7", "+5", "=", "12", "\n", "12", "-3", "=", "9", "\n", "\\boxed{", "9", "}"]
    assert [tokenizer.decode([token]) for token in ids] == pieces


def test_chat_template(tokenizer):
    chat = [{"role": "system", "content": "Verify"}, {"role": "user", "content": "Compute 7+5-3"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Verify<|end|><|user|>Compute 7+5-3<|end|><|assistant|>"
