"""An engine without a model: answers come from a function. For tests and for dry experiments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Sequence, token_ids
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted response."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP


Script = Callable[[RolloutRequest, int], Reply]
"""The response number k to a request, or what follows on the request's prefix. A pure function: the same
arguments give the same reply."""

Scorer = Callable[[RolloutRequest, Trajectory], RewardResult]
"""Scores an ended trajectory."""


def score_by_box(item: RolloutRequest, one: Trajectory) -> RewardResult:
    """The plainest grader: the text in the box against the reference answer."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", one.final_text)
    answer = boxes[-1] if boxes and one.finished else None
    return RewardResult(float(answer == item.problem.ground_truth), {"answer": answer})


class ScriptedEngine:
    """Implements `marsrl_verl.core.engine.Engine` on a script; tokens are the bytes of the text.

    Args:
        script: what is answered.
        seed: seed of the order in which groups come back; None: in the order of the requests.
        scorer: how answers are scored.
    """

    def __init__(self, script: Script, *, seed: int | None = 0, scorer: Scorer = score_by_box) -> None:
        self.script = script
        self.seed = seed
        self.scorer = scorer
        self.policy_version = 0
        self.rounds: list[list[RolloutRequest]] = []
        """The requests of every generation round so far."""

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Answer and score; shuffled. Prompts and replies are held to the limits, one token per byte."""
        outputs = [self._output(item, item.sampling_of(item.role, sampling)) for item in requests]
        if self.seed is not None:
            order = derive_generator(self.seed, "order", len(self.rounds)).permutation(len(outputs))
            outputs = [outputs[i] for i in order]
        self.rounds.append(list(requests))
        return outputs

    def _output(self, item: RolloutRequest, settings: Sampling) -> RolloutOutput:
        if item.resume is None:
            members = [self._trajectory(item, k, settings, item.prefix) for k in range(item.n)]
        else:
            paused = [one for one in item.resume.trajectories if one.paused]
            members = [self._trajectory(item, one.number, settings, one.sequence) for one in paused]
        return RolloutOutput(item.group_id, members)

    def _trajectory(
        self, item: RolloutRequest, k: int, settings: Sampling, before: Sequence | None
    ) -> Trajectory:
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in item.messages)
        begun = before or Sequence(
            item.role,
            token_ids(list(prompt.encode())),
            token_ids([]),
            np.zeros(0, dtype=np.float32),
            versions=((0, self.policy_version),),
        )
        if len(begun.prompt_ids) > settings.max_prompt_tokens:
            reply = Reply("", FinishReason.PROMPT_TOO_LONG)
        else:
            reply = self.script(item, k)
        text, finish = reply.text, reply.finish_reason
        if item.prefix is not None:
            text = bytes(item.prefix.response_ids.tolist()).decode() + text
        ids = list(text.encode())
        end = len(begun) + settings.remaining_tokens(len(begun))
        if len(ids) > end:
            finish = FinishReason.LENGTH if end == settings.max_new_tokens else FinishReason.PAUSED
            ids = ids[:end]
            text = bytes(ids).decode(errors="ignore")
        added = ids[len(begun) :]
        sequence = begun.extend(added, [-1.0] * len(added), self.policy_version)
        one = Trajectory(f"{item.group_id}#{k}", [sequence], finish, text, final_text(text))
        if not one.paused:
            one.reward = self.scorer(item, one)
        return one
