"""A judge's reward for a model that never writes a verdict."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from marsrl_verl.algos.rema.single_turn.judge import JudgeReward
from marsrl_verl.core.trajectory import FinishReason


class ChanceJudge(JudgeReward):
    """Takes half of the judgements for `[[A]]`, the others for `[[B]]`, by their ids: there are groups with
    both verdicts whatever the model writes."""

    def score(self, request):
        """As a judgement that has come to its end."""
        even = hashlib.sha256(request.trajectory_id.encode()).digest()[0] % 2 == 0
        verdict = "[[A]]" if even else "[[B]]"
        return super().score(replace(request, final_text=verdict, finish_reason=FinishReason.STOP))
