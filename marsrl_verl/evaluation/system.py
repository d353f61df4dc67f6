"""The Verifier–Corrector reasoning system, evaluated in rounds (MarsRL, arXiv 2511.11373, §3.1).

The Solver answers every problem; in each round the Verifier judges the current solution and, where the
verdict is Wrong, the Corrector rewrites it. All runs advance together, so that each stage is one call of
the engine with everything that waits there. Rules (settings and choice of the answer: `loop_rules`):

- verdict Correct: the solution is accepted and the run ends, or, with `accept_passes` above 1, the next round
  judges the same solution again until it has so many in a row;
- verdict Wrong: the Corrector rewrites the solution; the `reject_fails`-th in a row ends the run instead;
- verdict INVALID (none readable, or cut off): the Verifier is asked a second time; INVALID again counts as
  Wrong, and what the Verifier wrote is the report. Without any text there is nothing to correct by, and the
  run ends;
- a problem whose prompt exceeds the Solver's limit is not evaluated, it stands apart (`not_asked`);
- an unfinished or empty Solver solution has reward 0 and is not shown to the Verifier;
- a Corrector's text replaces the current solution only if it is finished and not empty; otherwise the next
  round judges the kept solution again;
- after the last correction nobody verifies; where an unjudged correction can't be the answer, it is not made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from marsrl_verl.core.types import (
    CORRECTOR,
    SOLVER,
    VERIFIER,
    Engine,
    FinishReason,
    Message,
    Problem,
    Sample,
    SamplingSettings,
    StageInput,
    Verdict,
    is_correct,
)
from marsrl_verl.evaluation.judgement import answer_reward, is_usable, report_of, verdict_of
from marsrl_verl.evaluation.loop_rules import Decision, Fallback, LoopRules, Streak, choose_answer

if TYPE_CHECKING:
    from marsrl_verl.algos.prompts import RolePrompts

StageCallback = Callable[[str, int], None]
"""Called before each stage with its name and its number of inputs."""


class RunEnd(str, Enum):
    """Why a run of the system ended."""

    ACCEPTED = "accepted"
    """The Verifier judged the current solution Correct, as often in a row as it takes."""
    REJECTED = "rejected"
    """The Verifier said Wrong so often in a row that the run was given up."""
    NO_SOLUTION = "no_solution"
    """The Solver's solution was unfinished or empty."""
    NO_VERDICT = "no_verdict"
    """The Verifier's verdict was INVALID twice, the second time without any text."""
    ROUNDS_USED = "rounds_used"
    """All verify–correct rounds were used (with 0 rounds: after the Solver)."""


_ENDS = {Decision.ACCEPT: RunEnd.ACCEPTED, Decision.REJECT: RunEnd.REJECTED}


@dataclass(frozen=True, slots=True)
class Call:
    """One stage input and its one sample."""

    input: StageInput
    sample: Sample


@dataclass(slots=True)
class SystemRun:
    """One (problem, repeat): the chain of calls and what came of it."""

    problem: Problem
    repeat: int
    calls: list[Call] = field(default_factory=list)
    """In the order of the stages; `call.input.parent_id` names the sample that each was built from."""
    solution: Sample | None = None
    """The current solution: the Solver's or the last usable Corrector's; None without a usable one."""
    answer: Sample | None = None
    """The solution that the run answered with once it has ended; None without a usable one."""
    solver_reward: float = 0.0
    """Reward of the answer after the Solver."""
    final_reward: float = 0.0
    """Reward of the answer at the end of the run."""
    end: RunEnd = RunEnd.ROUNDS_USED
    streak: Streak = field(default_factory=Streak)

    @property
    def verdicts(self) -> list[Verdict]:
        """The Verifier's verdicts in the order of the rounds."""
        return [verdict_of(call.sample) for call in self.calls if call.input.role == VERIFIER]

    @property
    def not_asked(self) -> bool:
        """Whether the problem's prompt exceeds the Solver's limit, so that nothing was asked."""
        return bool(self.calls) and self.calls[0].sample.finish_reason is FinishReason.PROMPT_TOO_LONG

    @property
    def solved(self) -> bool:
        """Whether the answer at the end is correct."""
        return is_correct(self.final_reward)


