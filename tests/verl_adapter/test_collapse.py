"""What the trainer does when weights are spoiled or nothing is learnt: it ends, and a resume begins with
sound weights."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("verl", reason="the trainer is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

import torch
from scripted_engine import Reply
from scripted_trainer import ScriptedTrainer

from marsrl_verl.evaluation import watch as watching
from marsrl_verl.evaluation.watch import CollapsedError
from marsrl_verl.verl_adapter.checkpoint.files import newest_complete
from marsrl_verl.verl_adapter.engine.warmup_engine import largest_value
from marsrl_verl.verl_adapter.trainer.finite import NotFiniteError
from marsrl_verl.verl_adapter.trainer.policy_trainer import trains_in_fp16


class Spoiled(ScriptedTrainer):
    """From `step` on, the update reports these numbers, or tokens have this log-probability."""

    def __init__(self, folder, *, step: int, update=None, log_prob=None, **settings) -> None:
        super().__init__(folder, 8, save_freq=1, **settings)
        self._from, self._update, self._log_prob = step, update or {}, log_prob

    @property
    def _spoils(self) -> bool:
        return self.global_steps >= self._from

    def _log_probs_and_entropies(self, part, slots):
        log_probs, entropies = super()._log_probs_and_entropies(part, slots)
        if self._spoils and self._log_prob is not None:
            log_probs.values()[0] = self._log_prob
        return log_probs, entropies

    def _update_policy(self, part):
        return super()._update_policy(part) | (self._update if self._spoils else {})


def steps_of(folder) -> list[int]:
    return sorted(int(one.name.rpartition("_")[2]) for one in folder.glob("global_step_*"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("actor/grad_norm", math.inf), ("actor/loss", math.nan), ("actor/weights_max", math.nan)],
)
def test_an_update_that_is_not_finite_ends_the_run_in_its_step(tmp_path, name, value):
    trainer = Spoiled(tmp_path, step=3, update={name: value})
    with pytest.raises(NotFiniteError) as raised:
        trainer.fit()
    message = str(raised.value)
    assert message.startswith(f"step 3: {name} = {value} in the update of policy shared")
    # The weights before it gave sound numbers.
    assert f"The last good checkpoint is {tmp_path / 'checkpoints/global_step_2'}" in message
    assert steps_of(tmp_path / "checkpoints") == [1, 2] and trainer.saved == [1, 2]
    assert trainer.async_rollout_manager.received[-1][1] == 2, "no engine may get these weights"
    ((steps, extra, _),) = trainer.finished
    assert steps == 2 and extra == {"ended early": message}


def test_a_skipped_update_can_be_warned_of_instead(tmp_path):
    trainer = Spoiled(tmp_path, step=3, update={"actor/grad_norm": math.nan})
    trainer.settings.watch.not_finite = "warn"
    trainer.fit()
    assert trainer.global_steps == 8
    (said,) = [one for one in trainer.said if "grad_norm" in one]
    assert said.startswith("warning: step 3: verl skipped an update: actor/grad_norm = nan")
    assert trainer.metrics["warning/not_finite"] == 1


def test_spoiled_weights_end_a_run_that_only_warns(tmp_path):
    trainer = Spoiled(tmp_path, step=3, update={"actor/weights_max": math.nan})
    trainer.settings.watch.not_finite = "warn"
    with pytest.raises(NotFiniteError):
        trainer.fit()


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_probabilities_tell_that_the_step_before_spoiled_the_weights(tmp_path, value):
    trainer = Spoiled(tmp_path, step=3, log_prob=value)
    with pytest.raises(NotFiniteError, match=r"step 3: .*log-probabilities of policy shared are not finite"):
        trainer.fit()
    checkpoints = tmp_path / "checkpoints"
    assert newest_complete(checkpoints) == 1
    assert [one.name for one in (checkpoints / "replaced").iterdir()] == ["global_step_2.1"]
    # Go on from the sound one.
    resumed = ScriptedTrainer(tmp_path, 4, save_freq=1)
    resumed.fit()
    assert steps_of(checkpoints) == [1, 2, 3, 4]


def test_a_model_that_is_no_use_from_the_start_is_named(tmp_path):
    trainer = Spoiled(tmp_path, step=1, log_prob=math.nan)
    with pytest.raises(NotFiniteError, match=r"There is no checkpoint from before.*before any training"):
        trainer.fit()
    assert steps_of(tmp_path / "checkpoints") == []


def always_wrong(item, k) -> Reply:
    return Reply("\\boxed{0.5}")


def test_a_run_without_a_trained_group_ends_and_keeps_its_state(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "LEAST_IDLE", 1)
    trainer = ScriptedTrainer(tmp_path, 30, save_freq=100, script=always_wrong)
    with pytest.raises(CollapsedError, match="steps 1 to 5: no group was trained"):
        trainer.fit()
    assert trainer.saved == [5]
    assert trainer.metrics["warning/nothing_trained"] == 1
    ((steps, extra, warnings),) = trainer.finished
    assert steps == 5 and "no group was trained" in extra["ended early"]
    assert {one.rule for one in warnings} >= {"nothing_trained"}
    # It can go on: what ended it counts anew.
    resumed = ScriptedTrainer(tmp_path, 8, save_freq=100, script=always_wrong)
    resumed.fit()
    assert resumed.global_steps == 8


def test_a_run_that_ends_anyway_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "LEAST_IDLE", 1)
    trainer = ScriptedTrainer(tmp_path, 5, script=always_wrong)
    trainer.fit()
    assert trainer.metrics["warning/nothing_trained"] == 1


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_an_engine_with_spoiled_weights_ends_the_run_before_they_train(tmp_path, value):
    trainer = ScriptedTrainer(tmp_path, 8, save_freq=1)
    engine = trainer.async_rollout_manager
    answer = engine._answer

    def spoiled(requests, sampling):
        outputs = answer(requests, sampling)
        if trainer.global_steps == 4:
            outputs[0].trajectories[0].sequence.rollout_log_probs[0] = value
        return outputs

    engine._answer = spoiled
    with pytest.raises(NotFiniteError, match="step 4: the engine's log-probabilities are not finite in 1 of"):
        trainer.fit()
    assert newest_complete(tmp_path / "checkpoints") == 2, "step 3 has the weights that gave them"
    assert trainer.weights.steps == [1, 2, 3]


def test_the_largest_weight_is_nan_where_one_is():
    parameters = [torch.tensor([1.0, -3.0]), torch.tensor([[2.0]]), torch.zeros(0)]
    assert largest_value(parameters) == 3.0
    assert largest_value([]) == 0.0
    assert math.isnan(largest_value([*parameters, torch.tensor([math.nan, 9.0])]))
    assert math.isinf(largest_value([*parameters, torch.tensor([-math.inf])]))
    assert largest_value([torch.tensor([1e30], dtype=torch.bfloat16)]) == pytest.approx(1e30, rel=0.01)


@pytest.mark.parametrize(("precision", "scaled"), [("fp16", True), ("bf16", False), (None, False)])
def test_a_gradient_scaler_looks_after_fp16(precision, scaled):
    mixed = None if precision is None else {"param_dtype": precision}
    assert trains_in_fp16({"fsdp_config": {"mixed_precision": mixed}}) is scaled
