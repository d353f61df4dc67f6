"""An evaluation alone: engines, rollout and reward workers, and nothing that trains."""

from __future__ import annotations

from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.config import HFModelConfig

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.request import Problem
from marsrl_verl.evaluation.suite import ALONE
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.components import build_prompts, sampling_settings
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import GroupServerManager
from marsrl_verl.verl_adapter.rollout_server.server import register_replica
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts
from marsrl_verl.verl_adapter.trainer.problem_stream import problems_of
from marsrl_verl.verl_adapter.trainer.tracking import start_tracking


class SystemEvaluator:
    """Evaluates the method's system on engines that take all GPUs of the run."""

    def __init__(self, config: DictConfig) -> None:
        OmegaConf.resolve(config)
        register_replica()
        give_all_gpus(config)
        self.config, self.settings = config, typed_settings(config)
        self.prompts, self.sampling = build_prompts(self.settings), sampling_settings(self.settings)
        self.observer = TrainingObserver(config, self.settings, 0)
        self._watch: EngineWatch | None = None

    def run(self) -> None:
        """Starts everything, evaluates the held-out problems, writes the report."""
        with stop_signals.deferred():
            problems = held_out_problems(self.config)
            self.observer.begin(0)
            tracking = start_tracking(self.config)
            engine = self._start()
            means = self.observer.evaluate(engine, problems, self.prompts, self.sampling, ALONE, 0)
            if self.config.trainer.logger:
                tracking.log({f"val/{name}": mean for name, mean in means.items()}, step=0)
            self.observer.finish_evaluation(0)

    def _start(self) -> MarsRLAgentLoopManager:
        servers = GroupServerManager.create(self.config)
        rewards = RewardLoopManager(config=self.config, rm_resource_pool=None)
        manager: MarsRLAgentLoopManager = MarsRLAgentLoopManager.create(
            config=self.config,
            llm_client=servers.get_client(),
            reward_loop_worker_handles=rewards.reward_loop_workers,
        )
        run = self.settings.run
        handles = [replica.server_handle for replica in servers.get_replicas()]
        self._watch = EngineWatch(handles, run.engine_timeout_s)
        manager.watch(self._watch, run.progress_timeout_s)
        self.observer.note_tools(manager.tools)
        return manager

    def close(self) -> None:
        """Ends the engines and the observer's files, also after an error."""
        if self._watch is not None:
            self._watch.kill()
        self.observer.close()


def give_all_gpus(config: DictConfig) -> None:
    """Have engines load their weights from the model's folder, and take what would train otherwise."""
    rollout = config.actor_rollout_ref.rollout
    with open_dict(config):
        rollout.load_format, rollout.free_cache_engine = "auto", False
        if int(rollout.nnodes) == 0:
            rollout.nnodes, rollout.n_gpus_per_node = config.trainer.nnodes, config.trainer.n_gpus_per_node


def held_out_problems(config: DictConfig) -> list[Problem]:
    """The problems of `data.val_files`, as verl's dataset reads them."""
    model: HFModelConfig = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    data: Any = config.data.copy()  # verl's dataset writes into it
    OmegaConf.set_struct(data, False)
    data.filter_overlong_prompts = False
    dataset = create_rl_dataset(
        config.data.val_files, data, model.tokenizer, model.processor, is_train=False,
        max_samples=config.data.get("val_max_samples", -1),
    )  # fmt: skip
    if config.data.filter_overlong_prompts:
        filter_overlong_prompts(dataset, config, model.tokenizer, "val")
    rows = collate_fn([dataset[number] for number in range(len(dataset))])
    limit = config.marsrl.evaluation.problems
    return problems_of(rows, 0, "v")[:limit]


def evaluate(config: DictConfig, session: Any = None) -> None:
    evaluator = SystemEvaluator(config)
    try:
        evaluator.run()
    finally:
        evaluator.close()
        ray.shutdown()
