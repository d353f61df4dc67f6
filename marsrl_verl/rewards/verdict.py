"""The Verifier's reward: does the verdict agree with the truth (MarsRL, arXiv 2511.11373, §3.2)?"""

from __future__ import annotations

from marsrl_verl.core.thinking import CLOSE
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.core.types import is_correct
from marsrl_verl.core.verdict import Verdict, VerdictParser, parse_verdict
from marsrl_verl.rewards.base import RoleReward, ScoreRequest


class VerdictReward(RoleReward):
    """1 when the verdict is Wrong on an incorrect solution or Correct on a correct one, else 0.

    Correct is measured by the solution's own reward, that is by its final answer. No verdict (INVALID)
    is always 0. The content of the report is not rewarded.

    Args:
        parser: `strict`, or `released` for the rule of the published evaluation script.
    """

    def __init__(self, parser: str = "strict") -> None:
        known = [member.value for member in VerdictParser]
        if parser not in known:
            raise ValueError(f"parser is {parser!r}, expected one of: {', '.join(known)}")
        self.parser = VerdictParser(parser)

    def score(self, request: ScoreRequest) -> RewardResult:
        """Parse the verdict and compare it with the judged solution's reward."""
        solution_reward = request.inputs.get("solution_reward")
        if solution_reward is None:
            raise ValueError(
                f"trajectory {request.trajectory_id}: a verdict is scored against the judged solution's "
                f"reward, but solution_reward is missing among the request's inputs {dict(request.inputs)}"
            )
        text = request.final_text
        if self.parser is VerdictParser.RELEASED:
            # The published script reads a response that never stopped thinking in full.
            text = request.text.rpartition(CLOSE)[2]
        parsed = parse_verdict(text, request.finish_reason, self.parser)
        report = parsed.report
        if self.parser is VerdictParser.STRICT:
            # A verdict without a word of explanation is still something to tell the Corrector.
            report = report or text
        truth = Verdict.CORRECT if is_correct(solution_reward) else Verdict.WRONG
        info = {"verdict": parsed.verdict.value, "report": report}
        return RewardResult(float(parsed.verdict is truth), info)
