"""Trajectories with two sequences of two policies, from the selected rows to gradient and record.

Each policy's update is that of its own sequences alone: their advantages, masks and normalisers, whatever the
other's are, and however the batch is cut.
"""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from test_update_invariance import VOCABULARY, TinyModel, Workers
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.core import method as core_method
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.credit.advantages import comparable_rows, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import ADVANTAGES, ENTROPIES, OLD_LOG_PROBS, token_advantages
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.evaluation.advantages import entropy_metrics, set_advantages
from marsrl_verl.evaluation.training_metrics import training_metrics
from marsrl_verl.reporting.rollout_log import step_lines
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.settings.choices import LossMean
from marsrl_verl.verl_adapter.engine.batch import BatchLayout, StepBatch, arrange
from marsrl_verl.verl_adapter.engine.policy_loss import update_loss
from marsrl_verl.verl_adapter.trainer.loss_inputs import correct_off_policy
from marsrl_verl.verl_adapter.trainer.policy_trainer import PolicyTrainer

AGENTS = {"meta_thinking": "meta", "reasoning": "reason"}
MODELS = {"meta": TinyModel(seed=0), "reason": TinyModel(seed=1)}
VERSIONS = {"meta": 3, "reason": 2}


class Dialogues:
    """Group-relative advantages; of the meta-thinking agent's responses the last token is left out."""

    def advantages(self, rows):
        return rows.to_tokens(group_relative(rows, normalize_std=False).astype(np.float32))

    def masks(self, rows, advantages):
        left_out = np.zeros(rows.tokens, dtype=bool)
        for row in range(len(rows)):
            left_out[rows.slice(row).stop - 1] = rows.sequence(row).policy == "meta"
        return left_out

    def token_shares(self, rows, advantages):
        return {}


class Method(core_method.Method):
    @classmethod
    def group_metrics(cls, groups):
        return {}


def dialogues() -> list[Group]:
    """Two groups; the first trajectory of each ended before the second agent spoke."""
    generator = np.random.default_rng(4)

    def sequence(role: str, reward: float | None) -> Sequence:
        prompt, response = generator.integers(1, 7), generator.integers(4, 12)
        ids = generator.integers(VOCABULARY, size=prompt + response)
        mask = [int(k % 4 != 3) for k in range(response)]
        turns = np.array([k // 4 if own else -1 for k, own in enumerate(mask)], dtype=np.int16)
        return Sequence(
            role, ids[:prompt], ids[prompt:], [-1.5] * response, mask, ((response, 2),), AGENTS[role],
            {TURN: turns}, reward, prompt_text=f"asked of {role}", text=f"said by {role}",
        )  # fmt: skip

    def member(name: str, k: int, reward: float) -> Trajectory:
        own = [None, 1.0 - reward]  # the reasoning agent has rewards of its own
        sequences = [sequence(role, one) for role, one in zip(AGENTS, own, strict=True)]
        found = RewardResult(reward)
        return Trajectory(f"{name}#{k}", sequences[: 1 + (k > 0)], FinishReason.STOP, "x", "x", found)

    groups = []
    for name in ("p0/dialogue/0", "p1/dialogue/0"):
        request = RolloutRequest(name, Problem(name, "?", "1"), "dialogue", "meta_thinking", (), n=4)
        rewards = enumerate((0.0, 1.0, 0.0, 1.0))
        groups.append(Group(request, [member(name, k, reward) for k, reward in rewards]))
    return groups


def with_loss_inputs(groups: list[Group], ranks: int, micro_rows: int) -> StepBatch:
    plan = BatchLayout(ranks, seed=1, step=3, micro_batch_rows=micro_rows)
    batch = arrange(groups, comparable_rows(groups), lambda policy: plan, lambda rows: 1, (TURN,))
    rows = batch.rows
    rows.columns[OLD_LOG_PROBS] = np.zeros(rows.tokens)
    rows.columns[ENTROPIES] = np.ones(rows.tokens)
    for row in range(len(rows)):
        model = MODELS[rows.sequence(row).policy]
        with torch.no_grad():
            rows.columns[OLD_LOG_PROBS][rows.slice(row)] = model.response_log_probs(rows.sequence(row))
    assert set(entropy_metrics(rows)) >= {f"role/{role}/entropy" for role in AGENTS}
    set_advantages(rows, Dialogues())
    versions = np.array([VERSIONS[rows.sequence(row).policy] for row in range(len(rows))], dtype=np.int32)
    correct_off_policy(rows, OffPolicyConfig(), versions, np.ones(len(rows), dtype=bool))
    return batch


def gradients(
    batch: StepBatch, ranks: int, micro_rows: int, mean: LossMean | None
) -> dict[str, torch.Tensor]:
    """Of each policy's update, through one group of workers that holds the rows of both."""
    workers = Workers(ranks)
    actor = {
        "calculate_entropy": False, "entropy_coeff": 0.0, "ppo_epochs": 1, "data_loader_seed": 42,
        "shuffle": False,
    }  # fmt: skip
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"actor": actor}}), _workers=lambda policy: workers,
        settings=SimpleNamespace(training=SimpleNamespace(loss_mean=mean)), _loss=LossSpec(),
        _loss_columns=(TURN,),
    )  # fmt: skip
    optim = FSDPOptimizerConfig(lr=1e-3)
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, use_torch_compile=False, optim=optim
    )
    loss_fn = functools.partial(update_loss, functools.partial(ppo_loss, config=config))
    for part in batch.parts:
        workers.hold_rows(part.ids(1.0))
    found = {}
    for part in batch.parts:
        PolicyTrainer._update_policy(trainer, part)
        model = MODELS[part.policy]
        model.zero_grad()
        tokens = sum(int(share["loss_mask"].sum()) for share in workers.shares)
        for share in workers.shares:
            tu.assign_non_tensor(share, batch_num_tokens=tokens, dp_size=ranks)
            tu.assign_non_tensor(share, use_dynamic_bsz=False, micro_batch_size_per_gpu=micro_rows)
            for micro_batch in prepare_micro_batches(share)[0]:
                loss, _ = loss_fn(model_output=model.output(micro_batch), data=micro_batch)
                (loss / ranks).backward()
        found[part.policy] = torch.cat([one.grad.flatten() for one in model.parameters()])
    return found


