"""MarsRL's roles without a model: how often each is right is said; verdicts are scored as they should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scripted_engine as scripted
from scripted_engine import Reply, Scorer, Script

from marsrl_verl.algos.marsrl.prompts import SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict, parse_verdict
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory, is_correct


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
    return scripted.score_by_box(item, one)


class ScriptedEngine(scripted.ScriptedEngine):
    """Scores verdicts too."""

    def __init__(self, script: Script, *, scorer: Scorer = score_by_box, **options: Any) -> None:
        super().__init__(script, scorer=scorer, **options)
