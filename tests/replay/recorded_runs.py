"""Runs of the methods as they are recorded, with scripted models: workflows, tools, rewards, schedule
and log are real."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.schedule import EpochMode
from marsrl_verl.core.sequence import RECORDED_ENTROPIES, RECORDED_LOG_PROBS, TRAINER_LOG_PROBS, token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.replay.settings import tokenizer_of
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer, sampled_text
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.rollout.runner import RolloutRunner
from marsrl_verl.testing.client import asked_messages
from marsrl_verl.tools.base import Tool, ToolResult, function_schema
from marsrl_verl.tools.toolbox import Toolbox
from marsrl_verl.verl_adapter.components import (
    build_method,
    build_prompts,
    build_scheduler,
    role_policies,
    sampling_settings,
)

Script = Callable[[RolloutRequest, str, int, int, str], str]
"""What a role says: request, role, number of the trajectory and of the message in it, the chat so far."""


class AllRight(RoleReward):
    """Every response is right."""

    tells_answer = True

    def score(self, request: ScoreRequest) -> RewardResult:
        return RewardResult(1.0, {"answer": "any"})


class Calculator(Tool):
    """Adds; a tool called by a tag."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_settings(cls, name: str, settings: Any, *, seed: int, secrets: Mapping[str, str]) -> Calculator:
        return cls(name)

    def schema(self):
        return function_schema(self.name, "Adds.", {"sum": {"type": "string"}}, ("sum",))

    async def call(self, call):
        return ToolResult(str(sum(map(int, call.arguments["sum"].split("+")))))


def _wrong_every_other_time(request: RolloutRequest, k: int) -> str:
    truth = request.problem.ground_truth
    return f"\\boxed{{{truth if k % 2 else truth + '0'}}}"


def chain(request: RolloutRequest, role: str, k: int, number: int, chat: str) -> str:
    if role == "verifier":
        return "It is so.\nCorrectness: " + ("Wrong" if k % 3 else "Correct")
    return _wrong_every_other_time(request, k)


def tree(request: RolloutRequest, role: str, k: int, number: int, chat: str) -> str:
    return f"3+4=7\n\n7+1=8\n\n8-1=7\n\n{_wrong_every_other_time(request, k)}"


def agent(request: RolloutRequest, role: str, k: int, number: int, chat: str) -> str:
    if "<result>" not in chat.rpartition("Compute")[2]:
        return f"<think>I add.</think><calc>{k}+2</calc>"
    made_up = "<result>1</result>" if k == 3 else ""
    return f"<think>So.</think>{made_up}<answer>{_wrong_every_other_time(request, k)}</answer>"


