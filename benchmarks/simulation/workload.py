"""What is decoded: lengths, rewards, and an engine that answers with them.

A simulated token stands for `TOKENS_PER_UNIT` real ones, so that the arrays of sequences stay short. The
scheduler sees these units; times, and all figures that are reported, are in real tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from benchmarks.simulation.engine_time import EngineModel, Request, Round, run_round
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, RolePrompts
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import Sequence, token_ids
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory, is_correct

TOKENS_PER_UNIT = 256
NORMAL = NormalDist()


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens and success rates."""

    name: str
    means: dict[str, float]
    """Mean length of a response by role, the cap included (MarsRL, arXiv 2511.11373, §4)."""
    cap: int = 65_536
    """Longest response (MarsRL §4.1)."""
    spread: float = 0.7
    """Assumed: standard deviation of the logarithm of the length."""
    shared: float = 0.5
    """Assumed: share of that variance that responses to one problem have in common."""
    prompts: dict[str, int] = field(default_factory=lambda: {SOLVER: 256, VERIFIER: 2560, CORRECTOR: 3328})
    """Assumed: length of a prompt by role; a solution of 2k tokens, a report of 1k."""
    solver: float = 0.6
    """Assumed: P(right answer), as `SkillModel` of the tests; so are the next three."""
    verifier: float = 0.75
    fix: float = 0.4
    keep: float = 0.85
    difficulty: float = 1.0
    """Assumed: how much a problem's difficulty moves the Solver and the repair, in standard deviations; the
    same difficulty makes responses longer. It decides how many groups have equal rewards."""


EARLY = Workload("start of training", {SOLVER: 19_000, VERIFIER: 5_000, CORRECTOR: 5_000})
LATE = Workload("end of training", {SOLVER: 28_000, VERIFIER: 30_000, CORRECTOR: 30_000})


def log_median(mean: float, spread: float, cap: float) -> float:
    """The mu of a log-normal distribution whose values, cut at `cap`, have this mean.

    Raises:
        ValueError: the mean is not between 0 and the cap.
    """
    if not 0 < mean < cap:
        raise ValueError(f"a mean length of {mean} cannot be reached with a cap of {cap}")

    def mean_of(mu: float) -> float:
        below = math.exp(mu + spread**2 / 2) * NORMAL.cdf((math.log(cap) - mu - spread**2) / spread)
        return below + cap * NORMAL.cdf((mu - math.log(cap)) / spread)

    low, high = 0.0, math.log(cap) + 10 * spread
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) < mean else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Response:
    """What one trajectory will be when it has ended."""

    units: int
    """Length without a cap, in units."""
    reward: RewardResult


class Responses:
    """All responses of a run: pure functions of the seed and of the group's name.

    Variants that share one object are given the same responses, so they differ only in their schedule.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.seed = seed
        self._mu = {
            role: log_median(mean, workload.spread, workload.cap) for role, mean in workload.means.items()
        }
        self._known: dict[tuple[str, str | None], list[Response]] = {}

    def of_group(self, item: RolloutRequest) -> list[Response]:
        """The `item.n` responses to a request."""
        key = item.group_id, item.parent_id
        if key not in self._known:
            self._known[key] = self._draw(item)
        return self._known[key]

    def _draw(self, item: RolloutRequest) -> list[Response]:
        load = self.workload
        hardness = float(derive_generator(self.seed, "problem", item.problem.problem_id).standard_normal())
        rng = derive_generator(self.seed, "group", item.group_id)
        own = rng.standard_normal(item.n)
        noise = math.sqrt(load.shared) * hardness + math.sqrt(1 - load.shared) * own
        tokens = np.exp(self._mu[item.role] + load.spread * noise)
        right = rng.random(item.n) < self._success(item, hardness)
        return [
            Response(math.ceil(length / TOKENS_PER_UNIT), _reward(item, bool(good)))
            for length, good in zip(tokens, right, strict=True)
        ]

    def _success(self, item: RolloutRequest, hardness: float) -> float:
        """P(reward 1) of a response."""
        load = self.workload
        judged_right = is_correct(item.inputs.get("solution_reward") or 0.0)
        if item.role == VERIFIER:
            return load.verifier
        if item.role == CORRECTOR and judged_right:
            return load.keep
        mean = load.solver if item.role == SOLVER else load.fix
        # Such that the mean over all problems is `mean`.
        centre = NORMAL.inv_cdf(mean) * math.sqrt(1 + load.difficulty**2)
        return NORMAL.cdf(centre - load.difficulty * hardness)


def _reward(item: RolloutRequest, right: bool) -> RewardResult:
    if item.role != VERIFIER:
        return RewardResult(float(right), {"answer": "right" if right else "wrong"})
    says_correct = is_correct(item.inputs.get("solution_reward") or 0.0) == right
    verdict = Verdict.CORRECT if says_correct else Verdict.WRONG
    return RewardResult(float(right), {"verdict": verdict.value, "report": "report"})


class NoWords(RolePrompts):
    """Prompts without text; their lengths are the workload's."""

    def solver(self, problem: Problem) -> tuple[Message, ...]:
        return ()

    def verifier(self, problem: Problem, solution: str) -> tuple[Message, ...]:
        return ()

    def corrector(self, problem: Problem, solution: str, report: str) -> tuple[Message, ...]:
        return ()