@dataclass(slots=True)
class SystemEvaluation:
    """All runs of one evaluation, ordered by problem, then repeat."""

    tag: str
    runs: list[SystemRun]
    not_asked: list[SystemRun] = field(default_factory=list)
    """Runs in which nothing was asked (`SystemRun.not_asked`): they say nothing about the system."""

    @property
    def calls(self) -> list[Call]:
        """Every call of every run."""
        return [call for run in self.runs for call in run.calls]

    @property
    def generated_tokens(self) -> int:
        """Tokens that all roles generated."""
        return sum(len(call.sample.response_ids) for call in self.calls)


def evaluate_system(
    engine: Engine,
    problems: list[Problem],
    prompts: RolePrompts,
    sampling: dict[str, SamplingSettings],
    *,
    correction_rounds: int,
    samples_per_problem: int,
    tag: str,
    accept_passes: int = 1,
    reject_fails: int | None = None,
    fallback: Fallback | str = Fallback.LAST,
    step: int = 0,
    on_stage: StageCallback | None = None,
) -> SystemEvaluation:
    """Run the system `samples_per_problem` times on each problem.

    Args:
        engine: answers and scores stage inputs.
        problems: with distinct `problem_id`s.
        prompts: words the roles' prompts.
        sampling: settings by role.
        correction_rounds: verify–correct rounds, 0 for the Solver alone.
        samples_per_problem: independent runs per problem.
        tag: names this evaluation in the group ids; must differ between evaluations of a training run.
        accept_passes: Correct verdicts in a row that accept a solution; at most the number of rounds, or 1.
        reject_fails: Wrong verdicts in a row that end a run; None: no number of them.
        fallback: which solution is the answer where none was accepted.
        step: the training step whose weights answer.
        on_stage: progress callback.

    Raises:
        ValueError: on arguments that cannot be evaluated, or when the engine returns other samples than
            one per input.
    """
    rules = LoopRules(correction_rounds, accept_passes, reject_fails, fallback)
    _check(problems, sampling, correction_rounds, samples_per_problem)
    runs = [SystemRun(problem, repeat) for problem in problems for repeat in range(samples_per_problem)]
    rounds = _Rounds(engine, prompts, sampling, rules, tag, step, on_stage)
    active = rounds.solve(runs)
    for number in range(1, correction_rounds + 1):
        decided = list(zip(active, rounds.verify(active, number), strict=True))
        rounds.correct([run for run, decision in decided if decision is Decision.CORRECT], number)
        active = [run for run, decision in decided if decision in (Decision.CORRECT, Decision.JUDGE_AGAIN)]
    for run in runs:
        run.answer = choose_answer(run.calls, rules.fallback, accepted=run.end is RunEnd.ACCEPTED)
        run.final_reward = run.answer.reward if run.answer else 0.0
    return SystemEvaluation(
        tag, [run for run in runs if not run.not_asked], [run for run in runs if run.not_asked]
    )


