"""What can be asked of one engine: the server of a run on vLLM's CPU engine and the tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marsrl_verl.core.policy import SHARED
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.files import tiny_model
from marsrl_verl.machine.packages import DISTRIBUTION_FOLDER
from marsrl_verl.rollout.entropy import entropy_bounds, entropy_from_top
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "marsrl_verl.verl_adapter.register",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
}
"""As `configs/cluster/cpu.yaml` and the launcher set it."""
ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": False,
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": -1,
    "enable_lora": True,
    "max_loras": 2,
    "max_lora_rank": 8,
    "disable_log_stats": True,
    "seed": 0,
}
VERSION = 6


class OneServer:
    """A server without Ray, and the loop that its engine lives in."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer

        class Server(MarsRLvLLMServer):
            def __init__(self, engine: Any) -> None:  # verl's needs Ray and a configuration
                self.engine, self.global_steps = engine, VERSION
                self._admitting, self._submission_paused, self._rejecting = 0, False, False
                self._answered, self._adapters, self._next_adapter = frozenset({SHARED}), {}, 1

        self.tokenizer = AutoTokenizer.from_pretrained(tiny_model())
        self.loop = asyncio.new_event_loop()
        self._requests = 0

        async def start() -> Server:
            return Server(AsyncLLM.from_engine_args(AsyncEngineArgs(model=tiny_model(), **ENGINE)))

        self.server = self.loop.run_until_complete(start())

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def request(self, decoding: Decoding, n: int, policy: str, question: str) -> Any:
        self._requests += 1
        return self.server.generate_group(policy, self.ids(question), decoding, f"r{self._requests}", n)

    def ask(
        self, decoding: Decoding, n: int = 1, policy: str = "shared", question: str = "12 + 7 - 3"
    ) -> list[Completion]:
        return self.run(self.request(decoding, n, policy, question))

    def ids(self, question: str) -> np.ndarray:
        chat = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return np.array(self.tokenizer(text, add_special_tokens=False).input_ids, dtype=np.int32)

    def text(self, completion: Completion) -> str:
        ids = completion.token_ids
        if completion.finish is FinishReason.STOP and completion.stop is None:
            ids = ids[:-1]  # the end token
        return self.tokenizer.decode(ids)

    def close(self) -> None:
        self.server.engine.shutdown()
        self.run(asyncio.sleep(0))
        self.loop.close()


@pytest.fixture(scope="module")
def one() -> Iterator[OneServer]:
    before, path = dict(os.environ), list(sys.path)
    os.environ.update(ENVIRONMENT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(DISTRIBUTION_FOLDER), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(DISTRIBUTION_FOLDER))
    from marsrl_verl.verl_adapter.loopback import stay_on_loopback

    stay_on_loopback()
    made = OneServer()
    try:
        yield made
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)


