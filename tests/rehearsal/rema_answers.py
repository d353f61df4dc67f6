"""Solutions of a random model, which have no answer, taken for answered."""

from __future__ import annotations

from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts


class AlwaysAnswered(MathPlanPrompts):
    """Takes every solution for one with an answer, which `chance.ByChance` then gives."""

    def has_answer(self, text: str) -> bool:
        return True
