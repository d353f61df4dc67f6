"""Behaviour of verl and vLLM that the adapter relies on and that no signature tells."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")
pytest.importorskip("vllm", reason="the adapter's tests need vLLM")

import upstream_uses as uses
from upstream_uses import source

from marsrl_verl.rewards.compute_score import _SINGLE_TURN
from marsrl_verl.settings.declaration import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE


def test_agent_loop_manager_lets_a_subclass_choose_the_worker_class():
    assert 'if not hasattr(self, "agent_loop_workers_class")' in source(
        "verl.experimental.agent_loop.agent_loop:AgentLoopManager.__init__"
    )


def test_trainer_takes_the_agent_loop_manager_from_the_configuration():
    assert "agent_loop_manager_class" in source("verl.trainer.ppo.ray_trainer:RayPPOTrainer.init_workers")


def test_verl_calls_a_reward_function_with_the_keywords_that_ours_passes():
    # `rewards.compute_score` calls functions that were written for this manager.
    call = source("verl.experimental.reward_loop.reward_manager.naive:NaiveRewardManager.run_single")
    for name in ("data_source=", "solution_str=", "ground_truth=", "extra_info="):
        assert call.count(name) >= 2, f"{name} is passed to functions and to coroutines"
    for name in _SINGLE_TURN:
        assert f'extra_info["{name}"]' in call
    assert 'result["score"]' in call


def test_verls_dataset_keeps_its_rows_where_long_prompts_are_taken_out():
    # `overlong_prompts`: rows leave `dataframe`, and verl's own filter, with another length, stays off.
    text = source("verl.utils.dataset.rl_dataset:RLHFDataset")
    assert "return len(self.dataframe)" in text
    assert 'config.get("filter_overlong_prompts"' in text


def test_reward_worker_hands_the_batch_to_run_single_without_a_reward_model():
    name = "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score"
    assert "self.reward_manager.run_single(data)" in source(name)


def test_hybrid_worker_has_swappable_training_workers():
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    assert ActorRolloutRefWorker.actor_worker_cls is TrainingWorker
    assert ActorRolloutRefWorker.ref_worker_cls is TrainingWorker


def test_every_rank_puts_its_number_into_the_names_of_its_files():
    saved = source("verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint")
    for kind in ("model", "optim", "extra_state"):
        assert f"{kind}_world_size_{{self.world_size}}_rank_{{self.rank}}.pt" in saved


def test_optimizer_and_schedule_of_an_engine_are_restored_as_they_were():
    engine = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine"
    built = source(f"{engine}._build_model_optimizer")
    assert "self.optimizer = optimizer" in built and "self.lr_scheduler = lr_scheduler" in built
    loaded = source("verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint")
    assert "self.optimizer.load_state_dict(optimizer_state_dict)" in loaded
    assert "self.lr_scheduler.load_state_dict(lr_scheduler_state_dict)" in loaded
    for schedule in ("constant", "cosine"):
        text = source(f"verl.utils.torch_functional:get_{schedule}_schedule_with_warmup")
        assert "return LambdaLR(optimizer, lr_lambda, last_epoch)" in text


def test_both_sides_name_the_socket_of_the_weight_transfer_alike():
    name = 'f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-{'
    folder = "verl.workers.rollout.vllm_rollout"
    assert f"self.zmq_handle = {name}" in source(f"{folder}.vllm_rollout:ServerAdapter.__init__")
    assert f"return {name}" in source(f"{folder}.utils:vLLMColocateWorkerExtension._get_zmq_handle")
    update = source(f"{folder}.utils:vLLMColocateWorkerExtension.update_weights_from_ipc")
    assert "zmq_handle=self._get_zmq_handle()" in update
    assert "zmq_handle=self.zmq_handle" in source(f"{folder}.vllm_rollout:ServerAdapter.update_weights")
    server = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
    assert '"worker_extension_cls": self._get_worker_extension_cls()' in inspect.getsource(
        uses.resolve(server)
    )


def test_folders_of_checkpoints_are_made_by_a_name_of_the_module():
    # Of the file: a save in this process has replaced the function.
    lock = Path(inspect.getfile(uses.resolve("verl.utils:fs"))).read_text()
    assert "ckpt_{hash(path)" in lock and "tempfile.gettempdir()" in lock
    saved = source("verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint")
    assert "local_path = local_mkdir_safe(local_path)" in saved
    trainer = source("verl.trainer.ppo.ray_trainer:RayPPOTrainer._save_checkpoint")
    assert "from verl.utils.fs import local_mkdir_safe" in trainer
    assert "local_mkdir_safe(local_global_step_folder)" in trainer


def test_a_call_of_all_ranks_gives_a_list():
    from verl.single_controller.base.decorator import Dispatch, get_predefined_dispatch_fn

    collect = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["collect_fn"]
    assert collect(None, [{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]


def test_a_pass_cuts_micro_batches_by_its_modules_function_and_puts_rows_back_by_their_indices():
    name = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch"
    assert "micro_batches, indices = prepare_micro_batches(" in source(name)
    assert "data=data, dp_group=self.get_data_parallel_group(), same_micro_num_in_dp=True" in source(name)
    assert "postprocess_batch_func(output_lst=output_lst, indices=indices, data=data)" in source(name)
    restored = source("verl.workers.engine.utils:postprocess_batch_func")
    assert 'key="use_dynamic_bsz", default=True' in restored and "restore_dynamic_batch" in restored


def test_a_forward_step_hands_the_inputs_arguments_to_the_outputs():
    step = source("verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_step")
    assert "model_inputs, output_args = self.prepare_model_inputs(micro_batch=micro_batch)" in step
    assert "output=raw_output, output_args=output_args" in step


def test_a_warm_up_begins_at_rate_zero_and_the_next_rate_is_reported():
    """What `warmup_engine` answers; where this fails, it may no longer be needed."""
    schedule = source("verl.utils.torch_functional:get_constant_schedule_with_warmup")
    assert "return float(current_step) / float(max(1.0, num_warmup_steps))" in schedule
    step = source("verl.workers.engine.fsdp.transformer_impl:FSDPEngine.lr_scheduler_step")
    assert step.index("self.lr_scheduler.step()") < step.index("self.lr_scheduler.get_last_lr()[0]")
    reported = source("verl.workers.engine_workers:TrainingWorker.train_batch")
    assert "lr = self.engine.lr_scheduler_step()" in reported and 'output["metrics"]["lr"] = lr' in reported


def test_an_update_that_is_not_finite_is_skipped_and_the_run_goes_on():
    """What `trainer.finite` answers; with fp16 a gradient scaler does the same on purpose."""
    step = source("verl.workers.engine.fsdp.transformer_impl:FSDPEngine.optimizer_step")
    assert "if not torch.isfinite(grad_norm):" in step and "self.optimizer.zero_grad()" in step
    assert "scaler.step(self.optimizer)" in step
    built = source("verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module")
    assert 'mixed_precision_config.get("param_dtype", "bf16")' in built
    assert "if param_dtype == torch.float16:" in built


def test_the_largest_of_the_ranks_values_is_reported():
    """`warmup_engine`: of what each rank has of the weights; NaN where one rank's is."""
    import math

    from verl.utils.metric import AggregationType, Metric

    def of_ranks(*values: float) -> float:
        return Metric.aggregate_dp([Metric(AggregationType.MAX, one) for one in values])

    assert of_ranks(1.0, 3.0) == 3.0
    assert math.isnan(of_ranks(1.0, math.nan))
    outputs = source("verl.workers.engine.base:BaseEngine.train_batch")
    assert outputs.index("self.optimizer_step()") < outputs.index('outputs["metrics"]["grad_norm"]')


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

    assert "get_rollout_replica_class" in source("verl.workers.rollout.llm_server:LLMServerManager.__init__")
    assert RolloutReplicaRegistry.get("vllm").__name__ == "vLLMReplica"


