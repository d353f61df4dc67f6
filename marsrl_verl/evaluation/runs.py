"""Runs of a system over held-out problems.

A run is one pass of the evaluated system over one problem: a program that yields requests and is given the
trajectories that answer them. Every run goes on as soon as its own request is answered; runs know nothing of
each other, so that their results do not depend on the order of the answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput, Trajectory, is_correct
from marsrl_verl.evaluation.estimators import Estimate, MetricInfo, Observations, mean_estimate
from marsrl_verl.evaluation.pictures import Picture
from marsrl_verl.rollout.engine import RolloutEngine

Program = Generator[RolloutRequest, Trajectory, None]
"""Yields requests of one trajectory each, is sent that trajectory, and returns when the run has ended."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request and one trajectory that answers it."""

    request: RolloutRequest
    trajectory: Trajectory


@dataclass(slots=True)
class Run:
    """One (problem, repeat): the chain of calls and what came of it."""

    problem: Problem
    repeat: int
    name: str = ""
    """Prefix of the group ids of its requests; unique for a training run."""
    step: int = 0
    """The training step whose weights answer."""
    calls: list[Call] = field(default_factory=list)
    """Calls in their order; `call.request.parent_id` names the trajectory that each was built from."""
    beside: list[Call] = field(default_factory=list)
    """Calls beside the run: no part of its course, its cost or its answer. A program moves such a call here
    from `calls`."""
    answer: Trajectory | None = None
    """The solution that the run answered with once it has ended; None without a usable one."""
    final_reward: float = 0.0
    """Reward of the answer at the end of the run."""
    end: str = ""
    """Reason why it ended, as named by its evaluation."""

    @property
    def skipped(self) -> bool:
        """True if the problem's prompt exceeds the first role's limit, so that nothing was generated."""
        return bool(self.calls) and self.calls[0].trajectory.finish is FinishReason.PROMPT_TOO_LONG

    @property
    def solved(self) -> bool:
        """True if the answer at the end is correct."""
        return is_correct(self.final_reward)

    def request(
        self,
        stage: str,
        role: str,
        messages: tuple[Message, ...],
        *,
        parent_id: str | None = None,
        inputs: Mapping[str, Plain] | None = None,
        rollout: str = "single_call",
    ) -> RolloutRequest:
        """A request of this run for one trajectory.

        Args:
            stage: where in the course of the run; every request has one of its own.
            role: who answers.
            messages: the prompt.
            parent_id: the trajectory that it was built from.
            inputs: what rewards need beside the messages.
            rollout: the workflow.
        """
        return RolloutRequest(
            group_id=f"{self.name}/{stage}",
            problem=self.problem,
            stage=stage,
            role=role,
            messages=tuple(messages),
            n=1,
            rollout=rollout,
            inputs=inputs or {},
            parent_id=parent_id,
            created_step=self.step,
        )


@dataclass(slots=True)
class Runs:
    """All runs of one evaluation, ordered by problem, then repeat."""

    tag: str
    runs: list[Run]
    skipped: list[Run] = field(default_factory=list)
    """Runs in which nothing was asked (`Run.skipped`): they say nothing about the system."""

    def means(self, confidence: float, **measures: Callable[[Run], float]) -> dict[str, Estimate]:
        """The mean of each measure over the runs, with its interval."""
        return {
            name: mean_estimate(
                ((float(measure(run)), run.problem.problem_id) for run in self.runs), confidence
            )
            for name, measure in measures.items()
        }

    @property
    def calls(self) -> list[Call]:
        """Every call of every run."""
        return [call for run in self.runs for call in run.calls]

    @property
    def all_calls(self) -> list[Call]:
        """Every call, those beside the runs included."""
        return [call for run in self.runs for call in (*run.calls, *run.beside)]

    @property
    def generated_tokens(self) -> int:
        """Tokens that all roles generated, in calls beside the runs as well."""
        return sum(call.trajectory.tokens for call in self.all_calls)


@dataclass(frozen=True, slots=True)
class ExampleSummary:
    """A run in short, for readers."""

    rank: int
    """Rank of the run; the most telling ones have the highest."""
    headline: str
    """A sentence without its full stop."""


