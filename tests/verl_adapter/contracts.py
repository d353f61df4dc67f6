"""What the adapter takes from verl and vLLM: the list that `test_upstream_contracts.py` checks.

Names are written `module:qualified.name`. A new import from verl or vLLM, a new override and a new use
of an inherited method each need a line here; the tests say which is missing.
"""

from __future__ import annotations

TRAINER = "verl.trainer.ppo.ray_trainer:RayPPOTrainer"
RUNNER = "verl.trainer.main_ppo_v0:BaseTaskRunner"
LOOPS = "verl.experimental.agent_loop.agent_loop"
EXPERTS = "vllm.model_executor.layers.fused_moe.cpu_fused_moe:CPUFusedMOE"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"

SIGNATURES: dict[str, list[str]] = {
    # verl's tools: called.
    "verl.tools.tool_registry:load_all_tools": ["tool_config_path", "function_tool_path"],
    "verl.tools.function_tool:normalize_function_tool_return": ["ret"],
    "verl.tools.function_tool:FunctionTool.call": ["self", "parameters"],
    "verl.tools.base_tool:BaseTool.create": ["self", "instance_id", "kwargs"],
    "verl.tools.base_tool:BaseTool.execute": ["self", "instance_id", "parameters", "kwargs"],
    "verl.tools.base_tool:BaseTool.release": ["self", "instance_id", "kwargs"],
    # Where the ranks of a worker group meet.
    "verl.single_controller.ray:RayWorkerGroup.__init__": [
        "self", "resource_pool", "ray_cls_with_init", "bin_pack", "name_prefix", "detached", "worker_names",
        "worker_handles", "ray_wait_register_center_timeout", "kwargs",
    ],
    # Waiting for them.
    "verl.single_controller.ray:RayWorkerGroup._bind_worker_method": [
        "self", "user_defined_cls", "func_generator",
    ],
    "verl.single_controller.ray.base:func_generator": [
        "self", "method_name", "dispatch_fn", "collect_fn", "execute_fn", "blocking",
    ],
    # The trainer: called, or overridden.
    f"{TRAINER}.__init__": [
        "self", "config", "tokenizer", "role_worker_mapping", "resource_pool_manager",
        "ray_worker_group_cls", "processor", "train_dataset", "val_dataset", "collate_fn",
        "train_sampler", "device_name",
    ],
    f"{TRAINER}.fit": ["self"],
    f"{TRAINER}.init_workers": ["self"],
    f"{TRAINER}._save_checkpoint": ["self"],
    f"{TRAINER}._load_checkpoint": ["self"],
    f"{TRAINER}._get_dp_size": ["self", "worker_group", "role"],
    f"{TRAINER}._start_profiling": ["self", "do_profile"],
    f"{TRAINER}._stop_profiling": ["self", "do_profile", "run_command"],
    f"{TRAINER}._shutdown_dump_executor": ["self"],
    "verl.trainer.ppo.core_algos:agg_loss": [
        "loss_mat", "loss_mask", "loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size",
        "loss_scale_factor",
    ],
    "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_weights": [
        "log_ratio", "response_mask", "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize",
    ],
    "verl.experimental.agent_loop.tool_parser:ToolParser.get_tool_parser": ["name", "tokenizer"],
    "verl.experimental.agent_loop.tool_parser:ToolParser.extract_tool_calls": [
        "self", "responses_ids", "tools",
    ],
    "verl.utils.tensordict_utils:assign_non_tensor": ["tensor_dict", "kwargs"],
    "verl.utils.tensordict_utils:get": ["tensordict", "key", "default"],
    "verl.utils.metric:reduce_metrics": ["metrics"],
    "verl.utils.py_functional:rename_dict": ["data", "prefix"],
    "verl.utils.tracking:Tracking": ["project_name", "experiment_name", "default_backend", "config"],
    "verl.utils.tracking:Tracking.log": ["self", "data", "step", "backend"],
    "verl.checkpoint_engine:CheckpointEngineManager.update_weights": ["self", "global_steps"],
    "verl.checkpoint_engine:CheckpointEngineManager.sleep_replicas": ["self"],
    # Weights between two pools.
    "verl.checkpoint_engine.base:CheckpointEngineRegistry.register": ["backend"],
    "verl.checkpoint_engine.base:CheckpointEngineRegistry.new": ["backend", "args", "kwargs"],
    "verl.checkpoint_engine.base:CheckpointEngine.prepare": ["self"],
    "verl.checkpoint_engine.base:CheckpointEngine.build_topology": [
        "actor_wg_world_size", "rollout_world_size", "metadata",
    ],
    "verl.checkpoint_engine.base:CheckpointEngine.init_process_group": ["self", "kwargs"],
    "verl.checkpoint_engine.base:CheckpointEngine.finalize": ["self"],
    "verl.checkpoint_engine.base:CheckpointEngine.send_weights": ["self", "weights", "global_steps"],
    "verl.checkpoint_engine.base:CheckpointEngine.receive_weights": ["self", "global_steps"],
    "verl.checkpoint_engine.base:split_weight_chunks": ["weights", "bucket_size", "meta_only"],
    "verl.checkpoint_engine.base:merge_weight_chunks": ["chunks", "bucket_size"],
    "verl.workers.rollout.llm_server:LLMServerManager.__init__": [
        "self", "config", "worker_group", "rollout_resource_pool", "start_rank", "load_balancer_cls",
    ],
    # Its batches.
    "verl:DataProto.__init__": ["self", "batch", "non_tensor_batch", "meta_info"],
    # Chats that grow.
    "verl.utils.tokenizer.continuous_token:ContinuousTokenBuilder.merge_context_tokens": [
        "self", "previous_messages", "updated_messages", "runtime_token_ids", "tools",
    ],
    "verl.utils.tokenizer.continuous_token:ContinuousTokenBuilder.render_delta_token_id": [
        "self", "prefix_messages", "appended_messages", "add_generation_prompt", "tools",
    ],
    # What the task runner builds.
    "verl.single_controller.base.decorator:register": [
        "dispatch_mode", "execute_mode", "blocking", "materialize_futures",
    ],
    "verl.single_controller.base.decorator:make_nd_compute_dataproto_dispatch_fn": ["mesh_name"],
    f"{RUNNER}.__init__": ["self"],
    f"{RUNNER}.add_actor_rollout_worker": ["self", "config"],
    f"{RUNNER}.init_resource_pool_mgr": ["self", "config"],
    f"{RUNNER}.run": ["self", "config"],
    "verl.trainer.ppo.utils:create_rl_dataset": [
        "data_paths", "data_config", "tokenizer", "processor", "is_train", "max_samples",
    ],
    "verl.trainer.ppo.utils:create_rl_sampler": ["data_config", "dataset"],
    "verl.trainer.ppo.utils:need_critic": ["config"],
    "verl.trainer.ppo.utils:need_reference_policy": ["config"],
    "verl.utils.config:omega_conf_to_dataclass": ["config", "dataclass_type"],
    "verl.utils.config:validate_config": ["config", "use_reference_policy", "use_critic"],
    "verl.utils.dataset.rl_dataset:collate_fn": ["data_list"],
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env": ["config"],
    # Workers and engines.
    "verl.workers.engine_workers:TrainingWorker.__init__": ["self", "config"],
    "verl.workers.engine_workers:TrainingWorker.load_checkpoint": [
        "self", "local_path", "hdfs_path", "del_local_after_load",
    ],
    "verl.workers.engine_workers:ActorRolloutRefWorker.__init__": [
        "self", "config", "role", "distillation_config", "kwargs",
    ],
    "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": ["self"],
    "verl.workers.engine_workers:ActorRolloutRefWorker.compute_log_prob": ["self", "data"],
    "verl.workers.engine_workers:ActorRolloutRefWorker.compute_ref_log_prob": ["self", "data"],
    "verl.workers.engine_workers:ActorRolloutRefWorker.update_actor": ["self", "data"],
    "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights": ["self", "global_steps", "mode"],
    "verl.workers.engine_workers:ActorRolloutRefWorker.save_checkpoint": [
        "self", "local_path", "hdfs_path", "global_step", "max_ckpt_to_keep",
    ],
    "verl.workers.engine_workers:ActorRolloutRefWorker.load_checkpoint": [
        "self", "local_path", "hdfs_path", "del_local_after_load",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_step": [
        "self", "micro_batch", "loss_function", "forward_only",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs": [
        "self", "output", "output_args", "micro_batch", "logits_processor_func",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs": [
        "self", "micro_batch",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch": [
        "self", "data", "loss_function", "forward_only",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.get_data_parallel_size": ["self"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lr_scheduler": ["self", "optimizer"],
    # Fused kernels.
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": ["self", "module"],
    "verl.utils.fsdp_utils:_select_fsdp2_wrap_targets": ["model", "fsdp_transformer_layer_cls_to_wrap"],
    "verl.utils.experimental.torch_functional:FusedLinearForPPOFunction.backward": [
        "ctx", "dlog_probs", "dentropy",
    ],
    "verl.utils.experimental.torch_functional:_fused_linear_for_ppo_bwd": [
        "dlog_probs", "dentropy", "hidden_states", "vocab_weights", "input_ids", "temperature",
    ],
    # Adapters.
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.initialize": ["self"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lora_module": ["self", "module"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_optimizer": ["self", "module"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.save_checkpoint": [
        "self", "local_path", "hdfs_path", "global_step", "max_ckpt_to_keep", "kwargs",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.load_checkpoint": [
        "self", "local_path", "hdfs_path", "del_local_after_load", "kwargs",
    ],
    "verl.utils.fsdp_utils:offload_fsdp_optimizer": ["optimizer"],
    "verl.utils.py_functional:convert_to_regular_types": ["obj"],
    "verl.checkpoint_engine:CheckpointEngineManager.wake_up_replicas": ["self"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.lr_scheduler_step": ["self"],
    "verl.workers.engine.base:BaseEngine.train_batch": ["self", "data", "loss_function"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.is_mp_src_rank_with_outputs": ["self"],
    "verl.utils.tensordict_utils:index_select_tensor_dict": ["batch", "indices"],
    "verl.utils.metric:Metric.__init__": ["self", "aggregation", "value"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._get_packed_pad_size": ["self", "packed_length"],
    "verl.utils.tensordict_utils:get_non_tensor_data": ["data", "key", "default"],
    "verl.utils.device:get_device_id": [],
    "verl.utils.device:get_device_name": [],
    "verl.workers.engine.base:EngineRegistry.register": ["model_type", "backend", "device", "vendor"],
    "verl.utils.distributed:initialize_global_process_group_ray": ["timeout_second", "backend"],
    "verl.utils.torch_functional:logprobs_from_logits_v2": ["logits", "labels"],
    "verl.plugin.platform:PlatformBase.is_platform_available": ["self", "use_smi_check"],
    "verl.plugin.platform.platform_manager:PlatformRegistry.register": ["platform"],
    # Rollout and reward.
    f"{LOOPS}:AgentLoopWorker.__init__": [
        "self", "config", "llm_client", "teacher_client", "reward_loop_worker_handles",
    ],
    f"{LOOPS}:AgentLoopManager.__init__": [
        "self", "config", "llm_client", "teacher_client", "reward_loop_worker_handles",
    ],
    f"{LOOPS}:AgentLoopManager._init_agent_loop_workers": ["self"],
    f"{LOOPS}:AgentLoopManager.generate_sequences": ["self", "prompts"],
    f"{SERVER}:run_uvicorn": ["app", "server_args", "server_address"],
    f"{SERVER}:vLLMHttpServer.run_server": ["self", "args"],
    f"{SERVER}:RLInsightLogger.enabled": [],
    "verl.experimental.reward_loop.reward_manager.base:RewardManagerBase.__init__": [
        "self", "config", "tokenizer", "compute_score",
    ],
    "verl.experimental.reward_loop.reward_manager.base:RewardManagerBase.run_single": ["self", "data"],
    "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score": ["self", "data"],
    "verl.workers.rollout.llm_server:LLMServerManager.get_replicas": ["self"],
    "verl.workers.rollout.llm_server:LLMServerClient.__init__": [
        "self", "config", "load_balancer_handle", "kwargs",
    ],
    "verl.workers.rollout.llm_server:LLMServerClient._acquire_server": ["self", "request_id", "extra"],
    "verl.workers.rollout.llm_server:LLMServerClient._release_server": ["self", "server_id", "request_id"],
    "verl.trainer.ppo.core_algos:register_policy_loss": ["name"],
    # KL in the reward.
    "verl.trainer.ppo.core_algos:kl_penalty": ["logprob", "ref_logprob", "kl_penalty"],
    "verl.trainer.ppo.core_algos:get_kl_controller": ["kl_ctrl"],
    "verl.trainer.ppo.core_algos:AdaptiveKLController.update": ["self", "current_kl", "n_steps"],
    "verl.utils.torch_functional:masked_sum": ["values", "mask", "axis"],
    "verl.utils.seqlen_balancing:karmarkar_karp": ["seqlen_list", "k_partitions", "equal_size"],
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": [
        "seqlen_list", "k_partitions", "equal_size",
    ],
    "verl.workers.rollout.router:GlobalRequestLoadBalancer.__init__": [
        "self", "servers", "max_cache_size", "full_determinism",
    ],
    "verl.workers.rollout.router:GlobalRequestLoadBalancer.require_acquire_fields": ["self"],
    "verl.workers.rollout.router:GlobalRequestLoadBalancer.require_release_fields": ["self"],
    "verl.workers.rollout.router:GlobalRequestLoadBalancer.acquire_server": ["self", "request_id"],
    "verl.workers.rollout.router:GlobalRequestLoadBalancer.release_server": [
        "self", "server_id", "request_id",
    ],
    "verl.trainer.main_ppo_v0:BaseTaskRunner.init_resource_pool_mgr": ["self", "config"],
    "verl.workers.rollout.replica:RolloutReplicaRegistry.register": ["name", "loader"],
    f"{SERVER}:vLLMHttpServer._park_until_admitted": ["self", "request_id"],
    f"{SERVER}:vLLMHttpServer.__init__": [
        "self", "config", "model_config", "rollout_mode", "workers", "replica_rank", "node_rank",
        "gpus_per_node", "nnodes", "cuda_visible_devices", "disaggregation_role",
        "disaggregation_kv_transfer_config",
    ],
    f"{SERVER}:vLLMHttpServer._get_worker_extension_cls": ["self"],
    "verl.workers.rollout.replica:RolloutReplica.get_ray_class_with_init_args": ["self"],
    # Several models: engines of each on all GPUs.
    "verl.workers.rollout.replica:RolloutReplica.init_hybrid": ["self", "worker_group"],
    f"{SERVER}:vLLMReplica.launch_servers": ["self"],
    "verl.workers.rollout.llm_server:LLMServerManager.get_client": ["self", "client_cls", "kwargs"],
    "verl.utils.ray_utils:auto_await": ["func"],
    # Sockets of the weight transfer.
    "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter.__init__": [
        "self", "config", "model_config", "device_mesh", "replica_rank",
    ],
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension._get_zmq_handle": ["self"],
    # A receiver that fails is heard.
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc": [
        "self", "peft_config", "base_sync_done", "use_shm",
    ],
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender._init_socket": ["self"],
    "verl.checkpoint_engine.base:CheckpointEngineWorker.__init__": [
        "self", "rollout_config", "model_config", "server_adapter", "args", "kwargs",
    ],
    f"{SERVER}:vLLMReplica.__init__": [
        "self", "replica_rank", "config", "model_config", "gpus_per_node", "is_reward_model",
        "is_teacher_model", "name_suffix",
    ],
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ["layer", "remove_weight"],
}  # fmt: skip
"""Parameters of the functions that are called or overridden."""

AT_LEAST: dict[str, set[str]] = {
    "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder": {
        "tokenizer",
        "model_family",
        "hf_model_type",
        "chat_template_kwargs",
    },
    # vLLM's are many, and differ between the version on CPU and the one on GPU.
    "vllm:SamplingParams": {
        "n",
        "logprobs",
        "output_kind",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "detokenize",
        "flat_logprobs",
        "stop",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "structured_outputs",
    },
    "vllm.sampling_params:StructuredOutputsParams": {"json", "regex", "choice", "grammar"},
    "vllm.lora.request:LoRARequest": {"lora_name", "lora_int_id", "lora_path"},
    "vllm:EngineArgs": {
        "model",
        "tokenizer",
        "trust_remote_code",
        "dtype",
        "tensor_parallel_size",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enforce_eager",
        "seed",
        "disable_log_stats",
        "max_loras",
        "max_cpu_loras",
    },
    "vllm.v1.engine.async_llm:AsyncLLM.from_engine_args": {"engine_args"},
    "vllm.v1.engine.async_llm:AsyncLLM.generate": {"prompt", "sampling_params", "request_id"},
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": {"request_id", "prompt", "params", "lora_request"},
    "vllm.v1.engine.async_llm:AsyncLLM.add_lora": {"lora_request"},
    "vllm.v1.engine.async_llm:AsyncLLM.remove_lora": {"lora_id"},
    "vllm.v1.engine.async_llm:AsyncLLM.abort": {"request_id"},
    "verl.checkpoint_engine.base:CheckpointEngineManager.abort_replicas": {"reject_request"},
}
"""Parameters that must be among those of a function."""

PRESENT: dict[str, type] = {
    "verl.tools.function_tool:FunctionTool": type,
    "vllm:AsyncEngineArgs": type,
    "verl.experimental.agent_loop.tool_parser:ToolParser.stop_token_ids": property,
    "verl.tools.schemas:OpenAIFunctionToolSchema": type,
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": dict,
    "verl.workers.rollout:base": object,
    "verl.single_controller.ray:RayClassWithInitArgs": type,
    "verl.utils:fs": object,
    "verl.utils.checkpoint:fsdp_checkpoint_manager": object,
    "verl.utils.fs:local_mkdir_safe": object,
    "verl.utils.checkpoint.fsdp_checkpoint_manager:local_mkdir_safe": object,
    "verl.utils.metric:AggregationType.SUM": object,
    "verl.utils.metric:AggregationType.MAX": object,
    "verl.workers.engine.fsdp.transformer_impl:prepare_micro_batches": object,
    "verl.workers.engine.fsdp.transformer_impl:CPUOffloadPolicy": type,
    "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY": dict,
    "verl.workers.utils.losses:agg_loss": object,
    "verl.checkpoint_engine.base:TensorMeta": type,
    "verl.trainer.ppo.ray_trainer:LLMServerManager": type,
    "verl.single_controller.ray:RayWorkerGroup": type,
    "verl.single_controller.base.decorator:Dispatch.ONE_TO_ALL": object,
    "verl.trainer.ppo.ray_trainer:Role.ActorRollout": object,
    "verl.trainer.ppo.ray_trainer:Role.ActorRolloutRef": object,
    "verl.workers.config:HFModelConfig.tokenizer": object,
    "verl.workers.config:HFModelConfig.processor": object,
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead": type,
    "verl.experimental.reward_loop.reward_loop:RewardLoopManager.reward_loop_worker_handles": object,
    "verl.workers.rollout.replica:RolloutReplica.server_handle": property,
    "verl.workers.rollout.replica:RolloutMode.HYBRID": object,
    "verl.workers.rollout.llm_server:LLMServerManager.create": object,
    "vllm.inputs:TokensPrompt": type,
    "vllm.sampling_params:RequestOutputKind.FINAL_ONLY": object,
    "vllm.outputs:CompletionOutput": type,
    "vllm.outputs:CompletionOutput.stop_reason": object,
    "vllm.logprobs:FlatLogprobs.logprobs": object,
    "vllm.logprobs:FlatLogprobs.token_ids": object,
    "vllm.config:ModelConfig.max_logprobs": object,
    "vllm.config:ModelConfig.get_vocab_size": object,
    "vllm.config:VllmConfig.lora_config": object,
    "verl.workers.rollout.vllm_rollout.utils:VLLM_LORA_INT_ID": int,
    "verl.workers.rollout.vllm_rollout.vllm_rollout:BucketedWeightSender": type,
    "vllm.v1.engine.output_processor:RequestOutputCollector.get": object,
    "vllm.v1.engine.exceptions:EngineDeadError": type,
    "vllm.v1.engine.async_llm:AsyncLLM.check_health": object,
    "vllm.v1.engine.async_llm:AsyncLLM.is_sleeping": object,
    "vllm.v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens": object,
    # rollout_server.forced_tokens: the engine's grammars, compiled once more.
    "vllm.config:VllmConfig.structured_outputs_config": object,
    "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.compile_grammar": object,
    "vllm.v1.structured_output.backend_xgrammar:validate_xgrammar_grammar": object,
    "vllm.v1.structured_output.request:get_structured_output_key": object,
    "verl.single_controller.ray:RayWorkerGroup.workers": property,
}
"""Classes and attributes without parameters to compare."""

FINGERPRINTS: dict[str, tuple[str, str]] = {
    f"{TRAINER}.fit": ("583a54dd5f5f41e2", "trainer.RayMarsRLTrainer.fit_step follows its order"),
    f"{TRAINER}.init_workers": (
        "466ca3fdc15bb814",
        "rollout_pool.engines_placed replaces the name LLMServerManager while it runs",
    ),
    "verl.workers.rollout.llm_server:LLMServerManager._initialize_llm_servers": (
        "920da97786a51869",
        "rollout_pool.OwnPoolServerManager relies on: no worker group, a pool for every engine",
    ),
    "verl.workers.rollout.replica:RolloutReplica.init_hybrid": (
        "d469a6d94422ec04",
        "server.MarsRLvLLMReplica.init_hybrid takes its workers by another number",
    ),
    "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights": (
        "dc0d9c09c974b407",
        "workers.MarsRLActorRolloutRefWorker calls it for each of several models, awake one after another",
    ),
    f"{SERVER}:vLLMHttpServer._resolve_sleep_level": (
        "f8954d5987a50c01",
        "engine_trainer.EngineTrainer._sleep_engine relies on level 1 for adapters",
    ),
    "verl.checkpoint_engine.base:CheckpointEngineManager.update_weights": (
        "8a30b80cbaae4baa",
        "trainer.RayMarsRLTrainer._fit_update_weights; between two pools cpu.weight_sync follows its order",
    ),
    "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": (
        "a8622dbd0f1c9db7",
        "workers.MarsRLActorRolloutRefWorker relies on its tests of `role`, and wraps the actor's loss_fn",
    ),
    f"{TRAINER}._update_actor": ("dda3ac857da10533", "policy_trainer.PolicyTrainer._update_policy"),
    f"{TRAINER}._validate": ("5dc498e75f56f157", "trainer.RayMarsRLTrainer._evaluate"),
    f"{TRAINER}._save_checkpoint": (
        "28005868cd2dd4e4",
        "trainer.RayMarsRLTrainer._save_checkpoint relies on the tracker file being written last",
    ),
    f"{TRAINER}._load_checkpoint": (
        "22cf7f189f151f6f",
        "trainer.RayMarsRLTrainer._load_checkpoint relies on global_steps, and on 0 from scratch",
    ),
    f"{RUNNER}.add_actor_rollout_worker": (
        "4c13767c6b97adeb",
        "task_runner.MarsRLTaskRunner.add_actor_rollout_worker",
    ),
    "verl.trainer.main_ppo:run_ppo": (
        "88a4e389fd67364e",
        "environment.over_verls_variables: what it says to Ray's workers",
    ),
    "verl.trainer.main_ppo_v0:TaskRunner.run": (
        "a553b5d259a9a754",
        "task_runner.MarsRLTaskRunner.build_trainer follows its order",
    ),
    f"{LOOPS}:AgentLoopManager.generate_sequences": (
        "d54ced029941c532",
        "rollout_manager.MarsRLAgentLoopManager.generate",
    ),
    f"{SERVER}:vLLMHttpServer.generate": (
        "7b58bdeeaaed61cf",
        "rollout_server.MarsRLvLLMServer.generate_group: the same admission, then one call for a group",
    ),
    f"{SERVER}:vLLMHttpServer.run_server": (
        "f2bacfa4905e5726",
        "rollout_server.MarsRLvLLMServer.run_server replaces the `run_uvicorn` that ends it",
    ),
    f"{SERVER}:vLLMHttpServer._park_until_admitted": (
        "c565ea300452ee34",
        "rollout_server.MarsRLvLLMServer.generate_group gives back the admission it counts",
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lora_module": (
        "80b5780ae9619869",
        "adapter_engine.AdapterFSDPEngine._build_lora_module: as it, an adapter for each policy",
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_model_optimizer": (
        "2bae5dbde1930276",
        "adapter_engine.AdapterFSDPEngine relies on: adapters, FSDP, optimizer, schedule",
    ),
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint": (
        "726cd82e4046d085",
        "adapter_engine.PerAdapter stands in for its optimizer and schedule",
    ),
    "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint": (
        "9038727b0a965c99",
        "adapter_engine.PerAdapter likewise",
    ),
    f"{SERVER}:vLLMHttpServer.launch_server": (
        "1d5134f8fa1343de",
        "server.MarsRLvLLMServer.run_server changes the number of adapters that it sets",
    ),
    "verl.workers.engine_workers:TrainingWorker.train_mini_batch": (
        "3cc1cbfc5c1ab838",
        "policy_trainer.PolicyTrainer._update_policy names the mini-batches it cuts",
    ),
    "verl.workers.utils.losses:ppo_loss": (
        "3b76cb0b848481c9",
        "batch.PolicyBatch and rank_rows provide the columns and normalisers it reads; policy_loss replaces "
        "the name agg_loss while it runs",
    ),
    "verl.trainer.ppo.core_algos:agg_loss": (
        "f64efb504103d267",
        "policy_loss._averaged_over_turns stands in for it, in policy losses, entropy bonus and KL term; "
        "losses.inputs.mean_loss is its counterpart without verl",
    ),
    "verl.trainer.ppo.ray_trainer:apply_kl_penalty": (
        "239cbfa7383c55f0",
        "reward_kl.RewardKL.penalize is the same on packed rows",
    ),
    "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_outcome_advantage": (
        "6e1bfdf5feb23ad8",
        "core.credit.advantages.reinforce_plus_plus is the same on packed rows",
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": (
        "070ba014533cea3a",
        "cpu.ranks replaces the name CPUOffloadPolicy",
    ),
    "verl.utils.fsdp_utils:apply_fsdp2": (
        "ecab175bda57b717",
        "fused_head._head_in_the_root_unit replaces the name _select_fsdp2_wrap_targets while it runs",
    ),
    "verl.models.transformers.dense_common:forward_with_torch_backend": (
        "1416c148b01e98e3",
        "fused_head.FusedHeadFSDPEngine: it reads lm_head.weight in the model's own call",
    ),
    "verl.utils.experimental.torch_functional:FusedLinearForPPO.forward": (
        "148699c84474e10e",
        "fused_head.FusedHeadFSDPEngine replaces the name FusedLinearForPPOFunction",
    ),
    "verl.utils.experimental.torch_functional:FusedLinearForPPOFunction": (
        "c8c2c26c2a95c712",
        "fused_head.FusedLinear has its forward pass, and in the backward pass another sum",
    ),
    "verl.utils.seqlen_balancing:karmarkar_karp": ("6dad8391d9d13fba", "micro_batches replaces it"),
    "verl.utils.tensordict_utils:index_select_tensor_dict": (
        "14e3125e3636cf46",
        "micro_batches replaces it",
    ),
    "verl.utils.distributed:initialize_global_process_group_ray": (
        "285ca954ecfcb7b4",
        "cpu.ranks.initialize_gloo goes before it",
    ),
    "verl.utils.torch_functional:logprobs_from_logits_v2": (
        "60bca979f96b2200",
        "fused_head replaces it",
    ),
}
"""Upstream code that we rewrote or whose inner order we rely on: hash of its source, and our counterpart."""

VLLM_FINGERPRINTS: dict[str, tuple[str, str]] = {
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": (
        "d3e3828fdb3a9c68",
        "cpu.vllm_linear replaces it",
    ),
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod.process_weights_after_loading": (
        "3fd59b848457b52e",
        "cpu.vllm_linear: the place where it is called",
    ),
    f"{EXPERTS}.__init__": ("1b1b01e724e77e4b", "cpu.vllm_linear: the place where both are called"),
    f"{EXPERTS}.check_grouped_gemm": ("18981e17ca4fd68e", "cpu.vllm_linear replaces it"),
    f"{EXPERTS}._pad_moe_intermediate_for_grouped_gemm": ("195737ece3b25db4", "cpu.vllm_linear replaces it"),
    f"{EXPERTS}.init_moe_torch": ("6774db758ec8554a", "cpu.vllm_linear: it multiplies with the live weights"),
}
"""The same for vLLM's CPU build; a GPU machine has another version."""
