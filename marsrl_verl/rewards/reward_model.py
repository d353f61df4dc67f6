"""A reward model behind vLLM's `/classify` scores answers beside the reward that grades them."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.endpoints.chat import ModelEndpoint, longest_s
from marsrl_verl.endpoints.client import RequestError
from marsrl_verl.endpoints.config import ServiceConfig
from marsrl_verl.rewards.base import RoleReward, ScoreRequest, ServiceError
from marsrl_verl.rewards.by_ability import DEFAULT_REWARDS, MATH, load_part
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.settings.api_key import ApiKeyError, read_api_key
from marsrl_verl.settings.declaration import Settings, limits
from marsrl_verl.settings.issues import ConfigError
from marsrl_verl.settings.reading import read

SCORE = "reward_model"
"""Key of the score in a result's info."""


class ScorerEndpoint(ServiceConfig):
    """Endpoint of the reward model: vLLM with a sequence-classification model of one label. Its URLs have no
    `/v1`."""

    timeout_s: float = limits(120.0, gt=0.0, why="seconds", fix="120 is the default.")
    """Seconds from sending a request to the end of its answer."""
    retries: int = limits(3, ge=0, why="0 repeats nothing")
    """Most repetitions of a request after HTTP 408, 429, 5xx or a failed connection."""
    max_concurrent_requests: int = limits(16, ge=1, why="one is asked")
    """Most requests of each reward worker (`reward.num_workers`) at a time."""


class ScorerConfig(Settings):
    """Settings of `ScoredReward`."""

    endpoint: ScorerEndpoint = Field(default_factory=ScorerEndpoint)
    """Endpoint of the reward model."""
    grader: dict[str, Any] = Field(default_factory=lambda: dict(DEFAULT_REWARDS[MATH]))
    """The reward that grades: `{target: …, kwargs: {…}}`."""


class ScoredReward(RoleReward):
    """Gives the grader's reward, with a reward model's score as `info["reward_model"]`: the score of question
    and answer as a chat, without the thinking part, before the activation (where a sigmoid would make many
    equal). Answers that have not ended are not scored. If a reward model does not answer, the grade fails,
    not the run.

    Args:
        settings: of `ScorerConfig`.
    """

    def __init__(self, **settings: Any) -> None:
        try:
            config = read(ScorerConfig, settings, "kwargs")
        except ConfigError as error:
            raise ClassLoadError(str(error)) from error
        self.endpoint = config.endpoint
        if not self.endpoint.base_urls or not self.endpoint.model:
            raise ClassLoadError(
                "kwargs.endpoint needs base_urls, such as [http://host:8000], and the model's name there"
            )
        try:
            key = read_api_key(self.endpoint)
        except ApiKeyError as error:
            raise ClassLoadError(f"kwargs.endpoint.{error}; the key belongs into the environment") from error
        self.grader = load_part("kwargs.grader", config.grader)
        self.tells_answer, self.graded_ability = self.grader.tells_answer, self.grader.graded_ability
        most = self.endpoint.max_concurrent_requests
        self._asked = ModelEndpoint(self.endpoint, "kwargs.endpoint", api_key=key, concurrency=most, seed=0)

    async def score(self, request: ScoreRequest) -> RewardResult:
        """Grades and scores."""
        found = await asyncio.to_thread(self.grader.score, request)
        result: RewardResult = await found if inspect.isawaitable(found) else found
        if request.finish_reason is not FinishReason.STOP or not request.final_text.strip():
            return result
        body = score_body(self.endpoint, request.problem.question, request.final_text)
        try:
            score = await self._asked.post(request.trajectory_id, "classify", body, read_score)
        except RequestError as error:
            raise ServiceError(f"the reward model gave no score: {error}") from error
        return replace(result, info={**result.info, SCORE: score})

    def check_problem(self, problem: Problem) -> None:
        """The grader can grade it."""
        self.grader.check_problem(problem)

    def longest_s(self, calls: int) -> float:
        """The grader's and the endpoint's (`endpoints.chat.longest_s`)."""
        return (self.grader.longest_s(calls) or 0.0) + longest_s(self.endpoint, calls)

    def close(self) -> None:
        """Releases what the grader holds."""
        self.grader.close()


def score_body(endpoint: ScorerEndpoint, question: str, answer: str) -> dict[str, Any]:
    """Body of the request to vLLM."""
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {
        "model": endpoint.model,
        "messages": chat,
        "use_activation": False,
        **endpoint.extra_body,
    }


def read_score(body: Any, url: str) -> float:
    """The score in vLLM's answer, of a model with one label.

    Raises:
        RequestError: there is none.
    """
    data = body.get("data") if isinstance(body, Mapping) else None
    values = (
        data[0].get("probs") if isinstance(data, list) and data and isinstance(data[0], Mapping) else None
    )
    if not isinstance(values, list) or len(values) != 1:
        raise RequestError(
            f"{url} answered {body}, expected data with a score of one label", about_request=True
        )
    score = values[0]
    if not isinstance(score, int | float) or not math.isfinite(score):
        raise RequestError(f"{url} answered the score {score!r}, expected a number", about_request=True)
    return float(score)
