"""Which tokens of a structured output are no choice, with xgrammar itself and vLLM's grammars."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM's grammars")
pytest.importorskip("xgrammar", reason="vLLM's library of grammars")

import xgrammar
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.json_actions import GRAMMAR, ActionKind
from marsrl_verl.verl_adapter.rollout_server.forced_tokens import ForcedTokens, forced_tokens

SMOLLM2 = Path("~/.cache/marsrl-verl/SmolLM2-135M-Instruct").expanduser()


def matcher(vocabulary: list[bytes], grammar: str) -> xgrammar.GrammarMatcher:
    """Of a vocabulary whose last token ends a text."""
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[len(vocabulary) - 1])
    return xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_grammar(grammar))


def one_of(texts: list[str]) -> str:
    return "root ::= " + " | ".join(json.dumps(one, ensure_ascii=False) for one in texts)


# --- by hand --------------------------------------------------------------------------------------

PIECES = [b'{"', b"action", b'":"', b'":"R', b"RE", b"R", b"E", b"WR", b"WRITE", b'","output', b":", b'"',
          b'"}', b"}", b"x", b'x"', b"EMP", b"TY", b"<end>"]  # fmt: skip
CUTS = {
    # (token, whether the grammar leaves it no choice)
    "shortest": [(b'{"', 1), (b"action", 1), (b'":"', 1), (b"RE", 0), (b"WRITE", 1), (b'","output', 1),
                 (b'":"', 1), (b"x", 0), (b'"', 0), (b"}", 1), (b"<end>", 1)],
    "begins earlier": [(b'{"', 1), (b"action", 1), (b'":"R', 0), (b"E", 1), (b"WR", 1)],
    "letter by letter": [(b'{"', 1), (b"action", 1), (b'"', 1), (b":", 1), (b'"', 1), (b"R", 0), (b"E", 1)],
    "the output's end": [(b'{"', 1), (b"action", 1), (b'":"', 1), (b"EMP", 0), (b"TY", 1), (b'","output', 1),
                         (b'"', 1), (b":", 1), (b'"', 1), (b'"}', 0), (b"<end>", 1)],
    "with its last letter": [(b'{"', 1), (b"action", 1), (b'":"', 1), (b"EMP", 0), (b"TY", 1),
                             (b'","output', 1), (b'":"', 1), (b'x"', 0), (b"}", 1), (b"<end>", 1)],
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_a_token_is_forced_where_it_spells_forced_text_alone(cut):
    tokens, expected = zip(*CUTS[cut], strict=True)
    found = forced_tokens(
        matcher(PIECES, GRAMMAR["grammar"]), PIECES, [PIECES.index(token) for token in tokens]
    )
    assert found.tolist() == list(map(bool, expected))


def test_where_a_text_may_end_nothing_is_forced():
    vocabulary = [b"a", b"b", b"ab", b"<end>"]
    grammar = matcher(vocabulary, one_of(["ab", "aba"]))
    assert forced_tokens(grammar, vocabulary, [2, 3]).tolist() == [True, False]
    grammar.reset()
    assert forced_tokens(grammar, vocabulary, [0, 1, 0, 3]).tolist() == [True, True, False, True]


def test_what_the_grammar_does_not_allow_is_a_choice_and_so_is_the_rest():
    vocabulary = [b"a", b"b", b"<end>"]
    found = forced_tokens(matcher(vocabulary, one_of(["aaa"])), vocabulary, [0, 1, 0, 2])
    assert found.tolist() == [True, False, False, False]


def test_tokens_within_a_character_are_forced_where_all_texts_have_it():
    e_acute, e_grave = "é".encode(), "è".encode()
    vocabulary = [e_acute[:1], e_acute[1:], e_grave[1:], b"a" + e_acute[:1], b"b", b"<end>"]
    grammar = matcher(vocabulary, one_of(["aéb"]))
    assert forced_tokens(grammar, vocabulary, [3, 1, 4, 5]).tolist() == [True] * 4
    grammar = matcher(vocabulary, one_of(["aéb", "aèb"]))
    assert forced_tokens(grammar, vocabulary, [3, 2, 4, 5]).tolist() == [True, False, True, True]
    grammar = matcher(vocabulary, one_of(["aé", "a"]))
    assert forced_tokens(grammar, vocabulary, [3, 1, 5]).tolist() == [False, True, True]


# --- against a count of all continuations ---------------------------------------------------------

LETTERS = "abéè"  # two of them share their first byte
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=7), min_size=1, max_size=4, unique=True)


def cuts(data: st.DataObject, text: bytes, known: Container[bytes]) -> list[bytes]:
    """The text, cut into tokens in any way."""
    found, at = [], 0
    while at < len(text):
        ends = [end for end in range(at + 1, min(len(text), at + 16) + 1) if text[at:end] in known]
        end = data.draw(st.sampled_from(ends))
        found.append(text[at:end])
        at = end
    return found


@given(texts=TEXTS, data=st.data())
def test_a_token_is_forced_where_all_texts_go_on_with_it(texts, data):
    spelt = [one.encode() for one in texts]
    letters = {bytes([byte]) for byte in LETTERS.encode()}
    pieces = {one[a : a + size] for one in spelt for a in range(len(one)) for size in range(2, 5)}
    more = data.draw(st.sets(st.sampled_from(sorted(pieces)))) if pieces else set()
    vocabulary = [*sorted(letters | more), b"<end>"]
    text = data.draw(st.sampled_from(spelt))
    tokens = cuts(data, text, set(vocabulary[:-1]))
    expected, said = [], b""
    for token in tokens:
        rest = [one[len(said) :] for one in spelt if one.startswith(said)]
        expected.append(all(one.startswith(token) for one in rest))
        said += token
    expected.append([one for one in spelt if one.startswith(said)] == [text])
    ids = [vocabulary.index(token) for token in [*tokens, b"<end>"]]
    found = forced_tokens(matcher(vocabulary, one_of(texts)), vocabulary, ids)
    assert found.tolist() == expected


# --- a real tokenizer, and vLLM's own way from a request to a grammar ------------------------------


def engine(tokenizer, backend: str = "auto") -> SimpleNamespace:
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: len(tokenizer)),
        structured_outputs_config=SimpleNamespace(backend=backend, disable_any_whitespace=False),
        speculative_config=None,
    )
    return SimpleNamespace(vllm_config=config, get_tokenizer=lambda: tokenizer)


@pytest.fixture(scope="module")
def smollm2():
    if not (SMOLLM2 / "tokenizer.json").exists():
        pytest.skip("SmolLM2's tokenizer is not here")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SMOLLM2)


@pytest.fixture(scope="module")
def spellings(smollm2) -> dict[bytes, int]:
    spelt = xgrammar.TokenizerInfo.from_huggingface(smollm2).decoded_vocab
    return {one: k for k, one in enumerate(spelt) if one}


@pytest.fixture(scope="module")
def forced(smollm2):
    return ForcedTokens(engine(smollm2))


def test_of_a_plan_of_smollm2_only_kind_and_text_are_chosen(smollm2, forced):
    ids = [*smollm2.encode('{"action":"REWRITE","output":"Add them."}'), smollm2.eos_token_id]
    pieces = [smollm2.decode([one]) for one in ids]
    assert pieces == [
        '{"', "action", '":"', "RE", "WR", "ITE", '","', "output", '":"',
        "Add", " them", '."', "}", "<|im_end|>",
    ]  # fmt: skip
    found = forced.reader(GRAMMAR)(np.array(ids, np.int32))
    assert [one for one, no_choice in zip(pieces, found, strict=True) if not no_choice] == [
        "RE", "Add", " them", '."'
    ]  # fmt: skip


@given(kind=st.sampled_from(list(ActionKind)), output=st.text('ab é°√1\n"\\', max_size=12), data=st.data())
def test_however_an_action_is_cut_the_same_text_is_forced(smollm2, spellings, forced, kind, output, data):
    begins, middle = b'{"action":"', b'","output":"'
    said = kind.value.encode(), json.dumps(output, ensure_ascii=False)[1:-1].encode()
    text = begins + said[0] + middle + said[1] + b'"}'
    chosen = {len(begins), *range(len(begins + said[0] + middle), len(text) - 1)}
    tokens, expected, at = cuts(data, text, spellings), [], 0
    for token in tokens:
        expected.append(not chosen & set(range(at, at + len(token))))
        at += len(token)
    ids = [*(spellings[token] for token in tokens), smollm2.eos_token_id]
    found = forced.reader(GRAMMAR)(np.array(ids, np.int32))
    assert found.tolist() == [*expected, True]


@pytest.mark.parametrize(
    ("structured", "text", "chosen"),
    [
        ({"choice": ["yes, it is", "yes, but"]}, "yes, but", " but"),
        ({"regex": "The answer is [0-9]+\\."}, "The answer is 17.", "17."),
        ({"json": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                   "additionalProperties": False}}, '{"ok": true}', '{"": true}'),
    ],
)  # fmt: skip
def test_every_structure_can_be_followed(smollm2, forced, structured, text, chosen):
    ids = smollm2.encode(text)
    found = forced.reader(structured)(np.array(ids, np.int32))
    assert smollm2.decode([one for one, no_choice in zip(ids, found, strict=True) if not no_choice]) == chosen


def test_what_cannot_be_followed_is_refused_before_it_is_asked(smollm2, forced):
    with pytest.raises(ValueError, match=r"structured output grammar: xgrammar can't follow it"):
        forced.reader({"grammar": "root ::= ("})
    with pytest.raises(ValueError, match=r"structured_outputs_config\.backend=guidance: .*auto, xgrammar"):
        ForcedTokens(engine(smollm2, "guidance")).reader(GRAMMAR)
