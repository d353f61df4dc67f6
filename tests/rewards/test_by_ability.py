"""Problems of several kinds: which reward grades which, and what is rejected."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from reward_tools import Asynchronous, Constant, request

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.by_ability import RewardByAbility
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import RewardRunner

BY_ABILITY = "marsrl_verl.rewards.by_ability:RewardByAbility"
REWARDS = {
    "math": {"target": "marsrl_verl.rewards.exact:ExactAnswerReward"},
    "slow": {"target": f"{Asynchronous.__module__}:Asynchronous"},
}


def scored(reward: RewardByAbility, text: str, truth: str, ability: str, source: str) -> RewardResult:
    asked = replace(request(text, truth), problem=Problem("p", "?", truth, source, ability=ability))
    return asyncio.run(RewardRunner(reward).score(asked))


@pytest.fixture
def reward():
    made = RewardByAbility(REWARDS, {"DR_*": "qa"}, otherwise="math")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "truth", "ability", "source", "value"),
    [
        # A half is 0.5 to the grader of mathematics, and another word to that of questions.
        (r"\boxed{1/2}", "0.5", "math", "", 1.0),
        (r"\boxed{1/2}", "0.5", "MATH ", "", 1.0),
        (r"\boxed{1/2}", "0.5", "qa", "", 0.0),
        (r"\boxed{the Beatles}", "Beatles", "qa", "", 1.0),
        (r"\boxed{the Beatles}", "Beatles", "math", "", 0.0),
        (r"\boxed{the Beatles}", "Beatles", "math", "DR_grpo_mix", 1.0),
        (r"\boxed{1/2}", "0.5", "", "", 1.0),
        (r"\boxed{1/2}", "0.5", "geometry", "other", 1.0),
        ("", "0.5", "slow", "", 0.5),
    ],
)
def test_the_reward_of_its_kind_grades_a_problem(reward, text, truth, ability, source, value):
    result = scored(reward, text, truth, ability, source)
    assert (result.value, result.graded) == (value, True)


def test_a_problem_of_no_kind_fails_its_grade():
    reward = RewardByAbility(REWARDS)
    result = scored(reward, "", "1", "geometry", "book")
    assert not result.graded
    assert "ability 'geometry' and the data source 'book'" in result.error
    assert "math, qa, slow" in result.error
    reward.close()


def test_the_first_pattern_that_fits_decides():
    reward = RewardByAbility(REWARDS, {"gsm*": "math", "*": "qa"})
    assert reward.kind_of(Problem("p", "", "", "gsm8k", ability="qa")) == "math"
    assert reward.kind_of(Problem("p", "", "", "nq", ability="math")) == "qa"


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"otherwise": "art"}, "art: no reward has this kind"),
        ({"data_sources": {"*": "art"}}, "art: no reward has this kind"),
        ({"rewards": {"art": "a:B"}}, "rewards.art is 'a:B', expected"),
        ({"rewards": {"art": {"target": "a:B", "arguments": {}}}}, "rewards.art is"),
        ({"rewards": {"art": {"target": "no.such:Class"}}}, "no module 'no'"),
        ({"rewards": {"art": {"target": f"{__name__}:Paying"}}}, "pays responses that have not ended"),
    ],
)
def test_wrong_kinds_are_refused(kwargs, said):
    with pytest.raises(ClassLoadError, match=said):
        load_class(BY_ABILITY, kwargs, RoleReward)


class Paying(Constant):
    pays_unfinished = True


class Closing(Constant):
    closed = 0

    def longest_s(self, calls):
        return 2.0 * calls

    def close(self):
        Closing.closed += 1


def test_limits_and_end_are_those_of_all_rewards():
    spec = {"target": f"{__name__}:Closing"}
    reward = RewardByAbility({"math": spec, "qa": spec, "art": spec})
    assert reward.longest_s(3) == 6.0
    reward.close()
    assert Closing.closed == 3


def test_a_judge_grades_the_data_sources_that_are_its():
    judge = {"base_urls": ["http://127.0.0.1:1/v1"], "model": "judge", "retries": 0}
    with_judge = RewardByAbility(REWARDS, judge=judge, judged=["gsm8k", "web*"])
    info = scored(with_judge, r"\boxed{7 km}", "7 km", "math", "gsm8k").info
    assert info["judged"] is False, "the words of the reference need no question"
    assert "judged" not in scored(with_judge, r"\boxed{7}", "7", "math", "aime24").info
    assert scored(with_judge, r"\boxed{7}", "8", "qa", "webwalker").error, "nobody listens there"
    without = RewardByAbility(REWARDS, judge=None, judged=["gsm8k"])
    assert "judged" not in scored(without, r"\boxed{7}", "7", "math", "gsm8k").info
    for one in (with_judge, without):
        one.close()
