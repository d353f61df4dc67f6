"""KL in the reward and REINFORCE++ against verl's own functions, and the controller in a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

pytest.importorskip("verl", reason="what we compare with is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

from scripted_trainer import ScriptedTrainer, Workers
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty

from marsrl_verl.algos.marsrl.method import MarsCredit, MarsRL
from marsrl_verl.core.credit.advantages import reinforce_plus_plus
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import KL_PENALTIES, OLD_LOG_PROBS, REF_LOG_PROBS, RowRef, Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.verl_adapter.trainer.reward_kl import RewardKL

ADAPTIVE = {"type": "adaptive", "kl_coef": 0.2, "horizon": 100, "target_kl": 0.05}


def algorithm(kind: str = "kl", **control) -> OmegaConf:
    control = {"type": "fixed", "kl_coef": 0.1, "horizon": 10000, "target_kl": 0.1, **control}
    return OmegaConf.create({"kl_penalty": kind, "kl_ctrl": control})


def rows(seed: int = 3) -> Rows:
    """Rows of uneven lengths; tools wrote parts of some, and none ends with a tool's token."""
    generator = np.random.default_rng(seed)
    members = []
    for k, size in enumerate(generator.integers(2, 12, size=9)):
        mask = generator.integers(0, 2, size=size)
        mask[-1] = 1
        one = Sequence("solver", [1], [1] * size, [0.0] * size, mask)
        members.append(
            Trajectory(f"g#{k}", [one], FinishReason.STOP, reward=RewardResult(float(generator.normal())))
        )
    request = RolloutRequest("g", Problem("p", "?", "1"), "solver", "solver", (), len(members))
    found = Rows.of([Group(request, members)], [RowRef(0, k) for k in range(len(members))])
    for name in (OLD_LOG_PROBS, REF_LOG_PROBS):
        found.columns[name] = -generator.exponential(size=found.tokens).astype(np.float32)
    return found


def padded(found: Rows, values: np.ndarray) -> torch.Tensor:
    parts = [torch.from_numpy(np.asarray(values[found.slice(row)])) for row in range(len(found))]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def in_verls_form(found: Rows) -> DataProto:
    mask = padded(found, found.columns["response_mask"].astype(np.float32))
    scores = torch.zeros_like(mask)
    for row in range(len(found)):
        scores[row, len(found.sequence(row)) - 1] = found.trajectory(row).value
    return DataProto.from_dict(
        {
            "response_mask": mask,
            "token_level_scores": scores,
            "old_log_probs": padded(found, found.columns[OLD_LOG_PROBS]),
            "ref_log_prob": padded(found, found.columns[REF_LOG_PROBS]),
        }
    )


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
@pytest.mark.parametrize("control", [{}, ADAPTIVE], ids=["fixed", "adaptive"])
def test_three_steps_are_verls(kind, control):
    ours, theirs = (RewardKL(algorithm(kind, **control)), algorithm(kind, **control))
    controller = core_algos.get_kl_controller(theirs.kl_ctrl)
    for seed in range(3):
        found = rows(seed)
        metrics = ours.penalize(found)
        data, expected = apply_kl_penalty(in_verls_form(found), controller, kind)
        assert metrics == pytest.approx(expected, rel=1e-6)
        lost = data.batch["token_level_scores"] - data.batch["token_level_rewards"]
        torch.testing.assert_close(padded(found, found.columns[KL_PENALTIES]), lost, rtol=1e-5, atol=1e-6)
    assert ours.coefficient == pytest.approx(controller.value)
    assert (ours.coefficient == pytest.approx(theirs.kl_ctrl.kl_coef)) is not bool(control)


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_reinforce_plus_plus_is_verls(gamma):
    found = rows()
    RewardKL(algorithm(kl_coef=0.3)).penalize(found)
    data = in_verls_form(found)
    data, _ = apply_kl_penalty(data, core_algos.FixedKLController(0.3), "kl")
    expected, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        data.batch["token_level_rewards"],
        data.batch["response_mask"],
        config=OmegaConf.create({"gamma": gamma}),
    )
    ours = reinforce_plus_plus(found, gamma=gamma)
    np.testing.assert_allclose(padded(found, ours).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_rewards_lose_nothing_unless_asked():
    node = OmegaConf.create({"algorithm": {**algorithm(), "use_kl_in_reward": False}})
    assert RewardKL.of(node) is None
    node.algorithm.use_kl_in_reward = True
    assert RewardKL.of(node).coefficient == 0.1


@pytest.mark.parametrize(
    ("control", "kept"),
    [
        ({}, True),
        ({"horizon": 7, "target_kl": 1.0}, True),
        ({"kl_coef": 0.4}, False),
        ({"type": "fixed"}, False),
    ],
)
def test_an_adaptive_coefficient_goes_on_unless_it_was_changed(control, kept):
    one, other = RewardKL(algorithm(**ADAPTIVE)), RewardKL(algorithm(**{**ADAPTIVE, **control}))
    begun = other.coefficient
    one.penalize(rows())
    assert one.coefficient != begun
    other.load_state_dict(one.state_dict())
    assert other.coefficient == (one.coefficient if kept else begun)


def test_an_adaptive_coefficient_begins_where_there_was_a_fixed_one():
    other = RewardKL(algorithm(**ADAPTIVE))
    other.load_state_dict(RewardKL(algorithm()).state_dict())
    assert other.coefficient == 0.2


class Reference(Workers):
    """Tokens have probability 1/2, and 1/4 under the reference policy."""

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        bounds = data["response_mask"].offsets()
        values = torch.full((int(bounds[-1]),), float(np.log(0.25)))
        log_probs = torch.nested.nested_tensor_from_jagged(values, bounds)
        return TensorDict({"log_probs": log_probs}, batch_size=[len(bounds) - 1])


class ByStep(MarsRL):
    class Credit(MarsCredit):
        """Notes what `advantages` was given."""

        def advantages(self, rows):
            mask = rows.columns["response_mask"].astype(bool)
            self.costs = set(rows.columns[KL_PENALTIES][mask].tolist())
            return super().advantages(rows)


def trained(folder, steps: int) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    one = ScriptedTrainer(folder, steps, method=ByStep)
    one.method.config.estimator = "reinforce_pp"
    one.reward_kl = RewardKL(algorithm(**{**ADAPTIVE, "horizon": 5000}))
    one.use_reference_policy, one.ref_in_actor = True, False
    one.ref_policy_wg = Reference(one, "shared")
    one.fit()
    return one


def test_a_resumed_run_goes_on_with_the_coefficient(tmp_path):
    """Every token is log 2 nats above the reference."""
    whole = trained(tmp_path / "whole", 6)
    assert whole.metrics["actor/reward_kl_penalty"] == pytest.approx(np.log(2), rel=1e-5)
    assert whole.metrics["actor/reward_kl_penalty_coeff"] > 0.2
    (cost,) = whole.method.credit.costs
    assert cost == pytest.approx(np.log(2) * whole.metrics["actor/reward_kl_penalty_coeff"], rel=1e-5)
    trained(tmp_path / "cut", 4)
    resumed = trained(tmp_path / "cut", 6)
    assert [one["step"] for one in resumed.updated] == [5, 6]
    assert resumed.reward_kl.coefficient == whole.reward_kl.coefficient
    assert resumed.updated[-1]["advantages"] == whole.updated[-1]["advantages"]
