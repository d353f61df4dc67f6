"""An engine without a model: answers come from a function. For tests and for dry experiments."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.thinking import final_text
from marsrl_verl.core.types import (
    SOLVER,
    VERIFIER,
    FinishReason,
    Outcome,
    Sample,
    SamplingSettings,
    StageInput,
    Verdict,
    is_correct,
)
from marsrl_verl.core.verdict import parse_verdict


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted response."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP


Script = Callable[[StageInput, int], Reply]
"""The response number k to an input, or what follows on the input's prefix. A pure function: the same
arguments give the same reply."""

Scorer = Callable[[StageInput, Sample], Outcome]
"""Scores a finished or unfinished response."""


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

    def __call__(self, item: StageInput, k: int) -> Reply:
        """The reply number `k` to `item`."""
        rng = derive_generator(self.seed, item.group_id, k)
        if rng.random() < self.truncated:
            return Reply("<think>this goes on and on", FinishReason.LENGTH)
        body = self._verdict(item, rng) if item.role == VERIFIER else self._solution(item, rng)
        return Reply(f"<think>attempt {k}</think>\n{body}")

    def _solution(self, item: StageInput, rng: np.random.Generator) -> str:
        right = is_correct(item.solution_reward or 0.0)
        skill = self.solver if item.role == SOLVER else self.keep if right else self.fix
        wrong = f"not {item.problem.ground_truth}, variant {rng.integers(3)}"
        answer = item.problem.ground_truth if rng.random() < skill else wrong
        return f"The answer is \\boxed{{{answer}}}."

    def _verdict(self, item: StageInput, rng: np.random.Generator) -> str:
        if rng.random() < self.invalid:
            return "**Final Verdict**: I cannot tell."
        agrees = bool(rng.random() < self.verifier)
        word = "Correct" if is_correct(item.solution_reward or 0.0) == agrees else "Wrong"
        return f"**Final Verdict**: It looks {word.lower()}.\n\n**Correctness**: {word}"


def score_by_box(item: StageInput, sample: Sample) -> Outcome:
    """The plainest grader: a Verifier against the solution's reward, others by the text in the box."""
    if item.role == VERIFIER:
        if item.solution_reward is None:
            raise ValueError(f"sample {sample.sample_id}: a Verifier input needs a solution_reward")
        parsed = parse_verdict(sample.final_text, sample.finish_reason)
        truth = Verdict.CORRECT if is_correct(item.solution_reward) else Verdict.WRONG
        return Outcome(float(parsed.verdict is truth), verdict=parsed.verdict, report=parsed.report)
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", sample.final_text)
    answer = boxes[-1] if boxes and sample.finished else None
    return Outcome(float(answer == item.problem.ground_truth), answer=answer)


class ScriptedEngine:
    """Implements `marsrl_verl.core.types.Engine` on a script; tokens are the bytes of the text.

    Args:
        script: what is answered.
        seed: seed of the order in which samples come back; None: in the order of the inputs.
        scorer: how answers are scored.
    """

    def __init__(self, script: Script, *, seed: int | None = 0, scorer: Scorer = score_by_box) -> None:
        self.script = script
        self.seed = seed
        self.scorer = scorer
        self.policy_version = 0
        self.rounds: list[list[StageInput]] = []
        """The inputs of every generation round so far."""

    def generate(self, inputs: list[StageInput], sampling: dict[str, SamplingSettings]) -> list[Sample]:
        """Answer and score; shuffled. Prompts and replies are held to the limits, one token per byte."""
        missing = sorted({item.role for item in inputs} - set(sampling))
        if missing:
            raise ValueError(
                f"sampling settings are missing for the roles {missing}, found {sorted(sampling)}"
            )
        samples = [
            self._sample(item, k, sampling[item.role], before)
            for item in inputs
            for k, before in _asked(item)
        ]
        if self.seed is not None:
            order = derive_generator(self.seed, "order", len(self.rounds)).permutation(len(samples))
            samples = [samples[i] for i in order]
        self.rounds.append(list(inputs))
        return samples

    def _sample(self, item: StageInput, k: int, settings: SamplingSettings, before: Sample | None) -> Sample:
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in item.messages)
        prompt_ids = list(prompt.encode())
        if len(prompt_ids) > settings.max_prompt_tokens:
            reply = Reply("", FinishReason.PROMPT_TOO_LONG)
        else:
            reply = self.script(item, k)
        if item.prefix is not None:
            reply = Reply(bytes(item.prefix.response_ids).decode() + reply.text, reply.finish_reason)
        ids, reason, text = list(reply.text.encode()), reply.finish_reason, reply.text
        done = len(before.response_ids) if before else 0
        end = done + settings.room(done)
        if len(ids) > end:
            reason = FinishReason.LENGTH if end == settings.max_new_tokens else FinishReason.SEGMENT
            ids = ids[:end]
            text = bytes(ids).decode(errors="ignore")
        earlier = before.segments if before else []
        sample = Sample(
            sample_id=f"{item.group_id}#{k}",
            group_id=item.group_id,
            prompt_ids=prompt_ids,
            response_ids=ids,
            rollout_log_probs=[-1.0] * len(ids),
            finish_reason=reason,
            text=text,
            final_text=final_text(text),
            policy_version=self.policy_version,
            segments=[*earlier, (len(ids), self.policy_version)],
            trainer_log_probs=before.trainer_log_probs if before else [],
        )
        if reason is not FinishReason.SEGMENT:
            sample.outcome = self.scorer(item, sample)
        return sample


def _asked(item: StageInput) -> list[tuple[int, Sample | None]]:
    """The numbers of the samples that are asked for, with what there is of each already."""
    if not item.unfinished:
        return [(k, item.prefix) for k in range(item.n)]
    return [(int(sample.sample_id.rpartition("#")[2]), sample) for sample in item.unfinished]
