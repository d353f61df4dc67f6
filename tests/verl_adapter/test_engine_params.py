"""A workflow's request as vLLM's parameters, vLLM's answer as a completion; with Ray and without."""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import pickle
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm_answers import DECODING, PROMPT, answer

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.config.node import read_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.components import sampling_settings
from marsrl_verl.verl_adapter.rollout_server.client import packed
from marsrl_verl.verl_adapter.rollout_server.engine_requests import completion, sampling_params
from marsrl_verl.verl_adapter.rollout_server.offline_engine import OfflineClient, engine_arguments
from marsrl_verl.verl_adapter.trainer import observer


def test_a_plain_request_asks_for_nothing_but_ids_and_their_log_probs():
    asked = {"max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    only = {"logprobs": 0, "flat_logprobs": True, "detokenize": False}
    expected = SamplingParams(n=3, output_kind=RequestOutputKind.FINAL_ONLY, **asked, **only)
    assert sampling_params(DECODING, 3) == expected


def test_a_penalty_of_repetition_is_the_engines():
    assert sampling_params(Decoding(4, repetition_penalty=1.1), 1).repetition_penalty == 1.1


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
    found = completion(answer([1, 2], reason, stop), 3, Decoding(1))
    assert (found.finish, found.stop, found.version, found.top) == (finish, matched, 3, None)


def test_the_likeliest_tokens_stand_beside_the_sampled_one():
    found = completion(answer([7, 8], "length", top=3), 0, Decoding(1, top_log_probs=3))
    assert (found.token_ids.tolist(), found.token_ids.dtype) == ([7, 8], np.int32)
    np.testing.assert_array_equal(found.log_probs, np.float32([-0.7, -0.8]), strict=True)
    assert found.top.ids.tolist() == [[101, 102, 103]] * 2
    assert found.top.log_probs.tolist() == [[-1.0, -2.0, -3.0]] * 2
    rest = 1 - math.exp(-1) - math.exp(-2) - math.exp(-3)
    np.testing.assert_allclose(found.top.tail(), math.log(rest), rtol=1e-6)


def test_log_probabilities_that_were_not_asked_for_are_0():
    params = sampling_params(Decoding(4, log_probs=False), 1)
    assert params.logprobs is None
    found = completion(replace(answer([7, 8], "stop"), logprobs=None), 2, Decoding(4, log_probs=False))
    assert (found.token_ids.tolist(), found.log_probs.tolist(), found.top) == ([7, 8], [0, 0], None)
    assert sampling_params(Decoding(4, top_log_probs=3, log_probs=False), 1).logprobs == 3
    both = completion(answer([7], "stop", top=3), 2, Decoding(4, top_log_probs=3, log_probs=False))
    assert both.log_probs.tolist() == [np.float32(-0.7)] and both.top.ids.tolist() == [[101, 102, 103]]


@pytest.mark.parametrize("top", [0, 3])
def test_an_answer_without_tokens_has_empty_arrays(top):
    found = completion(answer([], "abort", top=top), 0, Decoding(1, top_log_probs=top))
    assert (len(found.token_ids), len(found.log_probs)) == (0, 0)
    assert found.top is None if top == 0 else found.top.ids.shape == (0, top)


def test_a_completion_travels_as_eight_bytes_a_token():
    found = completion(answer(list(range(10_000)), "length"), 0, Decoding(1))
    sent = packed(found)
    assert len(sent) < 8 * 10_000 + 1000
    back = pickle.loads(sent)
    np.testing.assert_array_equal(back.token_ids, found.token_ids)
    np.testing.assert_array_equal(back.log_probs, found.log_probs)
    assert back.finish is found.finish


# --- vLLM without Ray: its engine has training's arguments, and its requests are the server's ------

NOT_TAKEN = {
    "load_format": "weights come from the sync",
    "enable_sleep_mode": "the GPU is shared with the trainer",
    "gpu_memory_utilization": "the GPU is shared with the trainer",
    "worker_extension_cls": "the weight sync",
    "override_generation_config": "every request says all of it",
    "skip_tokenizer_init": "vLLM's default",
    "distributed_executor_backend": "vLLM chooses",
    "scheduling_policy": "requests have no priorities",
    "compilation_config": "speed",
    "quantization": "verl patches vLLM for it",
    "hf_overrides": "verl patches vLLM for it",
}


def config(device: str = "cpu", **engine_kwargs):
    rollout = {
        "dtype": "float32", "tensor_model_parallel_size": 1, "max_num_seqs": 4, "max_num_batched_tokens": 100,
        "enable_chunked_prefill": True, "enable_prefix_caching": True, "enforce_eager": True,
        "logprobs_mode": "processed_logprobs", "seed": 0, "engine_kwargs": {"vllm": engine_kwargs},
    }  # fmt: skip
    node = {"model": {"path": "m"}, "rollout": rollout}
    return OmegaConf.create({"trainer": {"device": device}, "actor_rollout_ref": node})


@pytest.mark.parametrize(("device", "chunked", "batched"), [("cpu", False, 900), ("cuda", True, 100)])
def test_prompts_are_read_whole_on_the_processor(device, chunked, batched):
    arguments = engine_arguments(config(device), max_model_len=900)
    found = (arguments["enable_chunked_prefill"], arguments["max_num_batched_tokens"])
    assert found == (chunked, batched)


def test_what_decides_about_tokens_and_their_log_probs_is_the_servers():
    """Where this fails, verl gives its engine an argument that `engine_arguments` does not know."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(vLLMHttpServer.launch_server)))
    assigned = [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
    (given,) = [one.value for one in assigned if ast.unparse(one).startswith("args = {")]
    servers = {key.value for key in given.keys if isinstance(key, ast.Constant)}
    ours = engine_arguments(config(), 900)
    assert servers - ours.keys() == NOT_TAKEN.keys()
    assert ours["logprobs_mode"] == "processed_logprobs"


def test_extra_arguments_of_the_engine_come_last_and_vllm_knows_all():
    arguments = engine_arguments(config(max_logprobs=-1, logprobs_mode="raw_logprobs", block_size=None), 900)
    assert (arguments["max_logprobs"], arguments["logprobs_mode"]) == (-1, "raw_logprobs")
    assert "block_size" not in arguments
    assert arguments.keys() <= set(inspect.signature(AsyncEngineArgs).parameters)


class Engine:
    """vLLM's engine: answers every request with no tokens."""

    model_config = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: 30)

    def __init__(self) -> None:
        self.requests: list = []

    async def generate(self, prompt, params, request_id):
        self.requests.append(params)
        yield SimpleNamespace(finished=True, outputs=[answer([], "length")])


