"""A reward of one's own: the answer is a number that may differ from the reference by a tolerance.

PYTHONPATH=examples python -m recipe.marsrl.main_marsrl \
    marsrl.reward.solver.target=own_reward:WithinTolerance \
    'marsrl.reward.solver.kwargs={tolerance: 0.01}' \
    marsrl.reward.corrector.target=own_reward:WithinTolerance \
    'marsrl.reward.corrector.kwargs={tolerance: 0.01}'
"""

from fractions import Fraction

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import boxed_answer, references
from marsrl_verl.rewards.normal_form import normal_form


class WithinTolerance(RoleReward):
    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def score(self, request: ScoreRequest) -> RewardResult:
        wanted = [number(one) for one in references(request.problem.ground_truth)]
        if None in wanted:
            raise ValueError(f"the reference {request.problem.ground_truth!r} is no number")
        boxed = boxed_answer(request.final_text)  # final_text: what follows the thinking part
        found = None if boxed is None else number(boxed.text)
        right = found is not None and any(abs(found - one) <= self.tolerance for one in wanted)
        return RewardResult(float(right), {"answer": boxed.text} if boxed else {})


def number(text: str) -> Fraction | None:
    """The number that an answer is (`-2.50`, `1,000`, `\\frac{1}{2}`); None for any other text."""
    value = normal_form(text)
    return value if isinstance(value, Fraction) else None
