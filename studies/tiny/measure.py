"""How good the tiny model is in each role, measured without Ray and vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.core.request import RolloutRequest, Sampling
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.demo.problems import DEFAULT_DIFFICULTY, Difficulty, Split, generate
from marsrl_verl.demo.prompts import TinyPrompts
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate
from marsrl_verl.evaluation.suite import evaluate
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.running import RewardRunner
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.engine import LocalEngine
from marsrl_verl.rollout.runner import RolloutRunner
from studies.tiny.sampler import TorchClient
from studies.tiny.tokenizer import build_tokenizer
from studies.tiny.transcripts import as_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLING = {
    SOLVER: Sampling(max_new_tokens=48, max_prompt_tokens=24),
    VERIFIER: Sampling(max_new_tokens=64, max_prompt_tokens=96),
    CORRECTOR: Sampling(max_new_tokens=48, max_prompt_tokens=160),
}
"""Token limits that leave room for every transcript of the default difficulty."""


def build_engine(model: PreTrainedModel, seed: int) -> LocalEngine:
    """An engine that answers and scores all three roles with this model."""
    answer = ExactAnswerReward()
    rewards = {SOLVER: answer, VERIFIER: VerdictReward(), CORRECTOR: answer}
    runners = {role: RewardRunner(reward) for role, reward in rewards.items()}

    async def score(request: RolloutRequest, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        return [await runners[request.role].score(ScoreRequest.of(request, one)) for one in trajectories]

    chat = ChatTokenizer(build_tokenizer())
    return LocalEngine(RolloutRunner(TorchClient(model, seed), chat, score))


def measure(
    model: PreTrainedModel, problems: int, seed: int = 0, difficulty: Difficulty = DEFAULT_DIFFICULTY
) -> dict[str, Estimate]:
    """Metrics of roles and system on held-out problems at temperature 1 and, with the suffix `_greedy`, 0."""
    chains = generate(Split.HELD_OUT, problems, seed, difficulty)
    result = evaluate(
        build_engine(model, seed),
        [as_problem(chain) for chain in chains],
        VerifyCorrect(TinyPrompts(), LoopRules(correction_rounds=2)),
        SAMPLING,
        tag="measure",
        step=0,
    )
    return result.record.estimates


def show(estimates: dict[str, Estimate]) -> str:
    """The metrics as a text table."""
    lines = [f"{'':24}{'temperature 1':>24}{'greedy':>24}"]
    for name, info in EVALUATION_METRICS.items():
        cells = [_cell(estimates[name]), _cell(estimates[name + GREEDY_SUFFIX])]
        lines.append(f"{info.label:24}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def _cell(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "no case"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
