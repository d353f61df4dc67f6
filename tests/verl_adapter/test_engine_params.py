"""A rollout program's request as vLLM's parameters, and vLLM's answer as a completion."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm_answers import DECODING, answer

from marsrl_verl.core.request import Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.rollout_server.client import packed
from marsrl_verl.verl_adapter.rollout_server.engine_requests import completion, sampling_params


def test_a_plain_request_asks_for_nothing_but_ids_and_their_log_probs():
    assert sampling_params(DECODING, 3) == SamplingParams(
        n=3,
        max_tokens=4,
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def test_stop_strings_are_looked_for_in_the_whole_text_and_kept():
    params = sampling_params(Decoding(4, stop=("</search>", "<|end|>")), 1)
    assert params.stop == ["</search>", "<|end|>"]
    assert params.detokenize and params.include_stop_str_in_output and not params.skip_special_tokens
    assert params.output_text_buffer_length == 0, "nothing is held back"


def test_likeliest_tokens_need_no_text():
    params = sampling_params(Decoding(4, top_log_probs=20), 1)
    assert (params.logprobs, params.detokenize) == (20, False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("json", {"type": "object"}), ("regex", "a+"), ("choice", ("yes", "no")), ("grammar", 'root ::= "a"')],
)
def test_a_structure_is_one_of_vllms(kind, value):
    found = sampling_params(Decoding(4, structured={kind: value}), 1).structured_outputs
    assert getattr(found, kind) == (list(value) if kind == "choice" else value)


@pytest.mark.parametrize("structured", [{}, {"yaml": "a"}, {"json": {}, "regex": "a"}])
def test_other_structures_are_refused_by_name(structured):
    said = r"one of json, regex, choice, grammar, found: (-|yaml|json, regex)$"
    with pytest.raises(ValueError, match=said):
        sampling_params(Decoding(4, structured=structured), 1)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), name=st.text(), begins_at=st.integers(0, 2**20), n=st.integers(1, 512))
def test_vllm_takes_the_seed_of_every_completion(seed, name, begins_at, n):
    """vLLM gives the k-th completion the seed plus k and holds it in a signed 64-bit number."""
    drawn = Sampling(8, 8, seed=seed).request_seed(name, begins_at)
    params = sampling_params(Decoding(8, seed=drawn), n)
    assert params.seed is not None
    assert 0 <= params.seed < 2**63 - n


# --- what it answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "stop", "finish", "matched"),
    [
        ("stop", None, FinishReason.STOP, None),
        ("stop", 151643, FinishReason.STOP, None),
        ("stop", "</search>", FinishReason.STOP, "</search>"),
        ("length", None, FinishReason.LENGTH, None),
        ("abort", None, FinishReason.ABORTED, None),
        ("repetition", "repetition_detected", FinishReason.ABORTED, None),
        (None, None, FinishReason.ABORTED, None),
    ],
)
def test_ends_are_told_apart(reason, stop, finish, matched):
    found = completion(answer([1, 2], reason, stop), 3, 0)
    assert (found.finish, found.stop, found.version, found.top) == (finish, matched, 3, None)


def test_the_likeliest_tokens_stand_beside_the_sampled_one():
    found = completion(answer([7, 8], "length", top=3), 0, 3)
    assert (found.token_ids.tolist(), found.token_ids.dtype) == ([7, 8], np.int32)
    np.testing.assert_array_equal(found.log_probs, np.float32([-0.7, -0.8]), strict=True)
    assert found.top.ids.tolist() == [[101, 102, 103]] * 2
    assert found.top.log_probs.tolist() == [[-1.0, -2.0, -3.0]] * 2
    rest = 1 - math.exp(-1) - math.exp(-2) - math.exp(-3)
    np.testing.assert_allclose(found.top.tail(), math.log(rest), rtol=1e-6)


@pytest.mark.parametrize("top", [0, 3])
def test_an_answer_without_tokens_has_empty_arrays(top):
    found = completion(answer([], "abort", top=top), 0, top)
    assert (len(found.token_ids), len(found.log_probs)) == (0, 0)
    assert found.top is None if top == 0 else found.top.ids.shape == (0, top)


def test_a_completion_travels_as_eight_bytes_a_token():
    found = completion(answer(list(range(10_000)), "length"), 0, 0)
    sent = packed(found)
    assert len(sent) < 8 * 10_000 + 1000
    back = pickle.loads(sent)
    np.testing.assert_array_equal(back.token_ids, found.token_ids)
    np.testing.assert_array_equal(back.log_probs, found.log_probs)
    assert back.finish is found.finish
