"""`RayMarsRLTrainer`: verl's trainer with a method's stages, a scheduler and policies, whose `_fit_*` hooks
are named like those of verl's `SeparateRayPPOTrainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.request import Problem
from marsrl_verl.core.schedule import EpochMode
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.evaluation.suite import AFTER, BEFORE
from marsrl_verl.evaluation.watch import NOT_FINITE, step_facts
from marsrl_verl.settings.choices import OffPolicyMode, Overlap
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint
from marsrl_verl.verl_adapter.components import (
    build_method,
    build_prompts,
    build_scheduler,
    build_watch,
    chat_tokenizer,
    opening_limits,
    policy_set,
    sampling_settings,
)
from marsrl_verl.verl_adapter.engine.batch import StepBatch
from marsrl_verl.verl_adapter.rollout_server.generation import Generation
from marsrl_verl.verl_adapter.trainer.ending import EndingTrainer
from marsrl_verl.verl_adapter.trainer.observer import TrainingObserver
from marsrl_verl.verl_adapter.trainer.problem_stream import (
    NothingToTrainError,
    ProblemStream,
    SkippedProblems,
    problems_of,
)
from marsrl_verl.verl_adapter.trainer.reward_kl import RewardKL
from marsrl_verl.verl_adapter.trainer.tracking import start_tracking

MAX_EMPTY_EPOCHS = 100
"""Epochs in a row of which a method admits nothing; phases may be empty, all of them not."""


class RayMarsRLTrainer(EndingTrainer):
    """Trains the stages of `marsrl.algo` on verl's workers. The arguments are `RayPPOTrainer`'s."""

    def __init__(self, config: DictConfig, tokenizer: Any, **kwargs: Any) -> None:
        super().__init__(config=config, tokenizer=tokenizer, **kwargs)
        self.settings = typed_settings(config)
        self.prompts = build_prompts(self.settings)
        self.sampling = sampling_settings(self.settings)
        chat = chat_tokenizer(config, tokenizer)
        problems = int(config.data.train_batch_size)
        self.method = build_method(self.settings, self.prompts, chat, problems)
        self.policies = policy_set(config)
        self.reward_kl = RewardKL.of(config)
        self.scheduler = build_scheduler(self.settings, self.method)
        self.problems = ProblemStream(self.train_dataloader, whole_epochs=self._has_barrier)
        limits = opening_limits(self.settings, self.prompts)
        self.skipped = SkippedProblems(len(self.train_dataloader.dataset), limits)
        self.observer = TrainingObserver(config, self.settings, self.total_training_steps)
        self.continues_run = self.observer.folder.resumed
        self.overlaps = self.settings.pipeline.overlap is Overlap.ONE_STEP
        self.watch = build_watch(self.settings)
        self.changed_in, self.engine_versions = {}, {}
        self.metrics, self.timing = {}, {}
        self.global_steps = 0
        self.generated_tokens = self.tool_calls = self.samples = 0

    def init_workers(self) -> None:
        """The engine trainer's; says and records what tools the rollouts have."""
        super().init_workers()
        self.observer.note_tools(self.async_rollout_manager.tools)

    # --- the loop -----------------------------------------------------------------------------

    def fit(self) -> None:
        """Trains until the step or token limit, evaluating before and after as configured.

        Raises:
            StopRequested: the run was told to end.
            SAVABLE_ERRORS: the engines are gone, or a round does not go on.
            CollapsedError: nothing more is learnt (`marsrl.watch`).
            StorageError: the disk is full, or the run's folder is gone.
            NotFiniteError: the weights, or what they give, are no numbers.

        Before any of them comes out but the last one, the state at the end of the last step is saved.
        """
        with self._ends_in_order():
            self._fit_begin()
            while not self._is_last_step():
                self.global_steps += 1
                self.fit_step()
            self._fit_end()

    def fit_step(self) -> None:
        """One training step: generate, probe, select, log-probabilities, advantages, update, record, save,
        sync.

        With overlap the step's round was started in the step before, and the next one's starts here, with
        the weights as they are before this step's update.

        A signal to end is heeded where the weights are those of a step's end and so is `self.last_state`: all
        the time but from an update to the end of its step.
        """
        self.metrics, self.timing = {}, {}
        with self._timed("step"), self._profiled():
            self._fit_get_batch(self.global_steps)
            self._fit_generate()
            epoch_over = self._has_barrier and not self.problems.has_more(self.method.schedule.admits)
            result = self.scheduler.finish_step(last=self._is_last_step(), epoch_over=epoch_over)
            self.skipped.look(result)
            pools = self._pools_state()  # without the next step's round
            if self.overlaps and not self._is_last_step():
                self._fit_start_next_round()
            due = self._due_policies()
            batch = self._fit_build_batch(result)
            if batch is not None:
                self._fit_compute_log_prob(batch)
                self._fit_compute_ref_log_prob(batch)
                self._fit_compute_advantages(batch)
                stop_signals.check()
                self._fit_update_actor(batch)
            self.policies.updated(due, self.global_steps)
            trained = None if batch is None else batch.rows
            self.observer.rollouts(self.global_steps, result, trained, self.method.record)
            self._fit_describe(result, batch, trains=bool(due))
            self._fit_watch(result, due=bool(due), updated=batch is not None)
            self.last_state = {**pools, **self._step_state()}
            self._fit_save_checkpoint()
            stop_signals.check()
            if not self.overlaps:
                self._fit_update_weights()
            self._fit_validate()
        self._fit_record()
        if not self._is_last_step():
            self.watch.check()

    def _fit_begin(self) -> None:
        self.generation = Generation(
            self.scheduler,
            self.async_rollout_manager,
            self.sampling,
            # A sleeping engine is woken by its weights; one that has them is left alone.
            before_round=self._fit_update_weights,
            after_round=self._fit_run_probes,
        )
        self._load_checkpoint()
        stop_signals.check()
        # Before the metrics: a kill in between must not leave a checkpoint that is newer than they are.
        checkpoint.set_aside_after(Path(self.config.trainer.default_local_dir), self.global_steps)
        self.observer.begin(self.global_steps)
        if self.global_steps > 0:
            self.observer.say([f"resumed after step {self.global_steps} of {self.total_training_steps}"])
        self.tracking = start_tracking(self.config)
        self._fit_update_weights()
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
        extra = {"waiting requests dropped at the end": len(dropped)}
        self.observer.finish(self.global_steps, extra, self.watch.warnings)

    # --- hooks of a step ----------------------------------------------------------------------

    def _fit_get_batch(self, step: int, *, ahead: bool = False) -> bool:
        """Opens `step`: new problems join the first stage, unless enough of them still wait there. False if
        it would begin a barrier epoch `ahead` of the training of the step before."""
        if self.scheduler.open_step == step:
            return True  # opened in the step before, by overlap
        count, admits = self._problems_per_step(), self.method.schedule.admits
        problems: list[Problem] = []
        if self.scheduler.waiting_problems() < count:
            if not self._has_barrier:
                problems = self.problems.take(count, admits)
            else:
                problems = self.problems.take_from_epoch(count, admits)
                if not problems and self.scheduler.idle():
                    if ahead:
                        return False
                    problems = self._next_epoch(step)
        self.scheduler.start_step(step, problems)
        return True

    def _problems_per_step(self) -> int:
        return self.method.schedule.problems_per_step(int(self.config.data.train_batch_size))

    @property
    def _has_barrier(self) -> bool:
        return self.method.schedule.epoch_mode is EpochMode.BARRIER

    def _next_epoch(self, step: int) -> list[Problem]:
        """The first problems of the next epoch of which the method admits any; none if no epoch is left."""
        for _ in range(MAX_EMPTY_EPOCHS):
            if self.method.schedule.epochs_left() == 0:
                return []
            self.method.schedule.epoch_ended(step)
            self.problems.begin_epoch()
            # As many as the new epoch has a step: the method may have gone on to another phase.
            count = self._problems_per_step()
            if problems := self.problems.take_from_epoch(count, self.method.schedule.admits):
                return problems
        raise NothingToTrainError(
            f"{type(self.method.schedule).__name__}.admits let no problem of the training data through in "
            f"{MAX_EMPTY_EPOCHS} epochs"
        )

    def _fit_generate(self) -> None:
        """Decodes rounds until the scheduler asks for none, then lets the engine sleep."""
        before = self._seconds_between_rounds()
        with self._timed("gen"):
            counts = self.generation.finish()
            self._sleep_engine()
        self.timing["gen"] -= self._seconds_between_rounds() - before
        self.timing["rollout"] = counts.seconds
        self.generated_tokens += counts.tokens
        self.tool_calls += counts.tool_calls
        self.samples += counts.trajectories
        self.metrics.update(counts.metrics())
        self.metrics["rollout/generated_tokens_total"] = self.generated_tokens
        self.metrics["rollout/samples_total"] = self.samples
        if self.tool_calls:
            self.metrics["rollout/executed_tool_calls_total"] = self.tool_calls

    def _seconds_between_rounds(self) -> float:
        """Time of the trainer's work between two rounds, which is not generation."""
        return self.timing.get("probe", 0.0) + self.timing.get("update_weights", 0.0)

    def _fit_start_next_round(self) -> None:
        """Brings the weights of the last update to the idle engine and starts the next step's round."""
        self._fit_update_weights()
        if self._fit_get_batch(self.global_steps + 1, ahead=True):
            self.generation.start_round()

    def _fit_collect_round(self) -> None:
        """Waits for a round in flight: a checkpoint holds its samples, an evaluation needs the engine."""
        with self._timed("gen"):
            self.generation.collect()

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

    def _fit_describe(self, result: StepResult, batch: StepBatch | None, *, trains: bool) -> None:
        """The step's metrics; they go into its checkpoint, so that a resumed run can record them."""
        self.metrics["training/step"] = self.global_steps
        self.metrics["training/epoch"] = self.problems.epoch
        refs = [] if batch is None else batch.rows.refs
        self.metrics["training/groups_trained"] = len({ref.group for ref in refs})
        self.metrics["training/updated"] = float(batch is not None)
        self.metrics.update(self.observer.describe(result, trains=trains))

    def _fit_watch(self, result: StepResult, *, due: bool, updated: bool) -> None:
        """Looks whether training is still of use, and says where it is not."""
        facts = step_facts(result, type(self.method), self.watch.untrained, due=due, updated=updated)
        skipped = self.skipped_updates and f"verl skipped an update: {self.skipped_updates}"
        said = self.watch.note(NOT_FINITE, self.global_steps, skipped if updated else None)
        gap = self.metrics.get("rollout/log_probs_diff_mean")
        # Where any role is cut, `tis` is rejected.
        weighs = not self.cut_roles and self.settings.off_policy.mode is not OffPolicyMode.TIS
        said += self.watch.look_at_gap(self.global_steps, gap, could_weigh=weighs)
        said += self.watch.look(self.global_steps, facts)
        self.metrics.update(self.watch.metrics())
        self.observer.say(said)

    def _fit_record(self) -> None:
        """Writes the step's metrics down."""
        self.observer.record(self.global_steps, self.metrics, self.timing)
        if self.config.trainer.logger:
            timings = {f"timing_s/{name}": seconds for name, seconds in self.timing.items()}
            self.tracking.log({**self.metrics, **timings}, self.global_steps)

    # --- evaluation ---------------------------------------------------------------------------

    def _evaluate(self, tag: str) -> None:
        """Evaluates all roles and the system."""
        self._fit_collect_round()
        self._fit_update_weights()
        problems: list[Problem] = []
        for batch in self.val_dataloader:
            problems += problems_of(batch, len(problems), "v")
        problems = problems[: self.settings.evaluation.problems]
        with self._timed("evaluate"):
            result = self.observer.evaluate(
                self.async_rollout_manager, problems, self.prompts, self.sampling, tag, self.global_steps
            )
        self.tracking.log_evaluation(result, self.global_steps)

    # --- checkpoints --------------------------------------------------------------------------

    def plugin_state(self) -> dict[str, Any]:
        """The plugin's part of a checkpoint, beside verl's."""
        return {**self._pools_state(), **self._step_state()}

    def _pools_state(self) -> dict[str, Any]:
        """State of the pools between two steps."""
        return {
            "generation": self.generation.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "problems": self.problems.state_dict(),
        }

    def _step_state(self) -> dict[str, Any]:
        """State of the trainer when a step has trained."""
        return {
            "step": self.global_steps,
            "generated_tokens": self.generated_tokens,
            "tool_calls": self.tool_calls,
            "samples": self.samples,
            "method": self.method.state_dict(),
            "schedule": self.method.schedule.state_dict(),
            "policies": self.policies.state_dict(),
            "changed_in": dict(self.changed_in),
            "watch": self.watch.state_dict(),
            "reward_kl": {} if self.reward_kl is None else self.reward_kl.state_dict(),
            "metrics": dict(self.metrics),
            "timing": dict(self.timing),
        }

    def load_plugin_state(self, state: dict[str, Any]) -> None:
        """Continues with a saved state."""
        self.policies.load_state_dict(state["policies"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.method.load_state_dict(state["method"])
        self.method.schedule.load_state_dict(state["schedule"])
        self.generation.load_state_dict(state["generation"])
        self.problems.load_state_dict(state["problems"])
        if self.reward_kl is not None:
            self.reward_kl.load_state_dict(state["reward_kl"])
        self.metrics, self.timing = state["metrics"], state["timing"]
        self.generated_tokens, self.samples = state["generated_tokens"], state["samples"]
        self.tool_calls, self.changed_in = state["tool_calls"], dict(state["changed_in"])
        self.watch.load_state_dict(state["watch"])

    # --- small things -------------------------------------------------------------------------

    def _is_last_step(self) -> bool:
        """True where no step follows: the limit of steps, tokens or tool calls is reached, or the method's
        last epoch is through. True to the step that is being taken as soon as its tokens are generated."""
        run = self.settings.run
        limits = ((run.max_generated_tokens, self.generated_tokens), (run.max_tool_calls, self.tool_calls))
        enough = any(limit is not None and taken >= limit for limit, taken in limits)
        return enough or self.global_steps >= self.total_training_steps or self._epochs_are_over()

    def _epochs_are_over(self) -> bool:
        if not self._has_barrier or self.method.schedule.epochs_left() != 0 or not self.scheduler.idle():
            return False
        return self.scheduler.open_step is None and not self.problems.has_more(self.method.schedule.admits)

    def close(self) -> None:
        """Ends the observer's files and the dump threads, also after an error."""
        self.observer.close()
        self._shutdown_dump_executor()