def test_a_replica_starts_the_servers_of_its_attribute():
    name = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica"
    assert "self.server_class = " in source(f"{name}.__init__")
    assert "self.server_class.options(" in source(f"{name}.launch_servers")


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


def test_the_trainer_keeps_the_manager_of_its_servers():
    text = source("verl.trainer.ppo.ray_trainer:RayPPOTrainer.init_workers")
    assert "self.llm_server_manager = LLMServerManager.create(" in text


def test_the_engine_is_told_whether_to_keep_statistics():
    text = source("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server")
    assert text.index('"disable_log_stats": self.config.disable_log_stats') < text.index("**engine_kwargs,")


def test_an_engine_counts_the_tokens_of_every_request_it_holds():
    """`MarsRLvLLMServer.pulse` reads both; without text, tokens are counted all the same."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    text = source("vllm.v1.engine.output_processor:OutputProcessor.__init__")
    assert "self.request_states: dict[str, RequestState] = {}" in text
    assert "detokenizer=detokenizer" in source(
        "vllm.v1.engine.output_processor:RequestState.from_new_request"
    )
    counter = IncrementalDetokenizer()
    counter.update([5, 6], stop_terminated=False)
    assert counter.num_output_tokens() == 2


def test_an_engine_whose_core_has_died_knows_it():
    """Before a sync and while it lasts, its front end is asked; the core answers nothing while it loads."""
    assert "engine_dead" in inspect.getsource(uses.resolve("vllm.v1.engine.async_llm:AsyncLLM.errored").fget)
    assert "self.errored" in source("vllm.v1.engine.async_llm:AsyncLLM.check_health")
    assert "call_utility_async" in source("vllm.v1.engine.core_client:AsyncMPClient.is_sleeping_async")
    # It cleans up before it marks the engine, and a question in between is never answered.
    watch = source("vllm.v1.engine.core_client:MPClient.start_engine_core_monitor")
    assert watch.index("monitor_engine_liveness()") < watch.index("resources.engine_dead = True")
    assert "self.shutdown()" in source("vllm.v1.engine.utils:CoreEngineProcManager.monitor_engine_liveness")


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


def test_the_sampler_tells_the_likeliest_tokens_after_the_sampled_one():
    text = source("vllm.v1.sample.sampler:Sampler.gather_logprobs")
    assert "torch.topk(logprobs, num_logprobs, dim=-1)" in text, "falling"
    assert "torch.cat((token_ids, topk_indices), dim=1)" in text


def test_a_stop_string_is_the_stop_reason():
    text = source("vllm.v1.engine.output_processor:OutputProcessor.process_outputs")
    assert "finish_reason = FinishReason.STOP" in text and "stop_reason = stop_string" in text


def test_caches_of_adapters_go_by_their_names():
    """Where this fails, `MarsRLvLLMServer.set_adapter` has to empty them."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    def keys(adapter):
        request = SimpleNamespace(lora_request=adapter, mm_features=None, cache_salt=None, prompt_embeds=None)
        return generate_block_hash_extra_keys(request, 0, 16, 0)[0]

    assert keys(None) is None
    assert keys(SimpleNamespace(lora_name="planner#7")) == ("planner#7",)


