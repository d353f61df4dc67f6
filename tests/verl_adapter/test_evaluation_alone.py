"""`trainer.val_only`: a run that evaluates and trains nothing."""

from __future__ import annotations

from scripted_trainer import ScriptedTrainer


def evaluate(folder, **arguments) -> ScriptedTrainer:
    trainer = ScriptedTrainer(folder, 6, **arguments)
    trainer.config.trainer.val_only = True
    trainer.settings.evaluation.before = trainer.settings.evaluation.after = True
    trainer.fit()
    return trainer


def test_a_fresh_model_is_evaluated_once_and_not_trained(tmp_path):
    trainer = evaluate(tmp_path)
    assert trainer.evaluated == [("alone", 0), ("finished", 0)]
    assert not (tmp_path / "batches").exists()
    assert trainer.saved == []


def test_a_checkpoint_is_evaluated_and_stays_as_it_is(tmp_path):
    trained = tmp_path / "trained"
    trained.mkdir()
    ScriptedTrainer(trained, 4).fit()
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    alone = tmp_path / "alone"
    alone.mkdir()
    trainer = evaluate(alone, resume_from=trained / "checkpoints" / "global_step_2")
    assert trainer.evaluated == [("alone", 2), ("finished", 2)]
    assert trainer.actor_rollout_wg.steps == [1, 2]
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
