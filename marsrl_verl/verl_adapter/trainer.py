"""`RayMarsRLTrainer`: verl's trainer with stages, a scheduler and per-role credit.

The loop is cut into `_fit_*` hooks named like those of verl's `SeparateRayPPOTrainer`, so that both
can be read side by side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.trainer.ppo.ray_trainer import left_right_2_no_padding
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from marsrl_verl.config.batching import optimizer_updates
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.algorithm import Credit
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.scheduler_state import EndReason
from marsrl_verl.core.step_result import StepResult
from marsrl_verl.core.types import SOLVER, Problem
from marsrl_verl.evaluation.credit_metrics import credit_metrics
from marsrl_verl.evaluation.suite import AFTER, ALONE, BEFORE
from marsrl_verl.settings.choices import OffPolicyMode, Overlap
from marsrl_verl.verl_adapter import checkpoint, stop_signals
from marsrl_verl.verl_adapter.arranged_batch import BatchPlan, arranged_batch
from marsrl_verl.verl_adapter.batch import TrainingRow, trained_samples, training_rows
from marsrl_verl.verl_adapter.components import (
    build_algorithm,
    build_prompts,
    chat_tokenizer,
    sampling_settings,
)
from marsrl_verl.verl_adapter.engine_trainer import EngineTrainer
from marsrl_verl.verl_adapter.generation import Generation
from marsrl_verl.verl_adapter.loss_inputs import (
    correct_off_policy,
    entropy_metrics,
    mask_mastered_tokens,
)
from marsrl_verl.verl_adapter.marking import mark_samples, rows_to_mark
from marsrl_verl.verl_adapter.observer import TrainingObserver
from marsrl_verl.verl_adapter.problem_stream import AskedProblems, ProblemStream, problems_of
from marsrl_verl.verl_adapter.recorded_rows import old_log_probs
from marsrl_verl.verl_adapter.round_watch import SAVABLE_ERRORS
from marsrl_verl.verl_adapter.shared_prefix_engine import computed_tokens
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.tracking import start_tracking


class RayMarsRLTrainer(EngineTrainer):
    """Trains the stages of `marsrl.algo` on verl's workers.

    The constructor's arguments are `RayPPOTrainer`'s.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, **kwargs: Any) -> None:
        super().__init__(config=config, tokenizer=tokenizer, **kwargs)
        self.settings = typed_settings(config)
        self.prompts = build_prompts(self.settings)
        self.sampling = sampling_settings(self.settings)
        chat = chat_tokenizer(config, tokenizer)
        problems = int(config.data.train_batch_size)
        self.algorithm = build_algorithm(self.settings, self.prompts, chat, problems)
        self.scheduler = Scheduler(
            self.algorithm,
            mode=self.settings.pipeline.mode,
            step_prompt_budget=self.settings.pipeline.step_prompt_budget,
            min_group=self.settings.pipeline.min_group,
            min_groups=self.settings.pipeline.min_groups,
            max_input_staleness=self.settings.pipeline.max_input_staleness,
        )
        self.problems = ProblemStream(self.train_dataloader)
        self.asked = AskedProblems(
            len(self.train_dataloader.dataset), self.settings.roles[SOLVER].max_prompt_tokens
        )
        self.observer = TrainingObserver(config, self.settings, self.total_training_steps)
        self.continues_run = self.observer.folder.resumed
        self.overlaps = self.settings.pipeline.overlap is Overlap.ONE_STEP
        self.global_steps = 0
        self.engine_version: int | None = None
        self.generated_tokens = 0
        self.samples = 0
        self.credit: Credit = {}
        """Advantages of the samples that the current step trains."""
        self.metrics: dict[str, float] = {}
        self.timing: dict[str, float] = {}

    # --- the loop -----------------------------------------------------------------------------

    def fit(self) -> None:
        """Train until the step or token limit, evaluating before and after as configured; with
        `trainer.val_only` evaluate alone.

        Raises:
            StopRequested: the run was told to end.
            SAVABLE_ERRORS: the engines are gone, or a round does not go on.

        Before any of them comes out, the state at the end of the last step is saved.
        """
        with stop_signals.deferred():
            try:
                self._fit_steps()
            except (StopRequested, *SAVABLE_ERRORS) as end:
                self._fit_save_last_state(end)
                raise

    def _fit_steps(self) -> None:
        self._fit_begin()
        if self.evaluates_only:
            self._evaluate(ALONE)
            self.observer.finish_evaluation(self.global_steps)
            return
        while not self._is_last_step():
            self.global_steps += 1
            self.fit_step()
        self._fit_end()

    def fit_step(self) -> None:
        """One training step: decode, score, credit, update, sync, save.

        With overlap the step's round was started in the step before, and the next one's starts here, with
        the weights as they are before this step's update.

        A signal to end is heeded where the weights are those of a step's end and so is `self.last_state`: all
        the time but from an update to the end of its step.
        """
        self.metrics, self.timing = {}, {}
        with self._timed("step"):
            self._fit_get_batch(self.global_steps)
            self._fit_generate()
            result = self.scheduler.finish_step(last=self._is_last_step())
            self.asked.look(result)
            pools = self._pools_state()  # without the next step's round
            if self.overlaps and not self._is_last_step():
                self._fit_start_next_round()
            batch = self._fit_build_batch(result)
            if batch is not None:
                self._fit_compute_log_prob(batch)
                self._fit_compute_ref_log_prob(batch)
                stop_signals.check()
                self._fit_update_actor(batch)
            trained = {name: self.credit[name] for name in trained_samples(batch)}
            self.observer.rollouts(self.global_steps, result, trained)
            self._fit_describe(result, batch)
            self.last_state = {**pools, **self._step_state()}
            self._fit_save_checkpoint()
            stop_signals.check()
            if not self.overlaps:
                self._fit_update_weights(self.global_steps)
            self._fit_validate()
        self._fit_record()

    def _fit_begin(self) -> None:
        self.generation = Generation(
            self.scheduler,
            self.async_rollout_manager,
            self.sampling,
            # A sleeping engine is woken by its weights; one that has them is left alone.
            before_round=lambda: self._fit_update_weights(self.global_steps - 1),
            after_round=self._fit_mark_samples,
        )
        self._load_checkpoint()
        stop_signals.check()
        # Before the metrics: a kill in between must not leave a checkpoint that is newer than they are.
        checkpoint.set_aside_after(Path(self.config.trainer.default_local_dir), self.global_steps)
        self.observer.begin(self.global_steps)
        self.tracking = start_tracking(self.config)
        self._fit_update_weights(self.global_steps)
        if self.evaluates_only:
            return
        if self.settings.evaluation.before and self.global_steps == 0 and not self.observer.evaluated(BEFORE):
            self._evaluate(BEFORE)
        if self.global_steps > 0 and not self.observer.recorded(self.global_steps):
            # The run ended between the checkpoint and the record of its step.
            self._fit_validate()
            phases = {name: seconds for name, seconds in self.timing.items() if name != "rollout"}
            self.timing.setdefault("step", sum(phases.values()))  # the rounds' own time is not a phase
            self._fit_record()
        self.observer.phase("training")

    def _fit_end(self) -> None:
        dropped = self.scheduler.drop_waiting()
        if self.settings.evaluation.after:
            self._evaluate(AFTER)
        self.observer.finish(self.global_steps, {"waiting inputs dropped at the end": len(dropped)})

    # --- hooks of a step ----------------------------------------------------------------------

    def _fit_get_batch(self, step: int) -> None:
        """Open `step`: new problems join the first stage, unless enough of them still wait there."""
        if self.scheduler.open_step == step:
            return  # opened in the step before, by overlap
        wanted = self.algorithm.problems_per_step(int(self.config.data.train_batch_size))
        enough = self.scheduler.waiting_problems() >= wanted
        self.scheduler.start_step(step, [] if enough else self.problems.take(wanted))

    def _fit_generate(self) -> None:
        """Decode rounds until the scheduler asks for none, then let the engine sleep."""
        inner = self._time_of("mark", "update_weights")
        with self._timed("gen"):
            counts = self.generation.finish()
            self._sleep_engine()
        # What the trainer does between two rounds is not generation.
        self.timing["gen"] -= self._time_of("mark", "update_weights") - inner
        self.timing["rollout"] = counts.seconds
        self.generated_tokens += counts.tokens
        self.metrics.update(counts.metrics())
        self.samples += counts.samples
        self.metrics["rollout/generated_tokens_total"] = self.generated_tokens
        self.metrics["rollout/samples_total"] = self.samples

    def _fit_start_next_round(self) -> None:
        """Bring the weights of the last update to the idle engine and start the next step's round."""
        self._fit_update_weights(self.global_steps - 1)
        self._fit_get_batch(self.global_steps + 1)
        self.generation.start_round()

    def _fit_collect_round(self) -> None:
        """Wait for a round in flight: a checkpoint holds its samples, an evaluation needs the engine."""
        with self._timed("gen"):
            self.generation.collect()

    def _fit_mark_samples(self) -> None:
        """Have the trainer look at the samples whose stage the method chooses from by what it finds."""
        stages = self.algorithm.marked_stages()
        groups = [group for group in self.scheduler.unsettled() if group.input.stage in stages]
        samples = [one for group in groups for one in group.samples if one.marks is None]
        if not samples or not any(sample.response_ids for sample in samples):
            return
        self._sleep_engine()  # the pass needs the memory
        with self._timed("mark"):
            rows = rows_to_mark(samples, groups[0].input.role, groups[0].input.stage)
            # FCI reads whole rows. Without it the pass is cut as the update is, so that both compute alike.
            share = self.settings.training.share_prefixes and self.algorithm.influence_delta() is None
            batch = self._arranged_batch(rows, 1, share=share)
            mark_samples(
                samples,
                batch,
                self.algorithm,
                self.actor_rollout_wg.compute_log_prob,
                backend=self.algorithm.influence_backend,
                version=self.global_steps - 1,
            )

    def _fit_build_batch(self, result: StepResult) -> DataProto | None:
        """The step's training batch with advantages, balanced over ranks; None when nothing trains."""
        self.credit = self.algorithm.credit(result.trained)
        rows = training_rows(result.trained, self.credit)
        finished = sum(end.reason is EndReason.FINISHED for end in result.ended)
        self.metrics.update(
            self.algorithm.observe_step(
                result.trained,
                len(rows),
                finished,
                ended_problems=sum(end.reason is not EndReason.DROPPED for end in result.ended),
                held_groups=result.held,
            )
        )
        self.metrics.update(credit_metrics(self.credit))
        if not rows:
            return None
        updates = optimizer_updates(self.settings.pipeline, len(rows))
        batch = self._arranged_batch(rows, updates, share=self.settings.training.share_prefixes)
        self.metrics["batch/rows"] = len(rows)
        self.metrics["batch/updates"] = updates * int(self.config.actor_rollout_ref.actor.ppo_epochs)
        self.metrics["batch/padding_rows"] = len(batch) - len(rows)
        self.metrics["batch/tokens"] = sum(batch.meta_info["global_token_num"])
        return batch

    def _arranged_batch(self, rows: list[TrainingRow], updates: int, *, share: bool) -> DataProto:
        plan = BatchPlan(
            ranks=self._get_dp_size(self.actor_rollout_wg, "actor"),
            updates=updates,
            seed=self.settings.run.seed,
            step=self.global_steps,
            share_prefixes=share,
        )
        return arranged_batch(rows, plan, self.config, self.tokenizer)

    def _fit_compute_log_prob(self, batch: DataProto) -> None:
        """Log-probabilities of the batch under the weights about to be updated (POIS), and entropy. Rows for
        which the loss takes recorded ones are not computed again."""
        recorded = self.settings.off_policy.mode is OffPolicyMode.RECORDED
        with self._timed("old_log_prob"):
            entropies, computed = old_log_probs(
                batch,
                lambda rows: self._compute_old_log_prob(rows)[0],
                ranks=self._get_dp_size(self.actor_rollout_wg, "actor"),
                multiple=batch.meta_info["micro_batch_rows"],
                reuse=recorded and not self.settings.algo.mastered_tokens.enabled,
            )
        if recorded:
            self.metrics["batch/recomputed_rows"] = int(computed.sum())
        self.metrics.update(entropy_metrics(batch, entropies))
        self.metrics.update(mask_mastered_tokens(batch, entropies, self.settings.algo.mastered_tokens))
        version = self.global_steps - 1
        self.metrics.update(correct_off_policy(batch, self.settings.off_policy, version, computed))

    def _fit_compute_ref_log_prob(self, batch: DataProto) -> None:
        if self.use_reference_policy:
            with self._timed("ref_log_prob"):
                batch.union(self._compute_ref_log_prob(batch))

    def _fit_update_actor(self, batch: DataProto) -> None:
        with self._timed("update_actor"):
            output = self._update_actor(batch)
        metrics = reduce_metrics(output.meta_info["metrics"])
        if batch.meta_info["share_prefixes"]:
            self.metrics["batch/computed_tokens"] = computed_tokens(metrics, batch.meta_info["updates"])
        self.metrics.update(metrics)

    def _update_actor(self, batch: DataProto) -> DataProto:
        """verl's update with the mini-batches given as a count.

        Upstream behaviour: `mini_batch_size = ppo_mini_batch_size * rollout.n` must divide the rows,
        which a batch of varying size cannot promise; the worker takes `num_mini_batch` instead.
        """
        actor = self.config.actor_rollout_ref.actor
        updates = batch.meta_info["updates"]
        data = left_right_2_no_padding(batch.to_tensordict())
        tu.assign_non_tensor(
            data,
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
            distillation_use_topk=False,
            distillation_only=False,
            global_batch_size=len(batch) // updates,
            num_mini_batch=updates,
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": actor.shuffle},
            compute_loss=True,
        )
        output = rename_dict(tu.get(self.actor_rollout_wg.update_actor(data), "metrics"), "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        return DataProto.from_single_dict(data={}, meta_info={"metrics": output})

    def _fit_validate(self) -> None:
        every = self.settings.evaluation.every
        if every > 0 and self.global_steps % every == 0 and not self._is_last_step():
            tag = f"step_{self.global_steps}"
            if not self.observer.evaluated(tag):
                self._evaluate(tag)

    def _fit_save_checkpoint(self) -> None:
        frequency = self.config.trainer.save_freq
        if frequency > 0 and (self._is_last_step() or self.global_steps % frequency == 0):
            self._fit_collect_round()
            with self._timed("save_checkpoint"):
                self._save_checkpoint()

    def _fit_describe(self, result: StepResult, batch: DataProto | None) -> None:
        """The step's metrics; they go into its checkpoint, so that a resumed run can record them."""
        self.metrics["training/step"] = self.global_steps
        self.metrics["training/epoch"] = self.problems.epoch
        self.metrics["training/groups_trained"] = len(result.trained)
        self.metrics["training/updated"] = float(batch is not None)
        self.metrics.update(self.observer.describe(result))

    def _fit_record(self) -> None:
        """Write the step's metrics down."""
        self.observer.record(self.global_steps, self.metrics, self.timing)
        if self.config.trainer.logger:
            timings = {f"timing_s/{name}": seconds for name, seconds in self.timing.items()}
            self.tracking.log(data={**self.metrics, **timings}, step=self.global_steps)

    # --- evaluation ---------------------------------------------------------------------------

    def _validate(self, merged: bool = False) -> dict[str, float]:
        """Evaluate all roles and the system; means by metric name."""
        return self._evaluate(f"step_{self.global_steps}")

    def _evaluate(self, tag: str) -> dict[str, float]:
        self._fit_collect_round()
        self._fit_update_weights(self.global_steps)
        problems = self._held_out_problems()
        with self._timed("evaluate"):
            means = self.observer.evaluate(
                self.async_rollout_manager, problems, self.prompts, self.sampling, tag, self.global_steps
            )
        if self.config.trainer.logger:
            self.tracking.log({f"val/{name}": mean for name, mean in means.items()}, step=self.global_steps)
        return means

    def _held_out_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        for batch in self.val_dataloader:
            problems += problems_of(batch, len(problems), "v")
        return problems[: self.settings.evaluation.problems]

    # --- checkpoints --------------------------------------------------------------------------

    def plugin_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside verl's part."""
        return {**self._pools_state(), **self._step_state()}

    def _pools_state(self) -> dict[str, Any]:
        """What waits between two steps."""
        return {
            "generation": self.generation.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "problems": self.problems.state_dict(),
        }

    def _step_state(self) -> dict[str, Any]:
        """What is known when a step has trained."""
        return {
            "step": self.global_steps,
            "generated_tokens": self.generated_tokens,
            "samples": self.samples,
            "algorithm": self.algorithm.state_dict(),
            "metrics": dict(self.metrics),
            "timing": dict(self.timing),
        }

    def load_plugin_state(self, state: dict[str, Any]) -> None:
        """Continue with a saved state; an evaluation takes the weights alone."""
        if self.evaluates_only:
            return
        self.scheduler.load_state_dict(state["scheduler"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.generation.load_state_dict(state["generation"])
        self.problems.load_state_dict(state["problems"])
        self.metrics, self.timing = state["metrics"], state["timing"]
        self.generated_tokens, self.samples = state["generated_tokens"], state["samples"]

    # --- small things -------------------------------------------------------------------------

    @property
    def evaluates_only(self) -> bool:
        """Whether the run is one evaluation (`trainer.val_only`)."""
        return bool(self.config.trainer.get("val_only", False))

    def _is_last_step(self) -> bool:
        """Whether no step follows: the limit of steps or of generated tokens is reached.

        True to the step that is being taken as soon as its tokens are generated.
        """
        limit = self.settings.run.max_generated_tokens
        enough = limit is not None and self.generated_tokens >= limit
        return enough or self.global_steps >= self.total_training_steps

    def close(self) -> None:
        """End the observer's files and the dump threads, also after an error."""
        self.observer.close()
        self._shutdown_dump_executor()