class Evaluation(ABC):
    """Evaluation of a method's system: the program of a run, what is measured in runs that ended, and texts
    about them for readers. A method brings its own (`Method.evaluation`)."""

    roles: tuple[str, ...]
    """Roles that answer; sampling settings are needed for all of them."""
    metrics: Mapping[str, MetricInfo]
    """Metrics of tables, in this order: names among `observations` and `derived`."""

    @property
    def curves(self) -> tuple[str, ...]:
        """The metrics of the learning curve."""
        return tuple(self.metrics)

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that a comparison of methods shows first."""
        return self.curves

    @property
    def max_calls(self) -> Mapping[str, int]:
        """Most responses of each role in one run."""
        return dict.fromkeys(self.roles, 1)

    def check_row(self, problem: Problem) -> None:  # noqa: B027
        """Looks at a held-out row when a run starts.

        Raises:
            ValueError: the evaluation can't use what the row brings along in `extra_info`.
        """

    def begin(self, problem: Problem, repeat: int, name: str, step: int) -> Run:
        """A run before its first request."""
        return Run(problem, repeat, name, step)

    @abstractmethod
    def program(self, run: Run) -> Program:
        """The course of a run. The driver appends every call to `run.calls` before it sends the trajectory;
        the program sets the run's answer, rewards and end."""

    @abstractmethod
    def observations(self, runs: Runs) -> dict[str, Observations]:
        """The yes/no observations behind each metric, by its name."""

    @abstractmethod
    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Effort of a run (calls, tokens), by name."""

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """Figures that follow from the observations of several metrics, the greedy ones' among them, by name.
        Those of a pass that was not run are missing."""
        return {}

    def pictures(self, runs: Runs, confidence: float) -> Iterable[Picture]:
        """Pictures of the runs of a pass, for the report."""
        return ()

    def greedy(self) -> Evaluation:
        """The evaluation at temperature 0."""
        return self

    def settings(self) -> dict[str, Plain]:
        """The settings of the system, for the record."""
        return {}

    @abstractmethod
    def description(self) -> str:
        """Describes the course of a run in one or two sentences of Markdown, for the report."""

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """Fields for a trajectory's line of the rollout log beside the usual ones."""
        return {"answer": trajectory.scored.info.get("answer")}

    # --- an example for readers ----------------------------------------------------------------

    def example_summary(self, run: Run) -> ExampleSummary:
        """Sums a run up for readers; the most telling one becomes the report's example."""
        who = run.calls[0].request.role.capitalize() if run.calls else "model"
        if run.solved:
            return ExampleSummary(2, f"Solved by the {who}")
        if run.answer is None:
            return ExampleSummary(1, f"Not solved by the {who}: no answer")
        return ExampleSummary(0, f"Not solved by the {who}: wrong answer")

    def example_call(self, call: Call) -> str:
        """Returns the heading of a call."""
        return call.request.stage.capitalize() + (" (external)" if call.trajectory.external else "")

    def outcome(self, call: Call, quote: Callable[[str], str]) -> str:
        """Returns the result of a call in a few words; `quote` formats an answer in them."""
        trajectory, answer = call.trajectory, final_answer(call.trajectory)
        found = "no answer" if answer is None else f"answer {quote(answer)}"
        verdict = "correct" if is_correct(answer_reward(trajectory)) else "incorrect"
        return f"{found}, {verdict}{ending(trajectory)}"

    def result(self, run: Run) -> str:
        """Returns the result of a run in a few words."""
        end = str(getattr(run.end, "value", run.end)).replace("_", " ")
        return f"{'correct' if run.solved else 'incorrect'} ({end})"


def ending(trajectory: Trajectory) -> str:
    """Says in brackets how a trajectory ended, if the model did not end it."""
    return "" if trajectory.finished else f" ({trajectory.finish.value})"


def calls_of(run: Run) -> int:
    """Model calls of a run."""
    return len(run.calls)


def tokens_of(run: Run) -> int:
    """Tokens that all roles generated in a run."""
    return sum(call.trajectory.tokens for call in run.calls)


def is_usable(trajectory: Trajectory) -> bool:
    """True if a solution can be an answer, and be shown to another role: ended by the model itself and not
    empty after the thinking part."""
    return trajectory.finished and bool(trajectory.final_text.strip())


def answer_reward(trajectory: Trajectory) -> float:
    """The reward of a solution, 0 when it is unfinished or empty. Unscored trajectories raise ValueError."""
    reward = trajectory.value
    return reward if is_usable(trajectory) else 0.0


def final_answer(trajectory: Trajectory) -> str | None:
    """The final answer that the scorer extracted."""
    return None if trajectory.reward is None else trajectory.reward.info.get("answer")


