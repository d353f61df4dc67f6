"""Behaviour of verl and vLLM that the adapter relies on and that neither signature nor source tells."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")
pytest.importorskip("vllm", reason="the adapter's tests need vLLM")

from marsrl_verl.settings.declaration import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE


def test_hybrid_worker_has_swappable_training_workers():
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    assert ActorRolloutRefWorker.actor_worker_cls is TrainingWorker
    assert ActorRolloutRefWorker.ref_worker_cls is TrainingWorker


def test_a_call_of_all_ranks_gives_a_list():
    from verl.single_controller.base.decorator import Dispatch, get_predefined_dispatch_fn

    collect = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["collect_fn"]
    assert collect(None, [{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]


def test_the_largest_of_the_ranks_values_is_reported():
    """`warmup_engine`: of what each rank has of the weights; NaN where one rank's is."""
    import math

    from verl.utils.metric import AggregationType, Metric

    def of_ranks(*values: float) -> float:
        return Metric.aggregate_dp([Metric(AggregationType.MAX, one) for one in values])

    assert of_ranks(1.0, 3.0) == 3.0
    assert math.isnan(of_ranks(1.0, math.nan))


def test_a_sum_is_averaged_over_ranks():
    from verl.utils.metric import AggregationType, Metric

    ranks = [Metric(AggregationType.SUM), Metric(AggregationType.SUM)]
    for rank, values in zip(ranks, ([6, 2], [4, 0]), strict=True):
        rank.extend(values)
    assert Metric.aggregate_dp(ranks) == 6


def test_a_mask_of_four_dimensions_is_left_as_it_is():
    import torch
    from transformers import Qwen3Config
    from transformers.masking_utils import create_causal_mask

    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    arguments = {"config": Qwen3Config(), "attention_mask": mask, "past_key_values": None}
    known = inspect.signature(create_causal_mask).parameters
    embeddings = {"inputs_embeds" if "inputs_embeds" in known else "input_embeds": torch.zeros(1, 3, 4)}
    extra = {"cache_position": torch.arange(3)} if "cache_position" in known else {}
    assert create_causal_mask(**arguments, **embeddings, **extra) is mask


def test_replica_class_is_looked_up_by_name_when_servers_start():
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    assert RolloutReplicaRegistry.get("vllm").__name__ == "vLLMReplica"


def test_an_admitted_request_is_counted_until_its_caller_gives_it_back():
    import asyncio

    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    open_gate = SimpleNamespace(_submission_paused=False, _admitting=0)
    assert asyncio.run(vLLMHttpServer._park_until_admitted(open_gate, "r")) is None
    assert open_gate._admitting == 1
    leaving = SimpleNamespace(_submission_paused=True, _rejecting=True, _admitting=0, global_steps=4)
    refused = asyncio.run(vLLMHttpServer._park_until_admitted(leaving, "r"))
    assert refused.token_ids == []
    assert leaving._admitting == 0, "a refused request is not counted"


def test_requests_under_one_id_go_to_one_server():
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    balancer = GlobalRequestLoadBalancer({name: name.upper() for name in "abcd"})
    (first, handle), (second, _) = balancer.acquire_server("r"), balancer.acquire_server("other")
    assert handle == first.upper() and second != first
    # The least busy server would be another one each time.
    assert {balancer.acquire_server("r")[0] for _ in range(8)} == {first}


def test_vllm_takes_the_temperatures_that_the_configuration_allows():
    """Higher ones fail at the first request, lower ones become 0.01."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    for temperature in (LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE):
        assert SamplingParams(temperature=temperature).temperature == temperature
    with pytest.raises(VLLMValidationError, match="temperature"):
        SamplingParams(temperature=HIGHEST_TEMPERATURE + 0.01)
    assert SamplingParams(temperature=LOWEST_TEMPERATURE / 2).temperature == LOWEST_TEMPERATURE


def test_an_engine_counts_the_tokens_of_every_request_it_holds():
    """`MarsRLvLLMServer.pulse` reads both; without text, tokens are counted all the same."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    counter = IncrementalDetokenizer()
    counter.update([5, 6], stop_terminated=False)
    assert counter.num_output_tokens() == 2


def test_a_request_gets_as_many_entries_as_it_asked_for_and_the_sampled_token_first():
    """`engine_requests.completion` cuts vLLM's flat lists by it. The engine's arrays are as wide as the
    widest request of a batch wants them."""
    import numpy as np
    from vllm import SamplingParams
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists

    wide = LogprobsLists(
        np.array([[7, 3, 7, 9], [8, 8, 2, 1]], dtype=np.int32),
        np.array([[-1.5, -0.5, -1.5, -4], [-0.25, -0.25, -2, -3]], dtype=np.float32),
        np.array([2, 1]),
    )
    for asked, ids in ((0, [7, 8]), (2, [7, 3, 7, 8, 8, 2])):
        request = SimpleNamespace(sampling_params=SamplingParams(logprobs=asked, flat_logprobs=True))
        processor = LogprobsProcessor.from_new_request(tokenizer=None, request=request)
        processor.update_from_output(SimpleNamespace(new_logprobs=wide, new_prompt_logprobs_tensors=None))
        assert processor.logprobs.token_ids == ids
        assert len(processor.logprobs.logprobs) == len(ids)


def test_caches_of_adapters_go_by_their_names():
    """Where this fails, `MarsRLvLLMServer.set_adapter` has to empty them."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    def keys(adapter):
        request = SimpleNamespace(lora_request=adapter, mm_features=None, cache_salt=None, prompt_embeds=None)
        return generate_block_hash_extra_keys(request, 0, 16, 0)[0]

    assert keys(None) is None
    assert keys(SimpleNamespace(lora_name="planner#7")) == ("planner#7",)


def test_transformers_registry_keeps_its_own_entries_apart():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert ALL_ATTENTION_FUNCTIONS._local_mapping == {}
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is ALL_ATTENTION_FUNCTIONS._global_mapping["sdpa"]


def test_platform_interface_is_the_one_the_cpu_platform_answers():
    from verl.plugin.platform import PlatformBase

    assert PlatformBase.__abstractmethods__ == {
        "device_name", "vendor_name", "device_module", "is_available", "current_device", "device_count",
        "set_device", "synchronize", "manual_seed", "manual_seed_all", "set_allocator_settings",
        "empty_cache", "get_device_capability", "communication_backend_name", "visible_devices_envvar",
        "nvtx_range", "profiler_start", "profiler_stop", "ray_resource_name", "ray_noset_envvars",
        "is_ipc_supported", "cudart",
    }  # fmt: skip
