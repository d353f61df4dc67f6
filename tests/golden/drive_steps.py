"""Drives the project's classes for the golden traces.

The trainer's own steps, on scripted tokens and scripted workers: requests go through the rollout runner, its
programs and conversations, the scheduler, the method, and the trainer's batches, masks, advantages and
off-policy correction. What the workers are sent to train is what a trace says was trained.

This module, `read_steps` and `scripted_workers` alone know the classes: where these change, they are ported,
and the traces stay.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import scripted_answers as scripted
from omegaconf import OmegaConf
from read_steps import ENDED, read_batch, read_completed, read_loss, read_pools, read_trained
from scenarios import RANKS, SEED, STEPS, Scenario
from scheduler_tools import ShortPrompts
from scripted_workers import GoldenEngine, GoldenWorkers

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.node import read_settings
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.request import Problem
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.settings.watch import Action
from marsrl_verl.verl_adapter.components import (
    build_method,
    build_scheduler,
    build_watch,
    role_policies,
    sampling_settings,
)
from marsrl_verl.verl_adapter.rollout_server.generation import Generation
from marsrl_verl.verl_adapter.trainer.trainer import RayMarsRLTrainer

PRESETS = Path(__file__).resolve().parents[2] / "configs" / "algo"


# --- settings ---------------------------------------------------------------------------------


def settings_of(scenario: Scenario) -> MarsRLConfig:
    """The `marsrl` node: the preset's, then the scenario's keys."""
    node = OmegaConf.merge(*_preset_parts(scenario.preset))
    for key, value in scenario.settings.items():
        OmegaConf.update(node, key, value)
    limits = {"solver": scenario.prompt_limit, "corrector": 2 * scenario.prompt_limit}
    for role in method_class(node.algo.name).roles:
        most = {"max_new_tokens": scenario.new_tokens, "max_prompt_tokens": limits.get(role, 10_000)}
        OmegaConf.update(node, f"roles.{role}", most)
        OmegaConf.update(node, f"reward.{role}.target", "unused")  # the scripted engine scores
    OmegaConf.update(node, "run.seed", SEED)
    if scenario.external_solver:
        OmegaConf.update(node, "policies.external", {"kind": "jsonl"})
        OmegaConf.update(node, "roles.solver.policy", "external")
    return read_settings(OmegaConf.to_container(node))


def _preset_parts(name: str) -> Iterable[Any]:
    """The `marsrl` nodes of a preset's file and of those it is built on, the deepest first."""
    loaded = OmegaConf.load(PRESETS / f"{name}.yaml")
    for other in loaded.get("defaults", ()):
        if other != "_self_":
            yield from _preset_parts(other)
    yield loaded.marsrl


# --- the trainer ------------------------------------------------------------------------------


@dataclass
class NumberedProblems:
    """The problems of `scripted_answers` without end; as `ProblemStream`."""

    taken: int = 0
    epoch: int = 0

    def take(self, count: int, admits: Any) -> list[Problem]:
        numbers = range(self.taken, self.taken + count)
        self.taken += count
        return [
            Problem(f"p{at}", scripted.problem_question(at), scripted.problem_truth(at)) for at in numbers
        ]

    def state_dict(self) -> int:
        return self.taken

    def load_state_dict(self, state: int) -> None:
        self.taken = state


def trainer_config(scenario: Scenario) -> Any:
    """What the trainer reads of verl's configuration."""
    actor = {
        "use_dynamic_bsz": True, "ppo_epochs": 1, "calculate_entropy": False, "entropy_coeff": 0.0,
        "data_loader_seed": 1, "shuffle": False,
    }  # fmt: skip
    return OmegaConf.create(
        {
            "trainer": {"save_freq": -1, "logger": []},
            "data": {"train_batch_size": scenario.problems},
            "actor_rollout_ref": {
                "rollout": {"free_cache_engine": False, "temperature": 1.0},
                "actor": actor,
            },
        }
    )


BATCH_METRICS = ("batch/rows", "batch/updates", "batch/padding_rows", "batch/tokens")
ADVANTAGE_METRICS = (
    "batch/advantage_mean",
    "batch/advantage_min",
    "batch/advantage_max",
    "batch/samples_with_advantage_frac",
    "batch/tokens_with_advantage_frac",
)