def log_probs_of(
    model: Any, prompt: np.ndarray, response: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """(T, V) of the distributions that the response's tokens were drawn from."""
    ids = torch.from_numpy(np.concatenate([prompt, response])).long()[None]
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    return logits.log_softmax(dim=-1).numpy()


def same(first: Completion, second: Completion) -> bool:
    return bool(np.array_equal(first.token_ids, second.token_ids)) and bool(
        np.allclose(first.log_probs, second.log_probs, atol=1e-4)
    )


# --- tokens ---------------------------------------------------------------------------------------


def test_completions_are_arrays_with_the_trainers_log_probs(one, model):
    found = one.ask(Decoding(24, temperature=0.8, seed=5), n=3)
    assert len(found) == 3
    for answer in found:
        assert (answer.token_ids.dtype, answer.log_probs.dtype) == (np.int32, np.float32)
        assert (answer.version, answer.top, answer.stop) == (VERSION, None, None)
        assert answer.finish is (FinishReason.LENGTH if len(answer.token_ids) == 24 else FinishReason.STOP)
        expected = log_probs_of(model, one.ids("12 + 7 - 3"), answer.token_ids, 0.8)
        sampled = np.take_along_axis(expected, answer.token_ids[:, None].astype(np.int64), axis=1)[:, 0]
        np.testing.assert_allclose(answer.log_probs, sampled, atol=1e-3)


def test_the_kth_completion_has_the_seed_plus_k(one):
    together = one.ask(Decoding(12, seed=40), n=3)
    alone = [one.ask(Decoding(12, seed=40 + k))[0] for k in range(3)]
    assert all(same(a, b) for a, b in zip(together, alone, strict=True))
    assert not same(together[0], together[1])


def test_what_else_is_asked_changes_no_token(one):
    plain = one.ask(Decoding(12, seed=8))[0]
    for decoding in (Decoding(12, seed=8, top_log_probs=4), Decoding(12, seed=8, stop=("never to be seen",))):
        assert same(plain, one.ask(decoding)[0])


def test_a_request_that_is_refused_is_refused_alone(one):
    async def together() -> list[Any]:
        long = one.request(Decoding(4), 1, "shared", "1 + 1 " * 400)
        return await asyncio.gather(long, one.request(Decoding(4), 1, "shared", "1"), return_exceptions=True)

    refused, answered = one.run(together())
    assert isinstance(refused, Exception) and "maximum context length is 256" in str(refused)
    assert len(answered[0].token_ids) > 0
    assert one.server._admitting == 0


def test_a_cancelled_request_leaves_the_engine(one):
    async def cancelled() -> tuple[int, int]:
        task = asyncio.ensure_future(one.request(Decoding(200, stop=("never",)), 4, "shared", "9 - 8"))
        while (await one.server.pulse(True))[0] < 4:
            await asyncio.sleep(0.01)  # until the engine has it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await one.server.pulse(True)

    assert one.run(cancelled()) == (0, 0)


# --- stop strings ---------------------------------------------------------------------------------


def test_the_tokens_of_a_stop_string_are_kept_and_it_is_named(one):
    whole = one.ask(Decoding(60, seed=3), n=8)
    texts = [one.text(answer) for answer in whole]
    stop = next(text for text in texts if len(text) > 8)[3:6]
    found = one.ask(Decoding(60, seed=3, stop=("no such text", stop)), n=8)
    stopped = 0
    for before, after, text in zip(whole, found, texts, strict=True):
        if stop not in text:
            assert after.stop is None
            assert same(before, after)
            continue
        stopped += 1
        assert (after.finish, after.stop) == (FinishReason.STOP, stop)
        assert stop in one.text(after)
        assert stop not in one.tokenizer.decode(after.token_ids[:-1]), "it ends where the string does"
        np.testing.assert_array_equal(after.token_ids, before.token_ids[: len(after.token_ids)])
        assert len(after.log_probs) == len(after.token_ids)
    assert stopped


# --- likeliest tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_likeliest_tokens_are_those_of_the_sampling_distribution(one, model, temperature):
    m = 5
    answer = one.ask(Decoding(16, temperature=temperature, seed=2, top_log_probs=m))[0]
    expected = log_probs_of(model, one.ids("12 + 7 - 3"), answer.token_ids, temperature)
    vocabulary = expected.shape[1]
    assert answer.top.ids.shape == answer.top.log_probs.shape == (len(answer.token_ids), m)
    assert (answer.top.ids.dtype, answer.top.log_probs.dtype) == (np.int32, np.float32)
    assert (np.diff(answer.top.log_probs, axis=1) <= 0).all()
    np.testing.assert_allclose(answer.top.log_probs, -np.sort(-expected, axis=1)[:, :m], atol=1e-3)
    told = np.take_along_axis(expected, answer.top.ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(answer.top.log_probs, told, atol=1e-3)
    rest = 1.0 - np.exp(-np.sort(-expected, axis=1)[:, :m]).sum(axis=1)
    np.testing.assert_allclose(np.exp(answer.top.tail()), rest, atol=1e-4)
    exact = -(np.exp(expected) * expected).sum(axis=1)
    low, high = entropy_bounds(answer.top, vocabulary)
    assert (low - 1e-3 <= exact).all() and (exact <= high + 1e-3).all()


def test_the_whole_vocabulary_gives_the_entropy_and_more_than_it_is_refused(one, model):
    vocabulary = one.server.engine.model_config.get_vocab_size()
    answer = one.ask(Decoding(6, seed=2, top_log_probs=vocabulary))[0]
    expected = log_probs_of(model, one.ids("12 + 7 - 3"), answer.token_ids)
    exact = -(np.exp(expected) * expected).sum(axis=1)
    np.testing.assert_allclose(entropy_from_top(answer.top, vocabulary), exact, atol=1e-3)
    with pytest.raises(
        ValueError, match=rf"top_log_probs={vocabulary + 1}.*at most {vocabulary}.*max_logprobs"
    ):
        one.ask(Decoding(6, top_log_probs=vocabulary + 1))
    assert one.ask(Decoding(2)), "the engine lives"


def test_tokens_that_are_cut_off_have_no_mass(one):
    answer = one.ask(Decoding(8, top_k=2, seed=1, top_log_probs=3))[0]
    assert np.isneginf(answer.top.log_probs[:, 2]).all()
    np.testing.assert_allclose(np.exp(answer.top.log_probs).sum(axis=1), 1.0, atol=1e-5)


# --- structure ------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"enum": ["right", "wrong"]}, "sum": {"type": "integer", "maximum": 99}},
    "required": ["verdict", "sum"],
    "additionalProperties": False,
}


def test_an_answer_is_json_of_a_schema(one):
    answers = one.ask(Decoding(150, seed=1, structured={"json": SCHEMA}), n=4)
    finished = [answer for answer in answers if answer.finish is FinishReason.STOP]
    assert finished
    for answer in finished:
        found = json.loads(one.text(answer))
        assert found.keys() == {"verdict", "sum"}
        assert found["verdict"] in ("right", "wrong") and isinstance(found["sum"], int)


@pytest.mark.parametrize(
    ("structured", "expected"),
    [
        ({"regex": "[0-9]{3}-[0-9]"}, r"[0-9]{3}-[0-9]"),
        ({"choice": ["Correct", "Wrong"]}, r"Correct|Wrong"),
        ({"grammar": 'root ::= ("1" | "2") "3"'}, r"[12]3"),
    ],
)
def test_an_answer_is_of_a_form(one, structured, expected):
    for answer in one.ask(Decoding(30, seed=4, structured=structured), n=3):
        assert re.fullmatch(expected, one.text(answer))


def test_a_token_that_a_grammar_forces_has_probability_one(one):
    answer = one.ask(Decoding(30, seed=4, structured={"choice": ["Correct"]}, top_log_probs=1))[0]
    assert one.text(answer) == "Correct"
    # All but the first tokens of a choice of one: there may be several ways to begin to spell it.
    assert answer.log_probs[-1] == 0.0, "only the end is left"
    assert np.isneginf(answer.top.tail()[-1])


@pytest.mark.parametrize(
    "structured", [{"grammar": "root ::= ("}, {"json": {"type": "nothing"}}, {"xml": ""}]
)
def test_a_structure_that_is_none_is_refused(one, structured):
    with pytest.raises(ValueError):
        one.ask(Decoding(30, structured=structured))
    assert one.ask(Decoding(2)), "the engine lives"


# --- adapters -------------------------------------------------------------------------------------


def save_adapter(model: Any, folder: Path, seed: int) -> str:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(
        r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False
    )
    adapted = get_peft_model(model, config)
    try:
        adapted.save_pretrained(folder)
    finally:
        adapted.unload()
    return str(folder)


def test_a_policy_answers_with_its_adapter_and_the_shared_one_with_the_models_weights(one, model, tmp_path):
    asked, long = (
        Decoding(10, seed=9),
        "12 + 7 - 3 + 4 - 5 + 6 - 7 + 8 - 9 + 10",
    )  # more than one block is cached

    def answer(policy: str) -> Completion:
        return one.ask(asked, policy=policy, question=long)[0]

    base = answer(SHARED)
    with pytest.raises(EngineUnavailableError, match="policy 'reasoner' has no weights"):
        answer("reasoner")
    one.run(one.server.set_adapter("reasoner", save_adapter(model, tmp_path / "first", 1), 7))
    first = answer("reasoner")
    assert (base.version, first.version) == (VERSION, 7)
    assert not same(base, first)
    assert same(base, answer(SHARED)), "the model's own weights"
    one.run(one.server.set_adapter("reasoner", save_adapter(model, tmp_path / "second", 2), 8))
    second = answer("reasoner")
    assert second.version == 8
    assert not same(first, second)
    # Under another name nothing of it has been cached.
    one.run(one.server.set_adapter("planner", str(tmp_path / "second"), 8))
    assert same(second, answer("planner"))
    assert len(one.run(one.server.engine.list_loras())) == 2, "the replaced one is gone"


def test_an_adapter_that_is_not_there_is_an_error_and_the_former_stays(one, tmp_path):
    with pytest.raises(Exception, match="No adapter found"):
        one.run(one.server.set_adapter("planner", str(tmp_path / "nowhere"), 9))
    assert one.ask(Decoding(4), policy="planner")[0].version == 8
