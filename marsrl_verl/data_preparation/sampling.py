"""The start model answers, the training's grader judges; results come one problem at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from marsrl_verl.core.engine import StreamingEngine
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.grades import NOT_ASKED, Grade, ProblemGrades
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.runner import RolloutRunner

Score = Callable[[RolloutRequest, Sequence[Trajectory]], Awaitable[list[RewardResult]]]


class LocalEngine:
    """Implements `marsrl_verl.core.engine.StreamingEngine` in this process, on training's rollout programs.

    Args:
        runner: runs the programs.
        room: requests that are worked on at the same time.
    """

    def __init__(self, runner: RolloutRunner, room: int) -> None:
        self._runner, self._room = runner, room
        self._loop = asyncio.new_event_loop()
        self._waiting: deque[tuple[RolloutRequest, Mapping[str, Sampling]]] = deque()
        self._tasks: set[asyncio.Task[RolloutOutput]] = set()

    def submit(self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]) -> None:
        """See `StreamingEngine`."""
        self._waiting += [(one, sampling) for one in requests]

    def outputs(self) -> list[RolloutOutput]:
        """See `StreamingEngine`. A failure is raised when nothing else is answered."""
        return self._loop.run_until_complete(self._some())

    async def _some(self) -> list[RolloutOutput]:
        while self._waiting and len(self._tasks) < self._room:
            self._tasks.add(asyncio.ensure_future(self._runner.run(*self._waiting.popleft())))
        if not self._tasks:
            return []
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in done if task.exception() is None] or list(done)
        self._tasks -= set(ended)
        return [task.result() for task in ended]

    def close(self) -> None:
        """Give up what is not answered."""
        self._loop.run_until_complete(self._give_up())
        self._loop.close()

    async def _give_up(self) -> None:
        # The client's own tasks, too: they would outlive the loop.
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def scorer(reward: RewardRunner, graders: int) -> Score:
    """Scores trajectories, `graders` of them at a time; what was never asked has reward 0."""
    limit = asyncio.Semaphore(graders)

    async def score_one(request: RolloutRequest, one: Trajectory) -> RewardResult:
        if one.finish.value in NOT_ASKED:
            return RewardResult(0.0)
        async with limit:
            return await reward.score(ScoreRequest.of(request, one))

    async def score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        return list(await asyncio.gather(*[score_one(request, one) for one in trajectories]))

    return score


def problem_request(source: SourceProblem, role: str, prompts: Prompts, answers: int) -> RolloutRequest:
    """What the first role is asked about a problem in training."""
    messages = prompts.problem(source.problem)
    return RolloutRequest(source.key, source.problem, role, role, messages, answers)


def sample_and_grade(
    requests: Sequence[RolloutRequest], engine: StreamingEngine, sampling: Sampling, *, keep_responses: bool
) -> Iterator[ProblemGrades]:
    """Grades of every problem as soon as they are known, in any order.

    A problem whose prompt is too long, or refused by the chat template, is not asked; its grades say so.

    Args:
        requests: of the problems, by their keys.
        engine: answers and scores.
        sampling: of the role that is asked, without segments.
        keep_responses: whether their texts are kept.
    """
    asked = {request.group_id: request for request in requests}
    engine.submit(list(requests), {request.role: sampling for request in requests})
    while asked:
        for output in engine.outputs():
            request = asked.pop(output.group_id)
            yield ProblemGrades(
                key=request.group_id,
                grades=tuple(Grade.of(one) for one in output.trajectories),
                question=request.problem.question,
                ground_truth=request.problem.ground_truth,
                responses=tuple(one.text for one in output.trajectories) if keep_responses else (),
            )


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
