"""The start model answers, the training's grader judges; results come one problem at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.grades import SKIPPED, Grade, ProblemGrades
from marsrl_verl.evaluation.runs import Evaluation
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.runner import RolloutRunner, find_workflow
from marsrl_verl.rollout.single_call import SingleCall

Score = Callable[[RolloutRequest, Sequence[Trajectory]], Awaitable[list[RewardResult]]]


def scorer(reward: RewardRunner, graders: int) -> Score:
    """Scores trajectories, `graders` of them at a time; what was never generated has reward 0."""
    limit = asyncio.Semaphore(graders)

    async def score_one(request: RolloutRequest, one: Trajectory) -> RewardResult:
        if one.finish.value in SKIPPED:
            return RewardResult(0.0)
        async with limit:
            return await reward.score(ScoreRequest.of(request, one))

    async def score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        return list(await asyncio.gather(*[score_one(request, one) for one in trajectories]))

    return score


def problem_requests(
    source: SourceProblem, role: str, prompts: Prompts, answers: int, rollout: str, evaluation: Evaluation
) -> tuple[RolloutRequest, ...]:
    """Returns the requests to the first role for a problem: one for all answers at once in a single call, or
    one per answer for a program of the method's, with what its evaluation says to begin with."""
    if find_workflow(rollout) is SingleCall:
        messages = prompts.problem(source.problem)
        return (RolloutRequest(source.key, source.problem, role, role, messages, answers, rollout),)
    one = next(evaluation.program(evaluation.begin(source.problem, 0, source.key, 0)))
    return tuple(replace(one, group_id=f"{source.key}/{k}", rollout=rollout) for k in range(answers))


def sample_and_grade(
    problems: Mapping[str, Sequence[RolloutRequest]],
    runner: RolloutRunner,
    sampling: Mapping[str, Sampling],
    concurrency: int,
    *,
    keep_responses: bool,
) -> Generator[ProblemGrades, None, None]:
    """Grades of every problem as soon as they are known, in any order; a failure when nothing else is left.

    A problem whose prompt is too long, or rejected by the chat template, gets no answers; its grades say so.
    Closing abandons problems without an answer.

    Args:
        problems: the requests of each, by its key.
        runner: runs training's workflows, and scores; its tools are started here
            (ToolUnavailableError: one can't start), and closed at the end.
        sampling: of the roles that generate, without segments.
        concurrency: problems that are worked on at the same time.
    """
    waiting, tasks = deque(problems.items()), dict[asyncio.Task[list[Trajectory]], str]()

    async def answers(requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        outputs = await asyncio.gather(*[runner.run(one, sampling) for one in requests])
        for request, output in zip(requests, outputs, strict=True):
            found = [one.finish.value for one in output.trajectories]
            if len(found) != request.n or any(one.paused for one in output.trajectories):
                raise ValueError(
                    f"{request.rollout}: request {request.group_id} has {found}, expected {request.n} "
                    "trajectories that ended"
                )
        return [one for output in outputs for one in output.trajectories]

    async def some() -> list[tuple[str, list[Trajectory]]]:
        while waiting and len(tasks) < concurrency:
            key, requests = waiting.popleft()
            tasks[asyncio.ensure_future(answers(requests))] = key
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in done if task.exception() is None] or list(done)
        return [(tasks.pop(task), task.result()) for task in ended]

    async def give_up() -> None:
        await _end(tasks)
        await runner.tools.close()
        # The client's own tasks, too: they would outlive the loop.
        await _end(asyncio.all_tasks() - {asyncio.current_task()})

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(runner.tools.start())
        while waiting or tasks:
            for key, members in loop.run_until_complete(some()):
                problem = problems[key][0].problem
                yield ProblemGrades(
                    key=key,
                    grades=tuple(Grade.of(one) for one in members),
                    question=problem.question,
                    ground_truth=problem.ground_truth,
                    responses=tuple(one.text for one in members) if keep_responses else (),
                )
    finally:
        loop.run_until_complete(give_up())
        loop.close()


async def _end(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def grade_texts(
    reward: RewardRunner,
    graders: int,
    role: str,
    source: SourceProblem,
    responses: Sequence[tuple[str, FinishReason]],
) -> list[Grade]:
    """Grades of responses that are on record as whole texts, each with how it ended."""
    request = RolloutRequest(source.key, source.problem, role, role, (), len(responses))
    members = [
        Trajectory(f"{source.key}#{k}", [], finish, text, final_text(text))
        for k, (text, finish) in enumerate(responses)
    ]

    async def score() -> list[RewardResult]:
        return await scorer(reward, graders)(request, members)

    for one, result in zip(members, asyncio.run(score()), strict=True):
        one.reward = result
    return [Grade.of(one) for one in members]
