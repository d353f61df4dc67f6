"""What all rewards for a final answer share (MarsRL, arXiv 2511.11373, §3.2)."""

from __future__ import annotations

from abc import abstractmethod

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import references


class AnswerReward(RoleReward):
    """1 when the final answer equals a reference, else 0.

    A response that the model did not end itself (cut off, aborted) and one without a final text have
    reward 0 and are not looked at further. The ground truth is one reference or a JSON list of
    strings, of which any may be met. `grade` gives the answer that it found as `info["answer"]`.
    """

    tells_answer = True

    def score(self, request: ScoreRequest) -> RewardResult:
        """Compare the final answer with the problem's ground truth."""
        if request.finish_reason is not FinishReason.STOP or not request.final_text.strip():
            return RewardResult(0.0)
        accepted = references(request.problem.ground_truth)
        if not accepted:
            raise ValueError(f"problem {request.problem.problem_id}: the ground truth is empty")
        return self.grade(request.final_text, accepted)

    @abstractmethod
    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """Extract the final answer of a finished response and compare it with the references."""
