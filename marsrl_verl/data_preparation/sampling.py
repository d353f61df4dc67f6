"""The start model answers, the training's grader judges; results come one problem at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol

from marsrl_verl.algos.prompts import RolePrompts
from marsrl_verl.core.types import SOLVER, RewardResult, Trajectory, Sampling, RolloutRequest
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.graders import Graders
from marsrl_verl.data_preparation.grades import Grade, ProblemGrades
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rollout.single_call import ChatTokenizer, Completion, answer


class AnswerGenerator(Protocol):
    """Answers prompts offline: vLLM, or a scripted one in tests."""

    def generate(
        self, prompts: Iterable[tuple[str, list[int]]], n: int
    ) -> Iterator[tuple[str, list[Completion]]]:
        """Trajectory `n` completions of every prompt.

        Args:
            prompts: (key, token ids), taken as there is room for them.
            n: completions per prompt.

        Returns:
            (key, completions) of every prompt as soon as it is done, in any order.
        """
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """How problems are put to the model: as the Solver is asked in training."""

    chat: ChatTokenizer
    prompts: RolePrompts
    settings: Sampling
    """Without segments: a response is decoded in one piece."""
    answers: int
    """Answers per problem."""
    keep_responses: bool = False


def sample_and_grade(
    problems: Sequence[SourceProblem], generator: AnswerGenerator, asking: Asking, graders: Graders
) -> Iterator[ProblemGrades]:
    """Grades of every problem as soon as they are known, in any order.

    A problem whose prompt is too long, or refused by the chat template, is not asked; its grades say so.
    Where the generator fails or is interrupted, what is answered is graded first.
    """
    inputs = {one.key: _stage_input(one, asking) for one in problems}
    ready: dict[str, list[int]] = {}
    for key, request in inputs.items():
        probe = _PromptOnly()
        samples = _answer(request, asking, probe)
        if probe.prompt_ids is not None:
            ready[key] = probe.prompt_ids
        else:
            yield _problem_grades(request, _unasked(samples), asking)
    grading: dict[Future[list[RewardResult]], tuple[RolloutRequest, list[Trajectory]]] = {}
    try:
        for key, completions in generator.generate(ready.items(), asking.answers):
            # Here and not in the graders' threads: fast tokenizers must not be used from two threads at once.
            samples = _answer(inputs[key], asking, _Ready(completions))
            future = graders.submit([ScoreRequest.of(inputs[key], sample) for sample in samples])
            grading[future] = (inputs[key], samples)
            yield from _graded(grading, asking, most_left=graders.most_waiting)
    except (Exception, KeyboardInterrupt):
        # What is answered is not lost. A grade may be missing because Ctrl-C ended the grader too: such a
        # problem is answered again.
        for grades in _graded(grading, asking, most_left=0):
            if all(grade.graded for grade in grades.grades):
                yield grades
        raise
    yield from _graded(grading, asking, most_left=0)


def _graded(
    grading: dict[Future[list[RewardResult]], tuple[RolloutRequest, list[Trajectory]]], asking: Asking, most_left: int
) -> Iterator[ProblemGrades]:
    """What is graded by now; waits while more than `most_left` problems are not."""
    while grading:
        timeout = None if len(grading) > most_left else 0
        done, _ = wait(grading, timeout=timeout, return_when=FIRST_COMPLETED)
        if not done:
            return
        for future in done:
            request, samples = grading.pop(future)
            for sample, outcome in zip(samples, future.result(), strict=True):
                sample.outcome = outcome
            yield _problem_grades(request, samples, asking)


def _stage_input(source: SourceProblem, asking: Asking) -> RolloutRequest:
    return RolloutRequest(
        group_id=source.key,
        problem=source.problem,
        stage=SOLVER,
        stage_index=0,
        role=SOLVER,
        messages=asking.prompts.solver(source.problem),
        n=asking.answers,
    )


def _answer(request: RolloutRequest, asking: Asking, client: _PromptOnly | _Ready) -> list[Trajectory]:
    """The samples that training's rollout makes of the client's completions."""
    return asyncio.run(answer(request, asking.settings, client, asking.chat))


def _unasked(samples: list[Trajectory]) -> list[Trajectory]:
    for sample in samples:
        sample.outcome = RewardResult(0.0)
    return samples


def _problem_grades(request: RolloutRequest, samples: list[Trajectory], asking: Asking) -> ProblemGrades:
    return ProblemGrades(
        key=request.group_id,
        grades=tuple(Grade.of(sample) for sample in samples),
        question=request.problem.question,
        ground_truth=request.problem.ground_truth,
        responses=tuple(sample.text for sample in samples) if asking.keep_responses else (),
    )


class _PromptOnly:
    """Learns the prompt that the rollout would send, and answers nothing."""

    def __init__(self) -> None:
        self.prompt_ids: list[int] | None = None

    async def complete(
        self, request_id: str, prompt_ids: list[int], settings: Sampling, max_tokens: int, n: int
    ) -> list[Completion]:
        self.prompt_ids = prompt_ids
        return []


class _Ready:
    """Answers with completions that are there already."""

    def __init__(self, completions: list[Completion]) -> None:
        self._completions = completions

    async def complete(
        self, request_id: str, prompt_ids: list[int], settings: Sampling, max_tokens: int, n: int
    ) -> list[Completion]:
        return self._completions