class SimulatedEngine:
    """Answers rounds of requests: lengths come from `Responses`, time from the model."""

    def __init__(self, responses: Responses, model: EngineModel) -> None:
        self.responses = responses
        self.model = model
        self.policy_version = 0
        self.rounds: list[Round] = []
        """What every generation round took."""
        self.requests: list[Request] = []
        """Of all rounds, in their order."""

    def generate(
        self, requests: list[RolloutRequest], sampling: Mapping[str, Sampling]
    ) -> list[RolloutOutput]:
        """Answer or continue; limits are in units."""
        outputs, sent = [], []
        for item in requests:
            members = []
            for k, before in _prompts(item):
                one = self._trajectory(item, k, before, sampling[item.role])
                members.append(one)
                done = 0 if before is None else len(before)
                prefix = self.responses.workload.prompts[item.role] + done * TOKENS_PER_UNIT
                sent.append(Request(prefix, (one.tokens - done) * TOKENS_PER_UNIT))
            outputs.append(RolloutOutput(item.group_id, members))
        self.requests += sent
        self.rounds.append(run_round(sent, self.model))
        return outputs

    def _trajectory(
        self, item: RolloutRequest, k: int, before: Sequence | None, settings: Sampling
    ) -> Trajectory:
        response = self.responses.of_group(item)[k]
        begun = before or Sequence(item.role, token_ids([]), token_ids([]), np.zeros(0, dtype=np.float32))
        done = len(begun)
        end = min(settings.max_new_tokens, done + (settings.segment_tokens or settings.max_new_tokens))
        added = [0] * (min(response.units, end) - done)
        sequence = begun.extend(added, added, self.policy_version)
        finish, reward = FinishReason.STOP, response.reward
        if response.units > end:
            cut = end == settings.max_new_tokens
            finish = FinishReason.LENGTH if cut else FinishReason.PAUSED
            reward = RewardResult(0.0, {"verdict": Verdict.INVALID.value} if item.role == VERIFIER else {})
        one = Trajectory(f"{item.group_id}#{k}", [sequence], finish, "text", "text")
        one.reward = None if one.paused else reward
        return one


def sampling_of(workload: Workload, segments: int) -> dict[str, Sampling]:
    """Limits by role, in units."""
    most = workload.cap // TOKENS_PER_UNIT
    settings = Sampling(most, most, segment_tokens=most // segments if segments > 1 else None)
    return dict.fromkeys(ROLES, settings)


def _prompts(item: RolloutRequest) -> list[tuple[int, Sequence | None]]:
    """Numbers of the trajectories to decode, with what there is of them."""
    if item.resume is None:
        return [(k, None) for k in range(item.n)]
    return [(one.number, one.sequence) for one in item.resume.trajectories if one.paused]