def by_definition(policy: str, mean: LossMean | None) -> torch.Tensor:
    """At ratio 1: of -A log p, averaged over this policy's tokens, or over its turns."""
    model, number = MODELS[policy], list(VERSIONS).index(policy)
    model.zero_grad()
    losses, turns = [], []
    for group in dialogues():
        members = [one for one in group.trajectories if number < len(one.sequences)]
        own = {one.trajectory_id: one.sequences[number].reward for one in members}
        rewards = {one.trajectory_id: own.get(one.trajectory_id) for one in group.trajectories}
        # Without a reward of its own, or without such a sequence, a trajectory counts with its reward.
        for one in group.trajectories:
            if rewards[one.trajectory_id] is None:
                rewards[one.trajectory_id] = one.value
        average = float(np.mean(list(rewards.values())))
        for one in members:
            sequence = one.sequences[number]
            kept = torch.from_numpy(sequence.response_mask.astype(bool))
            worth = torch.full((len(sequence),), rewards[one.trajectory_id] - average, dtype=torch.float64)
            if policy == "meta":
                worth[-1] = 0.0  # left out, and still counted
            loss = -worth * model.response_log_probs(sequence)
            losses.append(loss[kept])
            of_turn = torch.from_numpy(sequence.annotations[TURN].astype(np.int64))
            turns += [loss[kept & (of_turn == turn)].mean() for turn in of_turn[kept].unique()]
    (torch.cat(losses).mean() if mean is None else torch.stack(turns).mean()).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


@pytest.mark.parametrize("mean", [None, LossMean.TURN])
@pytest.mark.parametrize(("ranks", "micro_rows"), [(1, 16), (1, 3), (2, 2), (3, 1)])
def test_each_policys_update_is_that_of_its_own_sequences(ranks, micro_rows, mean):
    batch = with_loss_inputs(dialogues(), ranks, micro_rows)
    assert [part.policy for part in batch.parts] == ["meta", "reason"]
    assert [len(part.members) for part in batch.parts] == [8, 6]
    found = gradients(batch, ranks, micro_rows, mean)
    for policy, gradient in found.items():
        torch.testing.assert_close(gradient, by_definition(policy, mean), rtol=1e-5, atol=1e-8)
        assert gradient.abs().max() > 1e-3


def test_the_record_has_a_line_and_advantages_for_each_sequence(tmp_path):
    groups = dialogues()
    batch = with_loss_inputs(groups, ranks=2, micro_rows=2)
    trained = token_advantages(batch.rows, batch.rows.columns[ADVANTAGES])
    folder = RunFolder.create(tmp_path)
    folder.write_rollouts(3, step_lines(3, groups, lambda request, one: {}), trained)
    lines = [json.loads(one) for one in (tmp_path / "rollouts" / "step_3.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * (1 + 3 * 2)
    for line in lines:
        role = list(AGENTS)[line["sequence"]]
        assert (line["role"], line["policy"]) == (role, AGENTS[role])
        assert (line["prompt"], line["response"]) == (f"asked of {role}", f"said by {role}")
    saved = json.loads((tmp_path / "trained" / "step_3.json").read_text())
    for group in groups:
        for one in group.trajectories:
            parts = saved[one.trajectory_id]
            assert [part[-1][0] for part in parts] == [len(sequence) for sequence in one.sequences]
            assert parts[0][-1][1] == 0.0, "the token that was left out"
    found = training_metrics(groups, Method)
    assert (found["role/meta_thinking/samples"], found["role/reasoning/samples"]) == (8, 6)
    assert found["role/meta_thinking/reward_mean"] == 0.5
    assert found["role/reasoning/reward_mean"] == pytest.approx(1 / 3)
