"""Work of a step on its policies' workers: probes, rows, log-probabilities, advantages, updates."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from marsrl_verl.config.batching import optimizer_updates
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.method import Method, Probe, observe_step, trained_rows
from marsrl_verl.core.policy import PolicySet
from marsrl_verl.core.rows import (
    ADVANTAGES,
    ENTROPIES,
    LOSS_WEIGHTS,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    STEP_COLUMNS,
    Rows,
)
from marsrl_verl.core.schedule import StepView
from marsrl_verl.core.scheduler import Scheduler, StepResult
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, TURN
from marsrl_verl.evaluation.advantages import entropy_metrics, set_advantages
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.watch import Action
from marsrl_verl.verl_adapter.engine.batch import BatchLayout, PolicyBatch, StepBatch, arrange
from marsrl_verl.verl_adapter.engine.policy_loss import (
    COLUMN,
    MEAN_KEY,
    SPEC_KEY,
    divided_shares,
    register_loss,
)
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import SHARE_KEY, computed_tokens
from marsrl_verl.verl_adapter.trainer.engine_trainer import EngineTrainer
from marsrl_verl.verl_adapter.trainer.finite import (
    WEIGHTS,
    NotFiniteError,
    check_columns,
    check_probed,
    check_samples,
    not_finite,
)
from marsrl_verl.verl_adapter.trainer.loss_inputs import correct_off_policy
from marsrl_verl.verl_adapter.trainer.probes import fill_log_probs, rows_to_probe, run_probe
from marsrl_verl.verl_adapter.trainer.reward_kl import RewardKL


class PolicyTrainer(EngineTrainer):
    """The hooks of a step between its last round and the sync."""

    settings: MarsRLConfig
    method: Method
    policies: PolicySet
    scheduler: Scheduler
    global_steps: int
    metrics: dict[str, float]
    """Metrics of the current step."""
    reward_kl: RewardKL | None = None
    """KL penalties of rewards; None: there are none."""
    changed_in: dict[str, int]
    """By policy, the last step with an update of it."""
    skipped_updates: str | None = None
    """Values of the step that were not finite, if the run goes on all the same; None: there were none."""

    def init_workers(self) -> None:
        """Initializes as the engine trainer, once the method's policy loss is found."""
        if (name := self._loss.name) is not None:
            register_loss(name)  # the workers do the same when they need it
        super().init_workers()

    @contextmanager
    def _profiled(self) -> Iterator[None]:
        """Has the ranks record the step where it is one of `global_profiler.steps`, unless it fails. Upstream
        behaviour: verl's own loop, which this trainer replaces, starts and stops them."""
        steps = OmegaConf.select(self.config, "global_profiler.steps") or ()
        due = self.global_steps in steps
        self._start_profiling(due)
        yield
        later = any(self.global_steps < one <= self.total_training_steps for one in steps)
        self._stop_profiling(due, run_command=not later)  # `finish_hook_cmd` runs once

    def _fit_run_probes(self) -> None:
        """Runs the method's probes on sequences at the end of their stage; NotFiniteError if
        log-probabilities of the engine or of the pass are not finite."""
        groups = self.scheduler.completed_stages()
        check_samples(groups)
        probes = [
            (stage.name, probe)
            for stage in self.method.stages(self.method.config)
            for probe in self.method.probes(stage.name)
        ]
        for stage, probe in probes:
            if refs := rows_to_probe(groups, stage, probe):
                self._sleep_engine()  # the pass needs the memory
                with self._timed("probe"):
                    # A measure may read whole rows. Else the pass is cut as the update is, so that both
                    # compute alike.
                    share = self.settings.training.share_prefixes and probe.shares_prefixes
                    layout_of = functools.partial(self._batch_layout, share=share)
                    for part in arrange(groups, refs, layout_of).parts:
                        self._run_probe(probe, part)

    def _run_probe(self, probe: Probe, part: PolicyBatch) -> None:
        workers, version = self._workers(part.policy), self.policies.version(part.policy)
        run_probe(probe, part, workers.compute_log_prob, temperature=self._temperatures, version=version)
        check_probed(part)

    def _due_policies(self) -> frozenset[str]:
        """The policies that this step trains."""
        trained, named = frozenset(self.policies.trained), self.method.schedule.trained(self.global_steps)
        if named.policies is None:
            return trained
        if unknown := sorted(named.policies - self.policies.names):
            raise ValueError(
                f"{type(self.method.schedule).__name__}.trained names the policies {unknown}, expected some "
                f"of {sorted(trained)}"
            )
        return trained & named.policies

    def _fit_build_batch(self, result: StepResult) -> StepBatch | None:
        """The rows of the step in the order of the ranks; None when nothing trains."""
        refs = trained_rows(self.method, result.trained, self.global_steps)
        recorded = self.settings.off_policy.mode is OffPolicyMode.RECORDED
        annotations = [name for name in self._loss_columns if name not in STEP_COLUMNS]
        annotations += [RECORDED_LOG_PROBS, RECORDED_ENTROPIES] if recorded else []
        batch = arrange(
            result.trained,
            refs,
            functools.partial(self._batch_layout, share=self.settings.training.share_prefixes),
            lambda rows: optimizer_updates(self.settings.pipeline, rows),
            tuple(dict.fromkeys(annotations)),
        )
        view = StepView(batch.rows, result.ended, result.deferred)
        self.metrics.update(observe_step(self.method, view))
        if not refs:
            return None
        epochs = int(self.config.actor_rollout_ref.actor.ppo_epochs)
        self.metrics["batch/rows"] = len(batch.rows)
        self.metrics["batch/updates"] = sum(part.updates for part in batch.parts) * epochs
        self.metrics["batch/padding_rows"] = sum(part.padding for part in batch.parts)
        self.metrics["batch/tokens"] = batch.tokens
        return batch

    @property
    def _loss(self) -> LossSpec:
        """The method's policy loss."""
        return self.method.Credit.loss(self.method.config)

    @property
    def _loss_columns(self) -> tuple[str, ...]:
        """Columns of the response tokens that the loss reads beside those that verl's losses read."""
        turns = (TURN,) if self.settings.training.loss_mean is not None else ()
        return tuple(dict.fromkeys((*self._loss.columns, *turns)))

    def _batch_layout(self, policy: str, *, share: bool) -> BatchLayout:
        actor = self.config.actor_rollout_ref.actor
        # With a fixed micro-batch size verl wants every rank's rows to be a multiple of it.
        by_tokens = actor.use_dynamic_bsz or share
        return BatchLayout(
            ranks=self._get_dp_size(self._workers(policy), "actor"),
            seed=self.settings.run.seed,
            step=self.global_steps,
            micro_batch_rows=1 if by_tokens else int(actor.ppo_micro_batch_size_per_gpu),
            share_prefixes=share,
        )

    @property
    def _temperatures(self) -> dict[str, float]:
        """Temperatures by role, where requests set no other: log-probabilities are those of the distribution
        that a token was sampled from."""
        return {role: one.temperature for role, one in self.settings.roles.items()}

    def _fit_compute_log_prob(self, batch: StepBatch) -> None:
        """Log-probabilities of the rows under the weights about to be updated (POIS), and entropies. Rows for
        which the loss takes recorded ones are not computed again."""
        rows = batch.rows
        for name in (OLD_LOG_PROBS, ENTROPIES):
            rows.columns[name] = np.zeros(rows.tokens, dtype=np.float32)
        recorded = self.settings.off_policy.mode is OffPolicyMode.RECORDED
        reuse = recorded and not self.method.credit.needs_entropies
        batch.computed = np.zeros(len(rows), dtype=bool)
        with self._timed("old_log_prob"):
            for part in batch.parts:
                self._workers(part.policy).hold_rows(part.ids(self._temperatures))
                compute = functools.partial(self._log_probs_and_entropies, part)
                batch.computed |= fill_log_probs(part, compute, reuse=reuse)
        if recorded:
            self.metrics["batch/recomputed_rows"] = int(batch.computed.sum())

    def _log_probs_and_entropies(
        self, part: PolicyBatch, slots: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        data = part.columns({}, slots)
        share = {SHARE_KEY: part.plan.share_prefixes}
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, **share)
        output = self._workers(part.policy).compute_log_prob(data)
        return tu.get(output, "log_probs"), tu.get(output, "entropy")

    def _fit_compute_ref_log_prob(self, batch: StepBatch) -> None:
        """Log-probabilities under the reference policy, where rewards or the loss need them."""
        if not self.use_reference_policy:
            return
        with self._timed("ref_log_prob"):
            batch.rows.columns[REF_LOG_PROBS] = np.zeros(batch.rows.tokens, dtype=np.float32)
            for part in batch.parts:
                output = self._reference_pass(part)
                part.read(tu.get(output, "log_probs"), batch.rows.columns[REF_LOG_PROBS])

    def _reference_pass(self, part: PolicyBatch) -> TensorDict:
        options = {"calculate_entropy": False, "compute_loss": False, SHARE_KEY: part.plan.share_prefixes}
        if self.ref_in_actor:  # the model without its adapter
            data = part.columns({})
            tu.assign_non_tensor(data, no_lora_adapter=True, **options)
            return self._workers(part.policy).compute_log_prob(data)
        data = part.ids(self._temperatures)  # the reference policy's ranks may be others
        tu.assign_non_tensor(data, **options)
        return self.ref_policy_wg.compute_ref_log_prob(data)

    @property
    def cut_roles(self) -> frozenset[str]:
        """Roles that the engine samples from a part of the vocabulary: its log-probabilities of them can't be
        compared with the trainer's."""
        return self.settings.cut_roles | self.method.traits(self.method.config).grammar_roles

    def _fit_compute_advantages(self, batch: StepBatch) -> None:
        """Sets KL penalties of rewards, advantages, masks, and the probabilities with which the loss compares
        the current ones; NotFiniteError if log-probabilities or entropies are not finite."""
        rows = batch.rows
        for part in batch.parts:
            check_columns(part)
        if self.reward_kl is not None:
            self.metrics.update(self.reward_kl.penalize(rows))
        self.metrics.update(entropy_metrics(rows))
        self.metrics.update(set_advantages(rows, self.method.credit))
        newest = [self.policies.version(rows.sequence(row).policy) for row in range(len(rows))]
        versions, settings = np.array(newest, dtype=np.int32), self.settings.off_policy
        self.metrics.update(correct_off_policy(rows, settings, versions, batch.computed, self.cut_roles))

    def _fit_update_actor(self, batch: StepBatch) -> None:
        """Updates the policies; NotFiniteError if a loss, a gradient norm or weights are not finite."""
        self.skipped_updates = None
        with self._timed("update_actor"):
            for part in batch.parts:
                # With several policies each has figures of its own.
                whose = "" if len(self.policies.trained) == 1 else f"{part.policy}/"
                metrics = self._update_policy(part)
                self._refuse_not_finite(part.policy, metrics)
                self.changed_in[part.policy] = self.global_steps
                if part.plan.share_prefixes:
                    before = self.metrics.get("batch/computed_tokens", 0)
                    self.metrics["batch/computed_tokens"] = computed_tokens(metrics, part.updates) + before
                self.metrics.update({f"{whose}{name}": value for name, value in metrics.items()})

    def _refuse_not_finite(self, policy: str, metrics: dict[str, Any]) -> None:
        found = not_finite(metrics, scaled=trains_in_fp16(self.config.actor_rollout_ref.actor))
        if not found:
            return
        values = ", ".join(f"{name} = {metrics[name]}" for name in found)
        what = f"{values} in the update of policy {policy} (learning rate {metrics.get('actor/lr', '?')})"
        if WEIGHTS in found or self.settings.watch.not_finite is Action.END:
            raise NotFiniteError(policy, what, before=False)
        self.skipped_updates = what

    def _update_policy(self, part: PolicyBatch) -> dict[str, Any]:
        """verl's update of the rows that the policy's workers hold, with the mini-batches given as a count.

        Upstream behaviour: `mini_batch_size = ppo_mini_batch_size * rollout.n` must divide the rows,
        which a batch of varying size cannot promise; the worker takes `num_mini_batch` instead.
        """
        actor, mean = self.config.actor_rollout_ref.actor, self.settings.training.loss_mean
        data = part.columns(_update_columns(part.rows, self._loss_columns))
        tu.assign_non_tensor(
            data,
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
            distillation_use_topk=False,
            distillation_only=False,
            num_mini_batch=part.updates,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": actor.shuffle},
            compute_loss=True,
            **{SHARE_KEY: part.plan.share_prefixes, SPEC_KEY: self._loss, MEAN_KEY: mean},
        )
        output = tu.get(self._workers(part.policy).update_actor(data), "metrics")
        metrics = rename_dict(divided_shares(output), "actor/")
        metrics["perf/mfu/actor"] = metrics.pop("actor/mfu")
        return reduce_metrics(metrics)


def trains_in_fp16(actor: Any) -> bool:
    """True if verl trains with a gradient scaler, as it does where it computes with parameters in fp16."""
    precision = actor.get("fsdp_config", {}).get("mixed_precision") or {}
    return str(precision.get("param_dtype", "bf16")) in ("fp16", "float16", "16")


def _update_columns(rows: Rows, loss_columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Columns of the response tokens that verl's loss reads, by its names, and those of the method's loss."""
    named = {"old_log_probs": OLD_LOG_PROBS, "advantages": ADVANTAGES}
    named |= {"ref_log_prob": REF_LOG_PROBS, "rollout_is_weights": LOSS_WEIGHTS}
    known = {name: rows.columns[column] for name, column in named.items() if column in rows.columns}
    return known | {f"{COLUMN}{name}": rows.columns[name] for name in loss_columns}
