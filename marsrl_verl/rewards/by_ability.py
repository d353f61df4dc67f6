"""Problems of several kinds in one run, each graded by the reward of its kind."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward, ScoreRequest, UngradableError
from marsrl_verl.rewards.loading import ClassLoadError, load_class

MATH, QA, JUDGE = "math", "qa", "judge"
DEFAULT_REWARDS: Mapping[str, Mapping[str, Any]] = {
    MATH: {"target": "marsrl_verl.rewards.math_verify:MathVerifyReward"},
    QA: {"target": "marsrl_verl.rewards.qa:QAGrader"},
}


class RewardByAbility(RoleReward):
    """Scores a response by the reward of its problem's kind.

    Args:
        rewards: by kind, in lower case, the class and its keyword arguments: `{qa: {target: …, kwargs: …}}`.
            They are added to those of `math` and `qa`, or replace them.
        data_sources: shell patterns of data sources -> kind; they go before the `ability` of rows.
        otherwise: the kind of problems of which neither tells; None: their grades fail.
        judge: the endpoint of a judge (`rewards.judge.JudgeConfig.endpoint`); None: there is none.
        judged: data sources whose answers it judges, where there is one; patterns as above.
    """

    def __init__(
        self,
        rewards: Mapping[str, Mapping[str, Any]] | None = None,
        data_sources: Mapping[str, str] | None = None,
        otherwise: str | None = None,
        judge: Mapping[str, Any] | None = None,
        judged: Sequence[str] = (),
    ) -> None:
        specs = {**DEFAULT_REWARDS, **(rewards or {})}
        self.data_sources, self.otherwise = dict(data_sources or {}), otherwise
        if judge is not None:
            specs[JUDGE] = {"target": "marsrl_verl.rewards.judge:JudgeReward", "kwargs": {"endpoint": judge}}
            self.data_sources |= dict.fromkeys(judged, JUDGE)
        named = {*self.data_sources.values(), *([otherwise] if otherwise is not None else [])}
        if unknown := sorted(named - specs.keys()):
            raise ClassLoadError(
                f"{', '.join(unknown)}: no reward has this kind; kwargs.rewards has {', '.join(specs)}"
            )
        self.rewards: dict[str, RoleReward] = {
            kind: load_part(f"rewards.{kind}", spec) for kind, spec in specs.items()
        }
        self.tells_answer = all(reward.tells_answer for reward in self.rewards.values())

    def kind_of(self, problem: Problem) -> str:
        """The kind of a problem: by its data source, else the ability of its row.

        Raises:
            UngradableError: neither tells.
        """
        for pattern, kind in self.data_sources.items():
            if fnmatchcase(problem.data_source, pattern):
                return kind
        ability = problem.ability.strip().casefold()
        if ability in self.rewards:
            return ability
        if self.otherwise is None:
            ability = f"the ability {problem.ability!r}" if problem.ability else "no ability"
            raise UngradableError(
                f"{ability} and the data source {problem.data_source!r} tell none of the kinds "
                f"{', '.join(self.rewards)}",
                "name the kind in the column `ability` (prepare_data --ability, --source), or what such rows "
                "are in the reward's kwargs (otherwise, data_sources)",
            )
        return self.otherwise

    def score(self, request: ScoreRequest) -> RewardResult | Awaitable[RewardResult]:
        """Asks the reward of the problem's kind."""
        return self.rewards[self.kind_of(request.problem)].score(request)

    def check_problem(self, problem: Problem) -> None:
        """Its kind is known, and the reward of its kind can grade it."""
        self.rewards[self.kind_of(problem)].check_problem(problem)

    def longest_s(self, calls: int) -> float | None:
        """The longest of any kind."""
        limits = (reward.longest_s(calls) for reward in self.rewards.values())
        return max((one for one in limits if one is not None), default=None)

    def close(self) -> None:
        """Releases what the rewards hold."""
        for reward in self.rewards.values():
            reward.close()


def load_part(key: str, spec: Any) -> RoleReward:
    """The reward that another one calls, by its class and keyword arguments; `key` names it in messages.

    Raises:
        ClassLoadError: it can't be had, or pays responses that have not ended.
    """
    if not isinstance(spec, Mapping) or "target" not in spec or not spec.keys() <= {"target", "kwargs"}:
        raise ClassLoadError(f"{key} is {spec!r}, expected {{target: …, kwargs: {{…}}}}")
    base: type[Any] = RoleReward  # abstract: mypy allows no abstract class where a type is expected
    reward: RoleReward = load_class(str(spec["target"]), spec.get("kwargs"), base)
    if reward.pays_unfinished:
        raise ClassLoadError(f"{key}: {spec['target']} pays responses that have not ended, others don't")
    return reward
