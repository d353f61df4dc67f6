"""The grammar of JSON actions as the engine's library understands it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("vllm", reason="vLLM's check of structured outputs")
pytest.importorskip("xgrammar", reason="vLLM's library of grammars")

import xgrammar
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

from marsrl_verl.algos.rema.json_actions import GRAMMAR, ActionKind
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.rollout_server.engine_requests import sampling_params

END = 256
VOCABULARY = xgrammar.TokenizerInfo(
    [bytes([k]) for k in range(256)] + [b"<end>"], xgrammar.VocabType.RAW, stop_token_ids=[END]
)
COMPILED = xgrammar.GrammarCompiler(VOCABULARY).compile_grammar(GRAMMAR["grammar"])


def allows(text: str) -> bool:
    """Whether the grammar lets a response be this text as a whole."""
    matcher = xgrammar.GrammarMatcher(COMPILED)
    return matcher.accept_string(text) and matcher.accept_token(END)


def compact(kind: str, output: str) -> str:
    return json.dumps({"action": kind, "output": output}, separators=(",", ":"), ensure_ascii=False)


def test_vllm_accepts_it_as_it_stands():
    params = sampling_params(Decoding(8, structured=GRAMMAR), 1)
    validate_xgrammar_grammar(params)
    assert params.structured_outputs.grammar == GRAMMAR["grammar"]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"action":"EMPTY","output":""}', True),
        ('{"action":"DECOMPOSE","output":"1. a\\n2. \\"b\\" \\\\frac{1}{2} \\u00e9 °"}', True),
        ('{"action": "EMPTY","output":""}', False),
        ('{"action":"EMPTY", "output":""}', False),
        ('{"action":"EMPTY","output":""} ', False),
        (' {"action":"EMPTY","output":""}', False),
        ('{\n"action":"EMPTY","output":""}', False),
        ('{"output":"","action":"EMPTY"}', False),
        ('{"action":"SOLVE","output":""}', False),
        ('{"action":"EMPTY","output":"a\nb"}', False),
        ('{"action":"EMPTY","output":"\\ud800"}', False),
        ('{"action":"EMPTY","output":"', False),
    ],
)
def test_it_is_one_compact_object(text, allowed):
    assert allows(text) is allowed


@given(kind=st.sampled_from(list(ActionKind)), output=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_action_can_be_said(kind, output):
    assert allows(compact(kind.value, output))


def test_all_but_the_choices_is_forced():
    """Of the bytes around action and output each is the only one that the grammar allows."""
    matcher, mask = (
        xgrammar.GrammarMatcher(COMPILED),
        xgrammar.allocate_token_bitmask(1, VOCABULARY.vocab_size),
    )
    chosen = []
    for byte in b'{"action":"REWRITE","output":"x"}':
        matcher.fill_next_token_bitmask(mask)
        if sum(int(word).bit_count() for word in (mask[0].numpy().astype("uint32"))) > 1:
            chosen.append(chr(byte))
        assert matcher.accept_token(byte)
    assert chosen == ["R", "x", '"'], "the action, a character, and that there is no other one"
