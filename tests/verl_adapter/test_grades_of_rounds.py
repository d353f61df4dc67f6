"""Grades of training rounds and of evaluations are watched apart: their rows are others."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl's agent loops")

import fake_ray

from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.worker import RequestResult

SAMPLING = {"solver": Sampling(max_new_tokens=8, max_prompt_tokens=99)}
RAISED = RewardResult(0.0, error="MyReward: ValueError: no number", graded=False, raised=True)
CHAT = ({"role": "user", "content": "?"},)


def request(name: str) -> RolloutRequest:
    return RolloutRequest(f"{name}/solver/0", Problem(name, "1 + 1?", "2"), "solver", "solver", CHAT, 8)


def answered(item: RolloutRequest) -> RequestResult:
    """A group of 8; two grades of a problem whose name begins with `bad` fail."""
    fails = 2 if item.problem.problem_id.startswith("bad") else 0
    members = [
        Trajectory(
            f"{item.group_id}#{k}",
            [Sequence("solver", [1], [2], [-0.5])],
            FinishReason.STOP,
            reward=RAISED if k < fails else RewardResult(1.0),
        )
        for k in range(8)
    ]
    return RequestResult(RolloutOutput(item.group_id, members), 1.0)


@pytest.fixture
def manager(monkeypatch) -> MarsRLAgentLoopManager:
    monkeypatch.setattr(engine_watch, "ray", fake_ray.FakeRay())
    made = MarsRLAgentLoopManager.__new__(MarsRLAgentLoopManager)
    made.config = compose_config(parse_arguments(["cluster=cpu"])).config
    worker = fake_ray.actor(
        run_requests=lambda requests, sampling, round_id: [answered(one) for one in requests],
        run_request=lambda item, sampling, round_id: answered(item),
    )
    made.agent_loop_workers = [worker]
    return made


def train(manager: MarsRLAgentLoopManager, kind: str) -> None:
    manager.start([request(f"{kind}{k}") for k in range(4)], SAMPLING).wait()


def evaluate(manager: MarsRLAgentLoopManager, kind: str) -> None:
    manager.submit([request(f"{kind}{k}") for k in range(4)], SAMPLING)
    while manager.outputs():
        pass


def test_good_held_out_rows_do_not_hide_bad_training_rows(manager):
    train(manager, "bad")
    evaluate(manager, "good")
    with pytest.raises(RewardUnavailableError, match=r"16 of 64 grades of its last 2 rounds"):
        train(manager, "bad")


def test_a_bad_evaluation_is_no_bad_round_of_training(manager):
    evaluate(manager, "bad")
    train(manager, "bad")
    train(manager, "good")
    with pytest.raises(RewardUnavailableError, match="no number"):
        evaluate(manager, "bad")
