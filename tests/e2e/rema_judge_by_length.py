"""A judge's reward for a model that never writes a verdict."""

from __future__ import annotations

from dataclasses import replace

from marsrl_verl.algos.rema.single_turn.judge import JudgeReward
from marsrl_verl.core.trajectory import FinishReason


class LengthJudge(JudgeReward):
    """Takes judgements of an even number of characters for `[[A]]`, the others for `[[B]]`."""

    def score(self, request):
        """As a judgement that has come to its end."""
        verdict = "[[A]]" if len(request.text) % 2 == 0 else "[[B]]"
        return super().score(replace(request, final_text=verdict, finish_reason=FinishReason.STOP))