def run_evaluation(
    engine: RolloutEngine,
    evaluation: Evaluation,
    problems: list[Problem],
    sampling: Mapping[str, Sampling],
    *,
    repeats: int,
    tag: str,
    step: int = 0,
    repeats_of: Mapping[str, int] | None = None,
) -> Runs:
    """Runs the system `repeats` times on each problem.

    Args:
        problems: with distinct `problem_id`s.
        sampling: settings by role.
        repeats: independent runs per problem.
        repeats_of: other numbers of them, by data source.
        tag: names this evaluation in the group ids; must differ between evaluations of a training run.
        step: the training step whose weights answer.

    Raises:
        ValueError: on arguments that cannot be evaluated, or when the engine returns anything but one
            ended trajectory for each request.
    """
    others = repeats_of or {}
    _check(problems, sampling, evaluation.roles, min([repeats, *others.values()]))
    runs = [
        evaluation.begin(problem, repeat, f"eval-{tag}/{problem.problem_id}/{repeat}", step)
        for problem in problems
        for repeat in range(others.get(problem.data_source, repeats))
    ]
    _drive(engine, evaluation, runs, sampling)
    return Runs(tag, [run for run in runs if not run.skipped], [run for run in runs if run.skipped])


def _drive(
    engine: RolloutEngine, evaluation: Evaluation, runs: list[Run], sampling: Mapping[str, Sampling]
) -> None:
    """Lets all runs go on until the last one has ended."""
    pending: dict[str, tuple[Run, Program, RolloutRequest]] = {}

    def go_on(run: Run, program: Program, trajectory: Trajectory | None) -> list[RolloutRequest]:
        try:
            request = next(program) if trajectory is None else program.send(trajectory)
        except StopIteration:
            return []
        if request.group_id in pending:
            raise ValueError(f"{type(evaluation).__name__} asks {request.group_id} twice at a time")
        pending[request.group_id] = (run, program, request)
        return [request]

    waiting = [request for run in runs for request in go_on(run, evaluation.program(run), None)]
    while pending:
        if waiting:
            engine.submit(waiting, sampling)
        outputs, waiting = engine.outputs(), []
        if not outputs:
            first = next(iter(pending))
            raise ValueError(f"the engine returned nothing for {len(pending)} requests, the first: {first}")
        _check_outputs(outputs, pending.keys())
        for output in outputs:
            run, program, request = pending.pop(output.group_id)
            [trajectory] = output.trajectories
            run.calls.append(Call(request, trajectory))
            waiting += go_on(run, program, trajectory)


async def drive_one(
    evaluation: Evaluation, run: Run, answer: Callable[[RolloutRequest], Awaitable[RolloutOutput]]
) -> Run:
    """Lets one run go on until it has ended, for callers with an event loop; cancelled, what it asked is.

    Raises:
        ValueError: `answer` returned anything but one ended trajectory.
    """
    program, trajectory = evaluation.program(run), None
    while True:
        try:
            request = next(program) if trajectory is None else program.send(trajectory)
        except StopIteration:
            return run
        output = await answer(request)
        _check_outputs([output], {request.group_id})
        [trajectory] = output.trajectories
        run.calls.append(Call(request, trajectory))


def _check_outputs(outputs: list[RolloutOutput], pending: Any) -> None:
    """Exactly one ended trajectory for requests that were asked, each answered once."""
    counts = Counter(output.group_id for output in outputs)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"the engine answered {twice[0]} twice, expected one output")
    if extra := sorted(counts.keys() - pending):
        raise ValueError(f"the engine answered requests that nobody asked, the first: {extra[0]}")
    for output in outputs:
        if len(output.trajectories) != 1 or output.trajectories[0].paused:
            found = [one.finish.value for one in output.trajectories]
            raise ValueError(f"request {output.group_id}: found {found}, expected one trajectory that ended")


def _check(
    problems: list[Problem], sampling: Mapping[str, Sampling], roles: tuple[str, ...], repeats: int
) -> None:
    if not problems:
        raise ValueError("there is no problem to evaluate; give at least one")
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, found {repeats}")
    if twice := [name for name, count in Counter(one.problem_id for one in problems).items() if count > 1]:
        raise ValueError(f"problem_id {twice[0]!r} occurs twice; ids must be distinct")
    if missing := [role for role in roles if role not in sampling]:
        raise ValueError(f"sampling settings missing for {', '.join(missing)}; found {sorted(sampling)}")
