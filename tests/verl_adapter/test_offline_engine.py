"""vLLM without Ray: its engine has training's arguments, and its requests are the server's."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl's engine arguments")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from omegaconf import OmegaConf
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm import AsyncEngineArgs
from vllm_answers import PROMPT, answer

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Decoding
from marsrl_verl.verl_adapter.rollout_server.engine_requests import sampling_params
from marsrl_verl.verl_adapter.rollout_server.offline_engine import OfflineClient, engine_arguments

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
    (given,) = [
        one.value
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Dict)
        and [target.id for target in one.targets if isinstance(target, ast.Name)] == ["args"]
    ]
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
