"""The training's grader, called from a few threads beside the generation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.types import SOLVER, FinishReason, RewardResult
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.grades import Grade
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner

_WAITING_PER_GRADER = 4


class Graders:
    """Threads that share one grader. The maths grader has processes of its own, so threads are enough.

    Args:
        reward: what grades; closed with this.
        count: problems that are graded at the same time.
    """

    def __init__(self, reward: RewardRunner, count: int) -> None:
        self._reward = reward
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="grader")
        self.most_waiting = count * _WAITING_PER_GRADER
        """Problems that may wait for a grader; with more of them, generation waits."""

    def submit(self, requests: Sequence[ScoreRequest]) -> Future[list[RewardResult]]:
        """Score the responses of one problem in a thread."""
        return self._pool.submit(self._score, requests)

    def grade_texts(
        self, problem: SourceProblem, responses: Sequence[str], finish_reasons: Sequence[FinishReason]
    ) -> list[Grade]:
        """Grade responses that are on record as whole texts; waits for the result."""
        requests = [
            ScoreRequest(
                trajectory_id=f"{problem.key}#{k}",
                role=SOLVER,
                stage=SOLVER,
                problem=problem.problem,
                text=text,
                final_text=final_text(text),
                finish_reason=reason,
            )
            for k, (text, reason) in enumerate(zip(responses, finish_reasons, strict=True))
        ]
        return [
            Grade(one.reward, answer=one.answer, finish=reason.value, error=one.error, graded=one.graded)
            for one, reason in zip(self.submit(requests).result(), finish_reasons, strict=True)
        ]

    def close(self) -> None:
        """Wait for what is being graded, drop what waits, and end the grader."""
        self._pool.shutdown(cancel_futures=True)
        self._reward.close()

    def _score(self, requests: Sequence[ScoreRequest]) -> list[RewardResult]:
        return [asyncio.run(self._reward.score(request)) for request in requests]

    def __enter__(self) -> Graders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