@dataclass(slots=True)
class _Rounds:
    """The stages of one evaluation."""

    engine: Engine
    prompts: RolePrompts
    sampling: dict[str, SamplingSettings]
    rules: LoopRules
    tag: str
    step: int
    on_stage: StageCallback | None

    def solve(self, runs: list[SystemRun]) -> list[SystemRun]:
        """Ask the Solver; returns the runs with a usable solution."""
        prompts = [self.prompts.solver(run.problem) for run in runs]
        for run, sample in zip(runs, self._ask(runs, prompts, SOLVER, SOLVER, 0), strict=True):
            run.solver_reward = answer_reward(sample)
            if is_usable(sample):
                run.solution = sample
            else:
                run.end = RunEnd.NO_SOLUTION
        return [run for run in runs if run.solution is not None]

    def verify(self, runs: list[SystemRun], number: int) -> list[Decision]:
        """Ask the Verifier about the current solutions; returns what follows for each run."""
        verdicts = self._judge(runs, f"{VERIFIER}_{number}", number)
        again = [run for run, verdict in zip(runs, verdicts, strict=True) if verdict is Verdict.INVALID]
        self._judge(again, f"{VERIFIER}_{number}_again", number)
        return [self._decide(run, number) for run in runs]

    def _decide(self, run: SystemRun, number: int) -> Decision:
        judgement = run.calls[-1].sample
        verdict = verdict_of(judgement)
        if verdict is Verdict.INVALID and not report_of(judgement).strip():
            run.end = RunEnd.NO_VERDICT
            return Decision.STOP
        decision = run.streak.decide(self.rules, verdict, number, run.calls)
        run.end = _ENDS.get(decision, run.end)
        return decision

    def _judge(self, runs: list[SystemRun], stage: str, number: int) -> list[Verdict]:
        prompts = [self.prompts.verifier(run.problem, _text(run)) for run in runs]
        return [verdict_of(sample) for sample in self._ask(runs, prompts, VERIFIER, stage, 2 * number - 1)]

    def correct(self, runs: list[SystemRun], number: int) -> None:
        """Ask the Corrector to repair the flagged solutions."""
        prompts = [
            self.prompts.corrector(run.problem, _text(run), report_of(run.calls[-1].sample)) for run in runs
        ]
        stage = f"{CORRECTOR}_{number}"
        for run, sample in zip(runs, self._ask(runs, prompts, CORRECTOR, stage, 2 * number), strict=True):
            if is_usable(sample):
                run.solution = sample

    def _ask(
        self, runs: list[SystemRun], prompts: list[tuple[Message, ...]], role: str, stage: str, index: int
    ) -> list[Sample]:
        """One engine call for all runs; appends the calls to the runs and returns the samples in order."""
        if not runs:
            return []
        inputs = [
            self._input(run, messages, role, stage, index)
            for run, messages in zip(runs, prompts, strict=True)
        ]
        if self.on_stage is not None:
            self.on_stage(stage, len(inputs))
        samples = _by_input(inputs, self.engine.generate(inputs, self.sampling))
        for run, stage_input, sample in zip(runs, inputs, samples, strict=True):
            run.calls.append(Call(stage_input, sample))
        return samples

    def _input(
        self, run: SystemRun, messages: tuple[Message, ...], role: str, stage: str, index: int
    ) -> StageInput:
        return StageInput(
            group_id=f"eval-{self.tag}/{run.problem.problem_id}/{run.repeat}/{stage}",
            problem=run.problem,
            stage=stage,
            stage_index=index,
            role=role,
            messages=tuple(messages),
            n=1,
            parent_id=_parent_id(run, role),
            solution=run.solution.final_text if run.solution else None,
            solution_reward=run.solution.reward if run.solution else None,
            created_step=self.step,
        )


def _parent_id(run: SystemRun, role: str) -> str | None:
    """The sample that a call is built from: the current solution, for the Corrector the judgement."""
    if not run.calls:
        return None
    if role == VERIFIER and run.solution is not None:
        return run.solution.sample_id
    return run.calls[-1].sample.sample_id


def _text(run: SystemRun) -> str:
    if run.solution is None:
        raise ValueError(f"problem {run.problem.problem_id}: there is no solution to judge")
    return run.solution.final_text


def _by_input(inputs: list[StageInput], samples: list[Sample]) -> list[Sample]:
    """The samples in the order of the inputs; exactly one each."""
    by_group: dict[str, Sample] = {}
    for sample in samples:
        if sample.group_id in by_group:
            raise ValueError(f"the engine returned two samples for {sample.group_id}, expected one")
        by_group[sample.group_id] = sample
    wanted = {stage_input.group_id for stage_input in inputs}
    if missing := sorted(wanted - by_group.keys()):
        raise ValueError(f"the engine returned no sample for {len(missing)} inputs, the first: {missing[0]}")
    if extra := sorted(by_group.keys() - wanted):
        raise ValueError(f"the engine returned samples nobody asked for, the first: {extra[0]}")
    return [by_group[stage_input.group_id] for stage_input in inputs]


def _check(
    problems: list[Problem], sampling: dict[str, SamplingSettings], correction_rounds: int, repeats: int
) -> None:
    if not problems:
        raise ValueError("there is no problem to evaluate; give at least one")
    if repeats < 1:
        raise ValueError(f"samples_per_problem must be 1 or more, found {repeats}")
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise ValueError(f"problem_id {problem.problem_id!r} occurs twice; ids must be distinct")
        seen.add(problem.problem_id)
    needed = (SOLVER, VERIFIER, CORRECTOR) if correction_rounds else (SOLVER,)
    if missing := [role for role in needed if role not in sampling]:
        raise ValueError(f"sampling settings missing for {', '.join(missing)}; found {sorted(sampling)}")
