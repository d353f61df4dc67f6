"""The per-role rewards inside verl's reward loop."""

from __future__ import annotations

import asyncio
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner


def build_role_rewards(config: DictConfig) -> dict[str, RewardRunner]:
    """One reward per role, from `marsrl.reward.<role>`."""
    return {
        role: RewardRunner.load(role, spec.target, spec.kwargs, spec.timeout_s)
        for role, spec in typed_settings(config).reward.items()
    }


class MarsRLRewardManager(RewardManagerBase):
    """Scores a group of responses, each by the reward of its role. Loaded by verl through
    `reward.reward_manager.{source: importlib, module.path, name}` in every reward worker."""

    def __init__(self, config: DictConfig, tokenizer: Any, compute_score: Any = None, **_unused: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.role_rewards = build_role_rewards(config)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Scores the rows of `data`, whose column `score_request` holds `ScoreRequest`s: in verl's dictionary
        `reward_score` is the group's mean reward, `reward_extra_info` holds the `outcomes`, one per row.
        RewardUnavailableError: a reward has no thread left to be called in."""
        requests: list[ScoreRequest] = list(data.non_tensor_batch["score_request"])
        results = await asyncio.gather(
            *[self.role_rewards[request.role].score(request) for request in requests]
        )
        mean = sum(one.value for one in results) / len(results)
        return {"reward_score": mean, "reward_extra_info": {"outcomes": list(results)}}
