"""The rewards of a group inside verl's reward worker."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("verl", reason="a reward manager of verl's")

from cached_config import composed
from verl import DataProto

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.verl_adapter.rollout_server.reward_manager import MarsRLRewardManager


@pytest.fixture(scope="module")
def config():
    reward = "marsrl.reward"
    return composed(
        f"{reward}.solver.target=fake_rewards:TextIsNumber",
        f"{reward}.verifier.target=fake_rewards:TextIsNumber",
        f"+{reward}.verifier.kwargs.factor=10.0",
        f"{reward}.corrector.target=fake_rewards:WaitsForAnother",
    )


def batch(*texts: str, role: str = "solver") -> DataProto:
    problem, stop = Problem("p", "?", "2"), FinishReason.STOP
    column = np.empty(len(texts), dtype=object)
    column[:] = [ScoreRequest(f"g#{k}", role, role, problem, one, one, stop) for k, one in enumerate(texts)]
    return DataProto(non_tensor_batch={"score_request": column})


def scored(config, data: DataProto) -> dict:
    async def run() -> dict:  # verl builds it inside the worker's event loop
        return await MarsRLRewardManager(config, tokenizer=None).run_single(data)

    return asyncio.run(run())


def test_every_row_gets_its_result_in_the_order_of_the_rows(config):
    result = scored(config, batch("0.25", "1", "0"))
    results = result["reward_extra_info"]["outcomes"]
    assert [(one.value, one.info["answer"]) for one in results] == [(0.25, "g#0"), (1.0, "g#1"), (0.0, "g#2")]
    assert result["reward_score"] == pytest.approx(1.25 / 3)


def test_the_role_of_a_row_chooses_class_and_arguments(config):
    (result,) = scored(config, batch("0.5", role="verifier"))["reward_extra_info"]["outcomes"]
    assert result.value == 5.0


def test_a_reward_that_raises_costs_its_own_row_only(config):
    results = scored(config, batch("1", "no number", "1"))["reward_extra_info"]["outcomes"]
    assert [one.value for one in results] == [1.0, 0.0, 1.0]
    assert "TextIsNumber" in results[1].error
    assert "no number" in results[1].error


def test_rows_of_a_group_are_scored_at_the_same_time(config):
    results = scored(config, batch("a", "b", role="corrector"))["reward_extra_info"]["outcomes"]
    assert [one.value for one in results] == [1.0, 1.0], results[0].error


def test_a_reward_that_blocks_every_call_ends_the_run_instead_of_the_event_loop(config):
    reward = "marsrl.reward.solver"
    blocking = composed(f"{reward}.target=fake_rewards:NeverReturns", f"{reward}.timeout_s=0.1")
    said = r"NeverReturns.* 0.1 s \(marsrl.reward.solver.timeout_s"
    with pytest.raises(RewardUnavailableError, match=said):
        scored(blocking, batch(*["1"] * 64))


def test_verl_finds_the_class_where_the_configuration_says(config):
    place = config.reward.reward_manager
    assert place.name == MarsRLRewardManager.__name__
    assert place.module.path == f"pkg://{MarsRLRewardManager.__module__}"
