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
from marsrl_verl.core.types import SOLVER, VERIFIER, is_correct
from marsrl_verl.core.verdict import Verdict, parse_verdict


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


@dataclass(frozen=True, slots=True)
class SkillModel:
    """A script of the three roles with given success rates; every reply is a function of (seed, group
    id, k) and of what was judged or repaired."""

    seed: int = 0
    solver: float = 0.5
    """P(right answer)."""
    verifier: float = 0.75
    """P(right verdict)."""
    fix: float = 0.5
    """P(right answer | wrong solution), for the Corrector."""
    keep: float = 0.8
    """P(right answer | right solution), for the Corrector."""
    truncated: float = 0.05
    """P(cut off at the token limit), every role."""
    invalid: float = 0.05
    """P(no readable verdict)."""

    def __call__(self, item: RolloutRequest, k: int) -> Reply:
        """The reply number `k` to `item`."""
        rng = derive_generator(self.seed, item.group_id, k)
        if rng.random() < self.truncated:
            return Reply("<think>this goes on and on", FinishReason.LENGTH)
        body = self._verdict(item, rng) if item.role == VERIFIER else self._solution(item, rng)
        return Reply(f"<think>attempt {k}</think>\n{body}")

    def _solution(self, item: RolloutRequest, rng: np.random.Generator) -> str:
        right = is_correct(item.inputs.get("solution_reward") or 0.0)
        skill = self.solver if item.role == SOLVER else self.keep if right else self.fix
        wrong = f"not {item.problem.ground_truth}, variant {rng.integers(3)}"
        answer = item.problem.ground_truth if rng.random() < skill else wrong
        return f"The answer is \\boxed{{{answer}}}."

    def _verdict(self, item: RolloutRequest, rng: np.random.Generator) -> str:
        if rng.random() < self.invalid:
            return "**Final Verdict**: I cannot tell."
        agrees = bool(rng.random() < self.verifier)
        word = "Correct" if is_correct(item.inputs.get("solution_reward") or 0.0) == agrees else "Wrong"
        return f"**Final Verdict**: It looks {word.lower()}.\n\n**Correctness**: {word}"


def score_by_box(item: RolloutRequest, one: Trajectory) -> RewardResult:
    """The plainest grader: a Verifier against the solution's reward, others by the text in the box."""
    if item.role == VERIFIER:
        reward = item.inputs.get("solution_reward")
        if reward is None:
            raise ValueError(f"trajectory {one.trajectory_id}: a Verifier's request needs a solution_reward")
        parsed = parse_verdict(one.final_text, one.finish)
        truth = Verdict.CORRECT if is_correct(reward) else Verdict.WRONG
        info = {"verdict": parsed.verdict.value, "report": parsed.report}
        return RewardResult(float(parsed.verdict is truth), info)
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
