"""An evaluation alone: engines, rollout and reward workers, and nothing that trains."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.config import HFModelConfig

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.models import adapters, models
from marsrl_verl.core.policy import SHARED
from marsrl_verl.core.request import Problem
from marsrl_verl.evaluation.suite import ALONE
from marsrl_verl.reporting.answer_journal import AnswerJournal, JournaledEngine
from marsrl_verl.rollout.engine import RolloutEngine
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.checkpoint.trained_weights import checkpoint_step, merge_models, read_adapters
from marsrl_verl.verl_adapter.components import build_prompts, sampling_settings
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import give_adapter, start_engines
from marsrl_verl.verl_adapter.rollout_server.server import register_replica
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts
from marsrl_verl.verl_adapter.trainer.problem_stream import problems_of
from marsrl_verl.verl_adapter.trainer.tracking import start_tracking

_ANSWERING = ("algo", "roles", "policies", "reward", "tools")
JOURNAL = "evaluations/answers.jsonl"
"""In the run's folder, until the evaluation is done."""


class SystemEvaluator:
    """Evaluates the method's system on engines that take all GPUs of the run.

    Args:
        config: of a run with `trainer.val_only`; `trainer.resume_from_path` names a checkpoint, else the
            models are evaluated as they begin.
    """

    def __init__(self, config: DictConfig) -> None:
        OmegaConf.resolve(config)
        register_replica()
        self.config, self.settings = config, typed_settings(config)
        self.observer = TrainingObserver(config, self.settings, 0)
        self._watch: EngineWatch | None = None
        self._journal: AnswerJournal | None = None
        trainer = config.trainer
        named = trainer.resume_mode == "resume_path"
        self._checkpoint = Path(trainer.resume_from_path) if named else None
        self.step = 0 if self._checkpoint is None else checkpoint_step(self._checkpoint)

    def run(self) -> None:
        """Starts everything, evaluates the held-out problems, writes the report."""
        with stop_signals.deferred():
            problems = held_out_problems(self.config)
            self.observer.begin(self.step)
            tracking = start_tracking(self.config)
            self._journal = AnswerJournal(self.observer.folder.path / JOURNAL, self._whose())
            engine = JournaledEngine(self._start(), self._journal)
            prompts, sampling = build_prompts(self.settings), sampling_settings(self.settings)
            means = self.observer.evaluate(engine, problems, prompts, sampling, ALONE, self.step)
            if engine.taken:
                self.observer.say([f"{engine.taken} answers were there already, of the same evaluation"])
            if self.config.trainer.logger:
                tracking.log({f"val/{name}": mean for name, mean in means.items()}, step=self.step)
            self.observer.finish_evaluation(self.step)
            self._journal.remove()

    def _whose(self) -> str:
        """All that answers and their grades depend on beside the requests and their sampling, for the
        journal: another number of samples keeps those that are there."""
        node, own = self.config.actor_rollout_ref, self.config.marsrl
        parts = {name: OmegaConf.to_container(own[name]) for name in _ANSWERING}
        of = [node.model.path, models(node.rollout), str(self._checkpoint), own.run.seed, parts]
        return json.dumps(of, sort_keys=True, default=str)

    def _start(self) -> RolloutEngine:
        run, settings = self.settings.run, self.settings
        adapted: dict[str, dict[str, bytes]] = {}
        replicas: Sequence[Any] = ()
        client = None
        if set(settings.roles) - set(settings.frozen_roles):
            adapted = self._choose_weights()
            servers = start_engines(self.config)
            replicas, client = servers.get_replicas(), servers.get_client()
        self._watch = EngineWatch([one.server_handle for one in replicas], run.engine_timeout_s)
        for policy, files in adapted.items():
            give_adapter(replicas, policy, files, self.step)
        rewards = RewardLoopManager(config=self.config, rm_resource_pool=None)
        manager: MarsRLAgentLoopManager = MarsRLAgentLoopManager.create(
            config=self.config,
            llm_client=client,
            reward_loop_worker_handles=rewards.reward_loop_workers,
        )
        manager.watch(self._watch, run.progress_timeout_s)
        self.observer.note_tools(manager.tools)
        return manager

    def _choose_weights(self) -> dict[str, dict[str, bytes]]:
        """Has engines load what is evaluated; returns the files of adapters by policy."""
        node, checkpoint = self.config.actor_rollout_ref, self._checkpoint
        own_adapters, own_models = adapters(node.rollout), models(node.rollout)
        with open_dict(self.config):
            node.rollout.load_format, node.rollout.free_cache_engine = "auto", False
            # verl wants to know of an engine's own nodes where no worker trains.
            node.rollout.nnodes = self.config.trainer.nnodes
            node.rollout.n_gpus_per_node = self.config.trainer.n_gpus_per_node
            if checkpoint is None:
                if own_adapters:  # they begin as no change of the model
                    node.model.lora_rank = 0
                    node.rollout.custom.adapters, node.rollout.custom.unadapted = [], list(own_adapters)
                return {}
            if own_adapters:
                return read_adapters(checkpoint, own_adapters)
            begun = time.monotonic()
            merged = merge_models(
                checkpoint,
                self.observer.folder.path / "weights",
                tuple(own_models) or (SHARED,),
                str(node.rollout.dtype),
                trust_remote_code=bool(node.model.get("trust_remote_code")),
            )
            self.observer.say([f"weights of {checkpoint} merged in {time.monotonic() - begun:.0f} s"])
            node.model.tokenizer_path = node.model.get("tokenizer_path") or node.model.path
            node.model.hf_config_path = None
            node.model.path = str(next(iter(merged.values())))
            node.rollout.custom.models = {name: str(merged[name]) for name in own_models}
        return {}

    def close(self) -> None:
        """Ends the engines and the observer's files, also after an error."""
        if self._watch is not None:
            self._watch.kill()
        if self._journal is not None:
            self._journal.close()
        self.observer.close()


def held_out_problems(config: DictConfig) -> list[Problem]:
    """The problems of `data.val_files`, as verl's dataset reads them."""
    model: HFModelConfig = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    data: Any = config.data.copy()  # verl's dataset writes into it
    OmegaConf.set_struct(data, False)
    # Upstream behaviour: it measures the dataset's own chat against the longest prompt of any role.
    data.filter_overlong_prompts = False
    limit = config.data.get("val_max_samples", -1)
    dataset = create_rl_dataset(
        config.data.val_files, data, model.tokenizer, model.processor, is_train=False, max_samples=limit
    )
    if config.data.filter_overlong_prompts:
        filter_overlong_prompts(dataset, config, model.tokenizer, "val")
    return problems_of(collate_fn([dataset[number] for number in range(len(dataset))]), 0, "v")


def evaluate(config: DictConfig) -> None:
    """Evaluate as `config` says; returns when the report is written."""
    evaluator = SystemEvaluator(config)
    try:
        evaluator.run()
    finally:
        evaluator.close()
