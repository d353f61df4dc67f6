"""SIGTERM, SIGINT and engines that are gone, at every moment of a step: what is saved, and what follows."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest
from fake_ray import FakeRay, actor
from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineGuard, EngineWatch
from marsrl_verl.verl_adapter.stop_signals import StopRequested, stop_on_signals
from marsrl_verl.verl_adapter.trainer import engine_trainer

pytestmark = pytest.mark.slow

STEPS, STOPPED_IN = 7, 4
PLAIN = {"overlap": "none"}
SLEEPS = {**PLAIN, "sleeps": True}
SEGMENTS = {**PLAIN, "segments": True, "min_group": 2, "min_groups": 2}
OVERLAPPED = {**SEGMENTS, "overlap": "one_step"}
BEFORE_UPDATE = ("_fit_get_batch", "_fit_generate", "_fit_build_batch", "_fit_compute_log_prob")
FROM_UPDATE_ON = ("_fit_update_actor", "_fit_describe", "_fit_save_checkpoint")
SAVED = dict.fromkeys(BEFORE_UPDATE, STOPPED_IN - 1) | dict.fromkeys(FROM_UPDATE_ON, STOPPED_IN)
"""The step whose weights are saved, by the method after which something happens."""


class FaultyTrainer(ScriptedTrainer):
    """Something happens when a method of step `STOPPED_IN` has done its work."""

    def __init__(self, folder, where: str, fault, *, save_freq: int = 100, **settings) -> None:
        super().__init__(folder, STEPS, save_freq=save_freq, **settings)
        self.fault = fault
        method = getattr(self, where)

        def with_fault(*arguments, **more):
            found = method(*arguments, **more)
            if self.global_steps == STOPPED_IN and self.fault is not None:
                happens, self.fault = self.fault, None
                happens()
            return found

        setattr(self, where, with_fault)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop(folder, where: str, **settings) -> FaultyTrainer:
    trainer = FaultyTrainer(folder, where, terminate, **settings)
    with stop_on_signals(), pytest.raises(StopRequested, match="SIGTERM"):
        trainer.fit()
    return trainer


def finish(folder, *, save_freq: int = 100, **settings) -> tuple[dict[int, dict], list[int]]:
    """The lines of the folder's runs by step, the later ones' of a repeated step, and the updates."""
    trainer = ScriptedTrainer(folder, STEPS, save_freq=save_freq, **settings)
    trainer.fit()
    return {line["step"]: line for line in batches(folder)}, trainer.weights.steps


def newest(folder) -> int | None:
    return checkpoint.newest_complete(folder / "checkpoints")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What `finish` tells of a run to which nothing happens, by its settings."""
    return functools.cache(lambda **settings: finish(tmp_path_factory.mktemp("whole"), **settings))


@pytest.mark.parametrize(
    ("where", "settings", "save_freq"),
    [
        *((where, SEGMENTS, 100) for where in SAVED),
        *((where, PLAIN, 1) for where in ("_fit_get_batch", "_fit_compute_log_prob", "_fit_update_actor")),
        *((where, SLEEPS, 100) for where in ("_fit_get_batch", "_fit_generate", "_fit_save_checkpoint")),
    ],
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, undisturbed, where, settings, save_freq):
    stop(tmp_path, where, save_freq=save_freq, **settings)
    assert newest(tmp_path) == SAVED[where]
    assert finish(tmp_path, save_freq=save_freq, **settings) == undisturbed(**settings)


@pytest.mark.parametrize(
    "where", ["_fit_get_batch", "_fit_compute_log_prob", "_fit_update_actor", "_fit_save_checkpoint"]
)
def test_with_overlap_the_round_in_flight_is_asked_again(tmp_path, where):
    # The weights of the update in between are in the engine by then, so other segments may come.
    stop(tmp_path, where, **OVERLAPPED)
    trained = SAVED[where]
    assert newest(tmp_path) == trained
    lines, _ = finish(tmp_path, **OVERLAPPED)
    assert sorted(lines) == list(range(1, STEPS + 1))
    names = [row[0] for line in lines.values() for row in line["rows"]]
    assert len(names) == len(set(names)), "no sample is trained twice"
    again = [row for row in lines[trained + 1]["rows"] if row[2][-1][1] == trained]
    assert again, "the first round after the resume has the newest weights"


def test_a_signal_in_an_evaluation_saves_the_step_before(tmp_path):
    stop(tmp_path, "_evaluate", every=STOPPED_IN, **PLAIN)
    # The signal is heeded at the next step's round, or at the end of this step.
    assert newest(tmp_path) == STOPPED_IN


@pytest.mark.parametrize(("save_freq", "saved"), [(1, [1, 2, 3]), (-1, [])])
def test_what_is_complete_or_not_wanted_is_not_saved_at_the_end(tmp_path, save_freq, saved):
    assert stop(tmp_path, "_fit_generate", save_freq=save_freq, **PLAIN).saved == saved


def test_the_engine_drops_its_round_and_sleeps_before_the_trainer_saves(tmp_path):
    engine = stop(tmp_path, "_fit_get_batch", **SLEEPS).async_rollout_manager
    assert engine.told_to_drop == 1 and engine.asleep


def test_an_engine_that_does_not_drop_its_round_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_trainer, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(engine_watch, "POLL_S", 0.01)
    ray = FakeRay()
    monkeypatch.setattr(engine_watch, "ray", ray)
    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", terminate, **PLAIN)
    hanging, release = actor(pulse=lambda through_core: (0, 0)), threading.Event()
    trainer.engines = EngineGuard(EngineWatch([hanging], 60.0, ray.clock), 60.0)
    trainer.checkpoint_manager.abort_replicas = lambda reject_request: release.wait()
    with stop_on_signals(), pytest.raises(StopRequested):
        trainer.fit()
    release.set()
    assert ray.killed == [hanging]
    assert trainer.saved[-1] == STOPPED_IN - 1


def test_a_state_that_cannot_be_saved_changes_nothing_about_the_end(tmp_path, capsys):
    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", terminate, **PLAIN)

    def full(*_):
        raise OSError("no space left on device")

    trainer._save_checkpoint = full
    with stop_on_signals(), pytest.raises(StopRequested):
        trainer.fit()
    assert "Step 3 could not be saved: OSError: no space left" in capsys.readouterr().out


# --- engines --------------------------------------------------------------------------------------------


def gone() -> None:
    raise EngineUnavailableError("vLLM server 0 is gone")


@pytest.mark.parametrize(("settings", "save_freq"), [(PLAIN, 1), (SEGMENTS, 100)])
def test_an_engine_that_dies_costs_its_round_only(tmp_path, undisturbed, settings, save_freq):
    with pytest.raises(EngineUnavailableError):
        FaultyTrainer(tmp_path, "_fit_get_batch", gone, save_freq=save_freq, **settings).fit()
    assert newest(tmp_path) == STOPPED_IN - 1
    assert finish(tmp_path, save_freq=save_freq, **settings) == undisturbed(**settings)


def test_nothing_is_saved_in_the_midst_of_a_sync_that_hangs(tmp_path, capsys):
    def begin_to_hang() -> None:
        trainer.engines.left_behind = True
        gone()

    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", begin_to_hang, **PLAIN)
    with pytest.raises(EngineUnavailableError):
        trainer.fit()
    assert trainer.saved == []
    assert "Step 3 could not be saved" in capsys.readouterr().out
