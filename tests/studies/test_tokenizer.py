"""The tiny tokenizer loses nothing and keeps the protocol short."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.tiny.tokenizer import END, build_tokenizer, save_tokenizer, vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@given(text=st.text(alphabet=string.printable, max_size=60))
def test_printable_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@given(number=st.integers(0, 99))
def test_numbers_are_single_tokens(tokenizer, number):
    assert len(tokenizer.encode(str(number), add_special_tokens=False)) == 1


def test_a_worked_solution_is_short(tokenizer):
    ids = tokenizer.encode("7+5=12\n12-3=9\n\\boxed{9}", add_special_tokens=False)
    pieces = ["7", "+5", "=", "12", "\n", "12", "-3", "=", "9", "\n", "\\boxed{", "9", "}"]
    assert [tokenizer.decode([token]) for token in ids] == pieces


def test_a_sign_before_a_larger_number_stays_apart(tokenizer):
    ids = tokenizer.encode("5+12", add_special_tokens=False)
    assert [tokenizer.decode([token]) for token in ids] == ["5", "+", "12"]


def test_chat_template(tokenizer):
    chat = [{"role": "system", "content": "Verify"}, {"role": "user", "content": "Compute 7+5-3"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Verify<|end|><|user|>Compute 7+5-3<|end|><|assistant|>"


def test_saved_folder_loads_as_the_same_tokenizer(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab() == vocabulary()
    assert loaded.eos_token == END
    assert loaded.chat_template == tokenizer.chat_template
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]
