"""verl's `custom_reward_function` becomes the reward of the roles that answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import assert_refused
from omegaconf import OmegaConf

pytestmark = pytest.mark.slow

FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return 1.0

def strict(data_source, solution_str, ground_truth, extra_info, weight):
    return {"score": weight}

def other(text, truth):
    return 0.0

number = 3
"""


@pytest.fixture
def function(tmp_path) -> Path:
    path = tmp_path / "my_score.py"
    path.write_text(FUNCTION)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    return path


@pytest.mark.parametrize("node", ["reward.custom_reward_function", "custom_reward_function"])
def test_the_function_scores_the_roles_that_answer(run, function, node):
    started = run(f"{node}.path={function.name}")
    assert f"{node}.path={function.name} scores Solver and Corrector" in started.out
    config = started.launched
    assert config is not None
    for role in ("solver", "corrector"):
        spec = config.marsrl.reward[role]
        assert spec.target == "marsrl_verl.rewards.compute_score:ComputeScoreReward"
        assert spec.kwargs == {"path": str(function), "name": "compute_score"}
    assert config.marsrl.reward.verifier.target == "marsrl_verl.algos.marsrl.verdict:VerdictReward"
    assert OmegaConf.select(config, f"{node}.path") is None, "verl would execute the file once more"


def test_another_name_and_keyword_arguments(run, function):
    config = run(
        f"reward.custom_reward_function.path={function} reward.custom_reward_function.name=strict",
        "+reward.custom_reward_function.reward_kwargs.weight=0.5",
    ).launched
    assert config.marsrl.reward.solver.kwargs == {
        "path": str(function),
        "name": "strict",
        "reward_kwargs": {"weight": 0.5},
    }


@pytest.mark.parametrize(
    ("words", "key", "hint"),
    [
        (["path=gone.py"], "reward.custom_reward_function.path", "There is no file"),
        (
            ["path=my_score.py", "name=compute_scor"],
            "reward.custom_reward_function.path",
            "has no function 'compute_scor'; functions there: compute_score, other, strict",
        ),
        (["path=my_score.py", "name=number"], "reward.custom_reward_function.path", "expected a function"),
        (["path=my_score.py", "name=strict"], "reward.custom_reward_function.path", "function strict in"),
        (
            ["path=my_score.py", "name=other"],
            "reward.custom_reward_function.path",
            "Let other take (data_source, solution_str, ground_truth, extra_info).",
        ),
        (["path=broken.py"], "reward.custom_reward_function.path", "broken.py failed with ZeroDivisionError"),
    ],
)
def test_a_function_that_can_not_be_had_is_refused(run, function, words, key, hint):
    assert_refused(run(*[f"reward.custom_reward_function.{word}" for word in words]), key, hint)


def test_two_rewards_for_one_role_are_refused(run, function):
    both = run(f"reward.custom_reward_function.path={function}", f"custom_reward_function.path={function}")
    assert_refused(both, "custom_reward_function.path", "is set too")
    own = run(f"reward.custom_reward_function.path={function}", "marsrl.reward.solver.target=mine:Reward")
    assert_refused(own, "marsrl.reward.solver.target", "scores this role too")
    words = (f"reward.custom_reward_function.path={function}", "+marsrl.reward.corrector.kwargs.weight=1")
    assert_refused(run(*words), "marsrl.reward.corrector.kwargs", "scores this role too")


@pytest.mark.parametrize(
    "word",
    [
        "reward.custom_reward_function.name=strict",
        "custom_reward_function.name=compute_score",
        "+reward.custom_reward_function.reward_kwargs.weight=1",
    ],
)
def test_a_function_without_a_path_is_refused(run, word):
    assert_refused(run(word), word.lstrip("+").split("=")[0].removesuffix(".weight"), "without a path")
