"""The training's grader, in a few threads beside the generation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.types import SOLVER, FinishReason, Outcome
from marsrl_verl.data.problems import SourceProblem
from marsrl_verl.data_preparation.grades import Grade
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner

_WAITING_PER_GRADER = 4


class Graders:
    """Threads with a grader each. The maths grader has processes of its own, so threads are enough.

    Args:
        make: constructs one grader.
        count: how many.
    """

    def __init__(self, make: Callable[[], RewardRunner], count: int) -> None:
        self._make = make
        self._own = threading.local()
        self._rewards: list[RewardRunner] = []
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="grader")
        self.most_waiting = count * _WAITING_PER_GRADER
        """Problems that may wait for a grader; with more of them, generation waits."""

    def submit(self, requests: Sequence[ScoreRequest]) -> Future[list[Outcome]]:
        """Score the responses of one problem in a thread."""
        return self._pool.submit(self._score, requests)

    def grade_texts(
        self, problem: SourceProblem, responses: Sequence[str], finish_reasons: Sequence[FinishReason]
    ) -> list[Grade]:
        """Grade responses that are on record as whole texts; waits for the result."""
        requests = [
            ScoreRequest(
                sample_id=f"{problem.key}#{k}",
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
        """Wait for what is being graded, drop what waits, and end the graders."""
        self._pool.shutdown(cancel_futures=True)
        for reward in self._rewards:
            reward.close()

    def _score(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        if not hasattr(self._own, "reward"):
            self._own.reward = self._make()
            self._rewards.append(self._own.reward)
        return [asyncio.run(self._own.reward.score(request)) for request in requests]

    def __enter__(self) -> Graders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
