"""Recorded rollouts, graded again: by the run's own rewards, or by others."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.models import adapters
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.replay.settings import tokenizer_of
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.chat_tokenizer import sampled_text
from marsrl_verl.rollout.context import RolloutContext, RolloutResources
from marsrl_verl.rollout.generation import Completion, Decoding
from marsrl_verl.rollout.played_again import UnlikeRecordError, play_again
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.rollout.workflow import Workflow
from marsrl_verl.verl_adapter.components import (
    build_prompts,
    role_policies,
    sampling_settings,
)

_AT_ONCE = 64
"""Responses that are graded at a time; a reward's time limit counts from its call."""
NO_TOKENIZER = "what its policy wrote itself needs the run's tokenizer (actor_rollout_ref.model.path)"


class _NoEngine:
    """Implements `GenerationClient`: what is not on record is not generated."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        raise UnlikeRecordError(f"played again, it asked {policy} for a message that is not on record")


class Rescorer:
    """Grades recorded groups again.

    Args:
        config: the run's, with the rewards that are wanted now.

    Raises:
        ConfigError: its settings are wrong.
        ClassLoadError: a reward can't be had.
    """

    def __init__(self, config: DictConfig) -> None:
        self.settings = settings = typed_settings(config)
        self._class = method_class(settings.algo.name)
        self.stages = {one.name: one for one in self._class.stages(settings.algo)}
        self._chat = tokenizer_of(config)
        self._policies = role_policies(settings, adapters(config.actor_rollout_ref.rollout))
        self._rewards = {
            role: RewardRunner.load(role, spec.target, spec.kwargs, spec.timeout_s)
            for role, spec in settings.reward.items()
        }
        self._workflows: dict[str, Workflow] = {}
        self._method: Method | None = None
        if self._class.deferred_rewards is not Method.deferred_rewards:
            tokenizer = None if self._chat is None else self._chat.tokenizer
            prompts, seed = build_prompts(settings), settings.run.seed
            tools = MethodTools(prompts, tokenizer=tokenizer, seed=seed, settings=settings)
            self._method = self._class(settings.algo, tools)
        self._graded: dict[str, RewardResult] = {}
        """By trajectory, of all files so far."""
        self._places = asyncio.Semaphore(_AT_ONCE)

    def close(self) -> None:
        """Releases what the rewards hold."""
        for reward in self._rewards.values():
            reward.close()

    @property
    def gives_credit(self) -> bool:
        """True where rewards of training come from other trajectories too (`Method.deferred_rewards`)."""
        return self._method is not None

    async def rescore(self, groups: Sequence[Group], *, training: bool) -> dict[str, str]:
        """Gives the trajectories of a file's groups their rewards.

        Args:
            groups: all of the file; their requests' inputs are graded again too.
            training: whether they are a step's, not an evaluation's.

        Returns:
            By id of a trajectory that has none, the reason.
        """
        left_out: dict[str, str] = {}
        for some in _in_turn(groups):
            for found in await asyncio.gather(*map(self._group, some)):
                left_out |= found
            self._graded |= {
                one.trajectory_id: one.reward
                for group in some
                for one in group.trajectories
                if one.reward is not None
            }
        if training and self._method is not None:
            left_out |= self._late(groups, left_out)
        return left_out

    def _late(self, groups: Sequence[Group], without: Mapping[str, str]) -> dict[str, str]:
        """Rewards that whole units tell."""
        assert self._method is not None
        by_problem = self._method.schedule.unit == "problem"
        units: dict[str, list[Group]] = {}
        for group in groups:
            name = group.request.problem.problem_id if by_problem else group.group_id
            units.setdefault(name, []).append(group)
        left_out: dict[str, str] = {}
        whole = not by_problem or all(one.deferred_reward for one in self.stages.values())
        for unit in units.values():
            members = {one.trajectory_id: one for group in unit for one in group.trajectories}
            if not whole or members.keys() & without.keys():
                why = "its reward is credit of trajectories that are not all graded here"
                left_out |= dict.fromkeys(members, why)
                continue
            for name, reward in self._method.deferred_rewards(unit).items():
                members[name].reward = reward
        return left_out

    async def _group(self, group: Group) -> dict[str, str]:
        """Grades one group's trajectories, after those that it was built from."""
        request = group.request
        judged = self._class.roles[request.role].source_reward
        source = self._graded.get(request.parent_id or "")
        if judged is not None and source is not None:
            if not source.graded:
                return self._all(group, "the grade of what it was built from failed")
            request = replace(request, inputs={**request.inputs, judged: source.value})
            group.request = request
        if not request.rollout:
            return self._all(group, "its workflow is not on record")
        try:
            program = find_workflow(request.rollout)
        except ValueError as error:
            return self._all(group, str(error))
        episodes: list[Trajectory] = []
        if inspect.isclass(program) and issubclass(program, Workflow):
            episodes = [one for one in group.trajectories if not _workflow_failed(one)]
        elif not getattr(program, "grades_each", False):
            return self._all(group, f"its reward is composed by {request.rollout}")
        alone = [one for one in group.trajectories if one not in episodes]
        left_out = self._without_tokenizer(alone)
        alone = [one for one in alone if one.trajectory_id not in left_out]
        for one, reward in zip(alone, await self._score(request, alone), strict=True):
            one.reward = reward
        return left_out | (await self._play(group, episodes) if episodes else {})

    @staticmethod
    def _all(group: Group, why: str) -> dict[str, str]:
        return {one.trajectory_id: why for one in group.trajectories}

    def _without_tokenizer(self, members: Iterable[Trajectory]) -> dict[str, str]:
        if self._chat is not None:
            return {}
        return {
            one.trajectory_id: NO_TOKENIZER
            for one in members
            if any(not each.response_mask.all() for each in one.sequences)
        }

    async def _score(self, request: RolloutRequest, members: Sequence[Trajectory]) -> list[RewardResult]:
        reward, chat = self._rewards[request.role], self._chat
        asked = [
            ScoreRequest.of(request, one, None if chat is None else sampled_text(one, chat))
            for one in members
        ]

        async def score(one: ScoreRequest) -> RewardResult:
            async with self._places:
                return await reward.score(one)

        return list(await asyncio.gather(*map(score, asked)))

    async def _play(self, group: Group, members: list[Trajectory]) -> dict[str, str]:
        """Grades a workflow's episodes."""
        request = group.request
        chat: Any = self._chat  # nothing but messages without a text of their own asks for it
        if request.rollout not in self._workflows:
            self._workflows[request.rollout] = find_workflow(request.rollout).from_settings(self.settings)
        seed = self.settings.run.seed
        resources = RolloutResources(_NoEngine(), chat, self._score, self._policies, seed=seed)
        context = RolloutContext(resources, request, sampling_settings(self.settings))
        found = await play_again(self._workflows[request.rollout], members, context, chat)
        left_out = {name: _why(one) for name, one in found.items() if isinstance(one, Exception)}
        played = {name: one for name, one in found.items() if not isinstance(one, Exception)}
        group.trajectories = [played.get(one.trajectory_id, one) for one in group.trajectories]
        return left_out


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, UnlikeRecordError) else f"{type(error).__name__}: {error}"


def _workflow_failed(one: Trajectory) -> bool:
    """True where the workflow raised (`rollout.runner`)."""
    return one.finish is FinishReason.ERROR and (one.detail or "").startswith(
        ("workflow ", "rollout program ")
    )


def _in_turn(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups of a file, each after those that it was built from."""
    by_id = {one.group_id: one for one in groups}
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            source = (by_id[name].request.parent_id or "").rpartition("#")[0]
            depths[name] = 1 + depth(source) if source in by_id else 0
        return depths[name]

    found: list[list[Group]] = []
    for one in sorted(groups, key=lambda group: depth(group.group_id)):
        if depth(one.group_id) == len(found):
            found.append([])
        found[-1].append(one)
    return found