def dialogue(request: RolloutRequest, role: str, k: int, number: int, chat: str) -> str:
    if role == "meta_thinking":
        told = f" It is {request.problem.ground_truth}." if k == 1 else ""
        return f"<think>hm</think>Add them.{told}" + ("[FINISH]" if number and k else "")
    return _wrong_every_other_time(request, k // 2) + " done" * number


def plan_and_solution(request: RolloutRequest, role: str, k: int, number: int, chat: str) -> str:
    if role == "meta_thinking":
        return f"The answer is \\boxed{{{request.problem.ground_truth}}}." if k == 1 else "Add the numbers."
    if request.problem.problem_id.endswith("2"):
        return "I do not know."
    return _wrong_every_other_time(request, k + len(chat) % 2)


@dataclass
class _Model:
    """Implements `GenerationClient`."""

    chat: ChatTokenizer
    script: Script
    asked: dict[str, RolloutRequest] = field(default_factory=dict)
    said: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    async def generate(self, policy, prompt_ids, decoding, *, session, name, n=1):
        before = self.chat.decode(prompt_ids)
        return [self._say(*one, before, decoding) for one in asked_messages(name, self.asked, n)]

    def _say(self, request, role, k, before, decoding):
        whose = request.group_id, k, role
        text = self.script(request, role, k, self.said[whose], before)
        self.said[whose] += 1
        stop = next((one for one in decoding.stop if one in text), None)
        ids = self.chat.tokenizer.encode(text if stop is None else text.partition(stop)[0] + stop)
        ids, finish = [*ids, *([self.chat.tokenizer.eos_token_id] if stop is None else [])], FinishReason.STOP
        if len(ids) > decoding.max_tokens:
            ids, finish, stop = ids[: decoding.max_tokens], FinishReason.LENGTH, None
        return Completion(token_ids(ids), np.full(len(ids), -1.0, np.float32), finish, stop, 0)


@dataclass(frozen=True)
class _Rendered:
    """Implements `TemplateBuilder`: a chat grows by its new messages."""

    chat: ChatTokenizer

    def merge(self, previous, updated, tail, tools):
        return [*tail, *self.chat.prompt_ids(updated[len(previous) :])]


def record(folder: Path, script: Script, *words: str, steps: int = 1, problems: int = 3) -> Path:
    """A run's folder after some steps.

    Args:
        folder: where it is made.
        script: what the models say.
        words: of the command line.
        steps: how many.
        problems: new ones of each step.
    """
    config = compose_config(parse_arguments(["cluster=cpu", "trainer.logger=[]", *words])).config
    settings, chat = typed_settings(config), tokenizer_of(config)
    model, rewards = _Model(chat, script), _rewards(settings)

    async def score(request, members):
        asked = [ScoreRequest.of(request, one, sampled_text(one, chat)) for one in members]
        return list(await asyncio.gather(*map(rewards[request.role].score, asked)))

    box = Toolbox.from_settings(settings.tools, seed=1, secrets={})
    asyncio.run(box.start())
    runner = RolloutRunner(
        model,
        chat,
        score,
        role_policies(settings),
        template_builder=lambda: _Rendered(chat),
        seed=1,
        tools=box,
        settings=settings,
    )
    engine, method = LocalEngine(runner), build_method(settings, build_prompts(settings), chat, problems)
    scheduler, run = build_scheduler(settings, method), RunFolder.create(folder)
    run.write_config(OmegaConf.to_yaml(config))
    barrier = method.schedule.epoch_mode is EpochMode.BARRIER
    for step in range(1, steps + 1):
        if step > 1 and barrier and scheduler.idle():
            method.schedule.epoch_ended(step)
        begins = not barrier or scheduler.idle()
        scheduler.start_step(step, _problems(step, problems) if begins else [])
        while requests := scheduler.next_round():
            model.asked |= {one.group_id: one for one in requests}
            scheduler.absorb(engine.generate(requests, sampling_settings(settings)))
            _probe(method, scheduler.completed_stages())
        result = scheduler.finish_step(last=step == steps, epoch_over=barrier)
        failed = [one.detail for group in result.completed for one in group.trajectories if one.failed_by]
        assert not failed, failed
        run.write_rollouts(step, step_lines(step, result.completed, method.record), {})
    for one in rewards.values():
        one.close()
    return folder


def _rewards(settings: Any) -> dict[str, RewardRunner]:
    return {
        role: RewardRunner.load(role, spec.target, spec.kwargs, spec.timeout_s)
        for role, spec in settings.reward.items()
    }


def _problems(step: int, count: int) -> list[Problem]:
    found = []
    for number in range(count):
        question = f"Compute {number}+{step}"
        chat = ({"role": "user", "content": question},)
        truth = str(number + step)
        found.append(Problem(f"p{step}{number}", question, truth, "sums", chat, ability="math", row=question))
    return found


def _probe(method: Any, groups: Any) -> None:
    for group in groups:
        for probe in method.probes(group.request.stage):
            names = [TRAINER_LOG_PROBS, RECORDED_LOG_PROBS, RECORDED_ENTROPIES, *probe.outputs]
            for one in (each for member in group.trajectories for each in member.sequences):
                made = np.linspace(0.0, 1.0, len(one), dtype=np.float32)
                one.annotations = {**one.annotations, **dict.fromkeys(names, made)}


REMA = ("model=tiny_rema", "data=rema_task", "marsrl.algo.group_size=4")
LONG = (
    "marsrl.roles.meta_thinking.max_prompt_tokens=2000",
    "marsrl.roles.meta_thinking.max_new_tokens=2000",
    "marsrl.roles.reasoning.max_prompt_tokens=2000",
    "marsrl.roles.reasoning.max_new_tokens=2000",
)
RUNS: Mapping[str, tuple[Script, tuple[str, ...], int]] = {
    "marsrl": (chain, ("algo=marsrl", "marsrl.algo.group_size=4"), 4),
    "attnrl": (tree, ("algo=treerl", "marsrl.algo.group_size=4"), 2),
    "arpo": (
        agent,
        (
            "algo=arpo_random", "marsrl.algo.group_size=6",
            "+marsrl.tools.calc.target=recorded_runs:Calculator", "+marsrl.tools.calc.max_concurrency=99",
            "marsrl.roles.solver.max_prompt_tokens=2000", "marsrl.roles.solver.max_new_tokens=2000",
        ),
        2,
    ),
    "rema": (dialogue, ("algo=rema", *REMA, *LONG, "marsrl.algo.max_turns=3"), 1),
    "rema_single_turn": (
        plan_and_solution,
        (
            "algo=rema_single_turn", *REMA, *LONG, "pipeline=sequential", "marsrl.algo.episodes=1",
            "marsrl.algo.filter.enabled=false",
        ),
        2,
    ),
}  # fmt: skip
"""By method: what its models say, its words of the command line, steps."""
PRESETS = {"attnrl": "treerl", "arpo": "arpo_random"}
"""Of methods that are not called as they are."""


def recorded(folder: Path, name: str) -> Path:
    """A run of a method."""
    script, words, steps = RUNS[name]
    return record(folder / name, script, *words, steps=steps)