def test_its_requests_are_the_servers():
    client = object.__new__(OfflineClient)
    client._engine = Engine()

    def ask(top: int):
        decoding = Decoding(4, top_log_probs=top)
        return asyncio.run(client.generate("policy", PROMPT, decoding, session="s", name="r"))

    assert [one.finish for one in ask(20)] == [FinishReason.LENGTH]
    assert client._engine.requests == [sampling_params(Decoding(4, top_log_probs=20), 1)]
    with pytest.raises(ValueError, match=r"top_log_probs=21: .*at most 20"):
        ask(21)
    assert len(client._engine.requests) == 1


# --- seeds ---------------------------------------------------------------------------------------------


def settings_with(seeded_tokens: str) -> MarsRLConfig:
    made = read_settings({"algo": {"name": "marsrl"}})
    made.run.seed, made.run.seeded_tokens = 7, seeded_tokens
    return made


@pytest.mark.parametrize(
    ("choice", "training", "evaluation"), [("none", None, None), ("evaluation", None, 7), ("all", 7, 7)]
)
def test_whose_tokens_have_generators_of_their_own(choice, training, evaluation, monkeypatch):
    assert {one.seed for one in sampling_settings(settings_with(choice)).values()} == {training}
    asked: dict = {}

    def evaluate(*_, **arguments):
        asked.update(arguments)
        record = SimpleNamespace(estimates={}, effort={}, skipped=0)
        return SimpleNamespace(record=record, passes=[SimpleNamespace(all_calls=[])])

    monkeypatch.setattr(observer, "evaluate", evaluate)
    watching = object.__new__(observer.TrainingObserver)
    watching._settings = settings_with(choice)
    watching._method = MarsRL
    watching._writer = SimpleNamespace(submit=lambda write: write())
    watching.folder = SimpleNamespace(write_evaluation=lambda *_, **__: None)
    watching.phase = lambda *_: None
    watching.evaluate(None, [], None, {}, "before", 0)
    assert asked["seed"] == evaluation


def test_a_generator_of_the_processor_still_has_no_offset():
    """Contract: vLLM turns a generator back by its offset when a prompt is read in parts, which a generator
    of the processor refuses, so `cluster=cpu` reads prompts whole. Where this fails, it need not any more."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert "get_offset()" in inspect.getsource(GPUModelRunner._bookkeeping_sync)
    with pytest.raises(RuntimeError):
        torch.Generator("cpu").get_offset()
