"""Tokens of a structured output that the model did not choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, validate_xgrammar_grammar
from vllm.v1.structured_output.request import get_structured_output_key

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.rollout_server.engine_requests import ENGINE_KEYS, sampling_params

ForcedMask = NDArray[np.bool_]
_BACKENDS = ("auto", "xgrammar")


class ForcedTokens:
    """Reads completions with the grammars that vLLM's `AsyncLLM` holds them to. Upstream behaviour: vLLM's
    engine keeps its grammars in the process of its core, and does not report what they allowed. The same
    grammars are compiled here, by vLLM's own class."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._vocabulary: list[bytes] = []

    def reader(self, structured: Mapping[str, Any]) -> Callable[[TokenIds], ForcedMask]:
        """A function that finds the forced tokens of completions with this structure
        (`Decoding.structured`); ValueError: the engine's structured outputs can't be followed."""
        backend = self._backend
        params = sampling_params(Decoding(1, structured=structured), 1)
        try:
            validate_xgrammar_grammar(params)
            grammar = backend.compile_grammar(*get_structured_output_key(params.structured_outputs))
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"structured output {', '.join(structured)}: xgrammar can't follow it ({error}), so the "
                "tokens that it forces can't be told from those that the model chose; write it as a grammar"
            ) from error

        if not self._vocabulary:
            self._vocabulary = grammar.ctx.tokenizer_info.decoded_vocab

        def read(token_ids: TokenIds) -> ForcedMask:
            grammar.matcher.reset()
            return forced_tokens(grammar.matcher, self._vocabulary, token_ids.tolist())

        return read

    @cached_property
    def _backend(self) -> XgrammarBackend:
        config, tokenizer = self._engine.vllm_config, self._engine.get_tokenizer()
        if (name := config.structured_outputs_config.backend) not in _BACKENDS:
            raise ValueError(
                f"{ENGINE_KEYS}.structured_outputs_config.backend={name}: the tokens that it forces "
                f"can't be told; expected one of {', '.join(_BACKENDS)}"
            )
        size = config.model_config.get_vocab_size()
        return XgrammarBackend(config, tokenizer=tokenizer, vocab_size=size)


def forced_tokens(
    matcher: xgrammar.GrammarMatcher, vocabulary: Sequence[bytes], token_ids: Sequence[int]
) -> ForcedMask:
    """(T,) true for tokens that spell the text with which every text of the grammar goes on from this
    beginning; a token that the grammar does not allow ends the reading.

    Where a tokenizer has several ways to cut the forced text, no single token has probability 1, and each of
    them says the same; a token that reaches beyond the forced text chooses what follows. An end token is
    forced where nothing else may follow. What the grammar leaves open counts as a choice, also where the
    vocabulary can spell one way of it alone. `vocabulary`: the bytes of each token.
    """
    forced = np.zeros(len(token_ids), dtype=np.bool_)
    ends = set(matcher.stop_token_ids)
    for at, token in enumerate(token_ids):
        if token in ends:
            forced[at] = _only_ends(matcher, len(vocabulary), ends)
        else:
            forced[at] = _all_continue(matcher, vocabulary[token])
        if not matcher.accept_token(token):
            forced[at] = False
            break
    return forced


def _all_continue(matcher: xgrammar.GrammarMatcher, spelt: bytes) -> bool:
    """True if every text of the grammar goes on with these bytes."""
    text = _forced_text(matcher)
    if not spelt or not spelt.startswith(text) or len(text) == len(spelt):
        return bool(spelt) and text.startswith(spelt)
    if spelt[len(text)] < 0x80:  # a character of one byte would be in the text
        return False
    ahead = matcher.fork()
    return ahead.accept_string(text) and all(
        _only_follows(ahead, byte) and ahead.accept_string(bytes([byte])) for byte in spelt[len(text) :]
    )


def _forced_text(matcher: xgrammar.GrammarMatcher) -> bytes:
    """The beginning that all continuations have in common; from xgrammar 0.2.9 on without a character that
    it ends or begins within."""
    try:
        return matcher.find_jump_forward_string().encode()
    except UnicodeDecodeError as error:
        return bytes(error.object)


def _only_follows(matcher: xgrammar.GrammarMatcher, byte: int) -> bool:
    others = (bytes([other]) for other in range(256) if other != byte)
    return not matcher.is_completed() and not any(matcher.fork().accept_string(one) for one in others)


def _only_ends(matcher: xgrammar.GrammarMatcher, size: int, ends: set[int]) -> bool:
    mask = xgrammar.allocate_token_bitmask(1, size)
    matcher.fill_next_token_bitmask(mask)
    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:size]
    return set(np.flatnonzero(bits).tolist()) <= ends