def test_a_replica_has_a_server_on_each_node():
    assert "self.servers: list[ActorHandle] = []" in source(
        "verl.workers.rollout.replica:RolloutReplica.__init__"
    )


def test_an_engine_of_a_model_with_adapters_keeps_its_weights_asleep():
    """Only adapters are sent: where this fails the engine wakes up without the model."""
    text = source("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer._resolve_sleep_level")
    assert "or self.lora_as_adapter" in text and "return 1" in text


def test_verls_settings_of_lora():
    from dataclasses import fields

    from verl.workers.config import HFModelConfig, RolloutConfig

    names = {"lora_rank", "lora_alpha", "target_modules", "exclude_modules", "target_parameters"}
    assert names <= {one.name for one in fields(HFModelConfig)}
    assert "custom" in {one.name for one in fields(RolloutConfig)}


def test_extra_engine_arguments_go_before_verls():
    """`engine_kwargs.vllm.max_logprobs` reaches the engine."""
    text = source("verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server")
    assert 'self.config.get("engine_kwargs", {}).get(self._get_engine_kwargs_key(), {})' in text
    assert text.index('"logprobs_mode": self.config.logprobs_mode') < text.index("**engine_kwargs,")


def test_a_process_group_that_exists_is_left_alone():
    assert "if not torch.distributed.is_initialized():" in source(
        "verl.utils.distributed:initialize_global_process_group_ray"
    )


def test_tracker_file_is_the_last_thing_a_checkpoint_writes():
    text = source("verl.trainer.ppo.ray_trainer:RayPPOTrainer._save_checkpoint")
    tracker = text.index("latest_checkpointed_iteration.txt")
    assert tracker > max(text.rindex("save_checkpoint("), text.rindex("torch.save("))


def test_an_engine_of_device_and_vendor_goes_before_that_of_the_device():
    text = source("verl.workers.engine.base:EngineRegistry.get_engine_cls")
    assert text.index("if vendor_key in registry") < text.index("if device in registry")


def test_outputs_of_the_engine_are_put_together_whatever_their_names():
    text = source("verl.workers.engine.utils:postprocess_batch_func")
    assert 'for key, val in o["model_output"].items():' in text
    assert "restore_dynamic_batch(model_output[key], indices)" in text


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