class GoldenTrainer(RayMarsRLTrainer):
    """The trainer without verl's workers, data and files.

    Args:
        scenario: what is run.
        order_seed: of the order in which groups come back; None: that of the requests.
        rounds: by step, what the engine was asked already.
    """

    def __init__(
        self, scenario: Scenario, order_seed: int | None, rounds: dict[int, list[list[str]]]
    ) -> None:
        self.scenario, self.rounds = scenario, rounds
        self.config, self.settings = trainer_config(scenario), settings_of(scenario)
        self.policies = role_policies(self.settings)
        self.async_rollout_manager = GoldenEngine(
            scenario,
            rounds,
            lambda: self.scheduler.open_step,
            seed=order_seed,
            policies=self.policies,
            settings=self.settings,
        )
        chat = self.async_rollout_manager.chat
        self.method = build_method(self.settings, ShortPrompts(), chat, scenario.problems)
        self.scheduler = build_scheduler(self.settings, self.method)
        self.generation = Generation(
            self.scheduler,
            self.async_rollout_manager,
            sampling_settings(self.settings),
            before_round=self._fit_update_weights,
            after_round=self._fit_run_probes,
        )
        self.problems = NumberedProblems()
        self.skipped = SimpleNamespace(look=lambda result: None)
        self.workers = GoldenWorkers(self.policies.version)
        self.observer = SimpleNamespace(
            rollouts=self._note,
            describe=lambda result, trains: {},
            record=lambda step, metrics, timing: None,
            say=lambda lines: None,
        )
        self.overlaps = self.settings.pipeline.overlap == "one_step"
        self.use_reference_policy = False
        self.total_training_steps = STEPS
        self.settings.watch.nothing_trained = Action.WARN  # a trace has its steps, whatever they train
        self.watch, self.changed_in = build_watch(self.settings), {}
        self.global_steps, self.generated_tokens, self.tool_calls, self.samples = 0, 0, 0, 0
        self.engine_versions = {}
        self.metrics, self.timing = {}, {}
        self.result: StepResult | None = None
        """Of the step, and"""
        self.batch: Any = None
        """its rows; None without an update."""
        self.method_metrics: dict[str, float] = {}

    def _note(self, step: int, result: StepResult, trained: Any, record: Any) -> None:
        self.result = result

    def _fit_build_batch(self, result: StepResult) -> Any:
        before = set(self.metrics)
        self.batch, self.workers.sent = super()._fit_build_batch(result), None
        self.method_metrics = {
            name: value
            for name, value in self.metrics.items()
            if name not in before and name not in BATCH_METRICS
        }
        return self.batch

    def _workers(self, policy: str) -> GoldenWorkers:
        return self.workers

    def _get_dp_size(self, worker_group: Any, role: str) -> int:
        return RANKS

    def _send_weights(self, policy: str, version: int) -> None:
        self.async_rollout_manager.update_weights(version)


class GoldenRun:
    """A run of a scenario, step by step.

    Args:
        scenario: what is run.
        order_seed: of the order in which groups come back; None: that of the requests.
    """

    def __init__(self, scenario: Scenario, order_seed: int | None) -> None:
        self.scenario, self.order_seed = scenario, order_seed
        self.trainer = GoldenTrainer(scenario, order_seed, {})

    def take_step(self, *, last: bool = False) -> dict[str, Any]:
        """One training step; what it did as a step of the trace."""
        trainer = self.trainer
        trainer.global_steps += 1
        trainer.fit_step()
        result, batch, sent = trainer.result, trainer.batch, trainer.workers.sent
        metrics = trainer.metrics
        assert result is not None
        return {
            "step": trainer.global_steps,
            "rounds": trainer.rounds.pop(trainer.global_steps, []),
            "completed": [read_completed(group) for group in result.completed],
            "trained": [read_trained(group) for group in result.trained],
            **read_batch(batch, sent),
            **(read_loss(batch, sent) if self.scenario.loss else {}),
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in result.ended],
            "counts": {
                "rounds": metrics["rollout/rounds"],
                "samples": metrics["rollout/samples"],
                "tokens": metrics["rollout/generated_tokens"],
                "continued_tokens": metrics["rollout/continued_tokens"],
                **read_pools(result),
            },
            "metrics": {
                **trainer.method_metrics,
                **(
                    {
                        **{name: metrics[name] for name in ADVANTAGE_METRICS if name in metrics},
                        **training_metrics(result.completed, type(trainer.method)),
                    }
                    if last
                    else {}
                ),
            },
        }

    def drop_rest(self) -> dict[str, Any]:
        """What the end of a run makes of everything that waits."""
        scheduler = self.trainer.scheduler
        dropped = scheduler.drop_waiting()
        scheduler.start_step(self.trainer.global_steps + 1, [])
        ended = scheduler.finish_step(last=True).ended
        return {
            "dropped": [item.group_id for item in dropped],
            "ended": [[end.problem_id, end.stage, ENDED[end.reason]] for end in ended],
        }

    def reload(self) -> None:
        """Saves everything as a checkpoint does, and goes on with fresh objects."""
        self.trainer._fit_collect_round()
        state = pickle.loads(pickle.dumps(self.trainer.plugin_state()))
        self.trainer = GoldenTrainer(self.scenario, self.order_seed, self.trainer.rounds)
        self.trainer.global_steps = state["step"]
        self.trainer.load_plugin_state(state)
