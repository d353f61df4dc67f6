"""One check per symbol of verl and vLLM that the adapter touches: shows at once what an upgrade breaks."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

from verl.checkpoint_engine import CheckpointEngineManager
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.plugin.platform import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.trainer.main_ppo_v0 import BaseTaskRunner
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplicaRegistry


def parameters(function) -> list[str]:
    names = inspect.signature(inspect.unwrap(function)).parameters
    return [name for name in names if name != "_ray_trace_ctx"]  # added by Ray's decorator


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (RayPPOTrainer._compute_old_log_prob, ["self", "batch"]),
        (RayPPOTrainer._compute_ref_log_prob, ["self", "batch"]),
        (RayPPOTrainer._update_actor, ["self", "batch"]),
        (RayPPOTrainer._save_checkpoint, ["self"]),
        (RayPPOTrainer._load_checkpoint, ["self"]),
        (RayPPOTrainer._get_dp_size, ["self", "worker_group", "role"]),
        (RayPPOTrainer._validate, ["self", "merged"]),
        (RayPPOTrainer.init_workers, ["self"]),
        (RayPPOTrainer._shutdown_dump_executor, ["self"]),
        (
            AgentLoopWorker.__init__,
            ["self", "config", "llm_client", "teacher_client", "reward_loop_worker_handles"],
        ),
        (
            AgentLoopManager.__init__,
            ["self", "config", "llm_client", "teacher_client", "reward_loop_worker_handles"],
        ),
        (AgentLoopManager.generate_sequences, ["self", "prompts"]),
        (RewardManagerBase.__init__, ["self", "config", "tokenizer", "compute_score"]),
        (RewardManagerBase.run_single, ["self", "data"]),
        (RewardLoopWorker.compute_score, ["self", "data"]),
        (LLMServerClient._acquire_server, ["self", "request_id", "extra"]),
        (LLMServerClient._release_server, ["self", "server_id", "request_id"]),
        (CheckpointEngineManager.update_weights, ["self", "global_steps"]),
        (CheckpointEngineManager.sleep_replicas, ["self"]),
        (TrainingWorker.__init__, ["self", "config"]),
        (BaseTaskRunner.add_actor_rollout_worker, ["self", "config"]),
        (BaseTaskRunner.init_resource_pool_mgr, ["self", "config"]),
        (EngineRegistry.register, ["model_type", "backend", "device", "vendor"]),
        (RolloutReplicaRegistry.register, ["name", "loader"]),
        (PlatformRegistry.register, ["platform"]),
    ],
)
def test_signature_is_the_one_the_adapter_was_written_for(function, expected):
    assert parameters(function) == expected


def test_trainer_constructor_takes_what_the_task_runner_passes():
    needed = {
        "config", "tokenizer", "processor", "role_worker_mapping", "resource_pool_manager",
        "ray_worker_group_cls", "train_dataset", "val_dataset", "collate_fn", "train_sampler",
    }  # fmt: skip
    assert needed <= set(parameters(RayPPOTrainer.__init__))


def test_agent_loop_manager_lets_a_subclass_choose_the_worker_class():
    source = inspect.getsource(AgentLoopManager.__init__)
    assert 'if not hasattr(self, "agent_loop_workers_class")' in source


def test_trainer_takes_the_agent_loop_manager_from_the_configuration():
    assert "agent_loop_manager_class" in inspect.getsource(RayPPOTrainer.init_workers)


def test_reward_worker_hands_the_batch_to_run_single_without_a_reward_model():
    assert "self.reward_manager.run_single(data)" in inspect.getsource(RewardLoopWorker.compute_score)
    assert hasattr(RewardLoopManager, "reward_loop_worker_handles")


def test_hybrid_worker_has_swappable_training_workers():
    assert ActorRolloutRefWorker.actor_worker_cls is TrainingWorker
    assert ActorRolloutRefWorker.ref_worker_cls is TrainingWorker


def test_worker_takes_a_number_of_mini_batches():
    source = inspect.getsource(inspect.unwrap(TrainingWorker.train_mini_batch))
    assert 'key="num_mini_batch"' in source


def test_replica_class_is_looked_up_by_name_when_servers_start():
    assert "get_rollout_replica_class" in inspect.getsource(LLMServerManager.__init__)


def test_platform_interface_is_the_one_the_cpu_platform_answers():
    assert PlatformBase.__abstractmethods__ == {
        "device_name", "vendor_name", "device_module", "is_available", "current_device", "device_count",
        "set_device", "synchronize", "manual_seed", "manual_seed_all", "set_allocator_settings",
        "empty_cache", "get_device_capability", "communication_backend_name", "visible_devices_envvar",
        "nvtx_range", "profiler_start", "profiler_stop", "ray_resource_name", "ray_noset_envvars",
        "is_ipc_supported", "cudart",
    }  # fmt: skip
