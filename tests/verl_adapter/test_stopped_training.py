"""SIGTERM, SIGINT and engines that are gone, at every moment of a step: what is saved, and what follows."""

from __future__ import annotations

import os
import pickle
import signal
import threading

import pytest
from fake_ray import FakeRay, actor
from omegaconf import OmegaConf
from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.checkpoint import sealed as checkpoint
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineGuard, EngineWatch
from marsrl_verl.verl_adapter.run import template_run
from marsrl_verl.verl_adapter.stop_signals import StopRequested, stop_on_signals
from marsrl_verl.verl_adapter.trainer import engine_trainer

pytestmark = pytest.mark.slow

STEPS, STOPPED_IN = 7, 4
PLAIN = {"overlap": "none"}
SEGMENTS = {"overlap": "none", "segments": True, "min_group": 2, "min_groups": 2}
OVERLAPPED = {"overlap": "one_step", "segments": True, "min_group": 2, "min_groups": 2}
BEFORE_UPDATE = ("_fit_get_batch", "_fit_generate", "_fit_build_batch", "_fit_compute_log_prob")
FROM_UPDATE_ON = ("_fit_update_actor", "_fit_describe", "_fit_save_checkpoint")


class FaultyTrainer(ScriptedTrainer):
    """Something happens when a method of step `STOPPED_IN` has done its work."""

    def __init__(self, folder, where: str, fault, **settings) -> None:
        super().__init__(folder, STEPS, **settings)
        self.fault = fault
        method = getattr(self, where)

        def with_fault(*arguments, **more):
            found = method(*arguments, **more)
            if self.global_steps == STOPPED_IN and self.fault is not None:
                happens, self.fault = self.fault, None
                happens()
            return found

        setattr(self, where, with_fault)


def send(number: signal.Signals):
    return lambda: os.kill(os.getpid(), number)


def stop(folder, where: str, number=signal.SIGTERM, **settings) -> FaultyTrainer:
    folder.mkdir(exist_ok=True)
    trainer = FaultyTrainer(folder, where, send(number), **settings)
    with stop_on_signals(), pytest.raises(StopRequested) as stopped:
        trainer.fit()
    assert stopped.value.number == number
    return trainer


def finish(folder, **settings) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(folder, STEPS, **settings)
    trainer.fit()
    return trainer


def by_step(folder) -> dict[int, dict]:
    return {line["step"]: line for line in batches(folder)}


@pytest.mark.parametrize("save_freq", [1, 100])
@pytest.mark.parametrize("settings", [PLAIN, SEGMENTS, {**PLAIN, "sleeps": True}])
@pytest.mark.parametrize("where", [*BEFORE_UPDATE, *FROM_UPDATE_ON])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, where, settings, save_freq):
    whole = finish(tmp_path / "whole", save_freq=100, **settings)
    stop(tmp_path / "a", where, save_freq=save_freq, **settings)
    trained = STOPPED_IN if where in FROM_UPDATE_ON else STOPPED_IN - 1
    assert checkpoint.newest_sealed(tmp_path / "a/checkpoints") == trained
    resumed = finish(tmp_path / "a", save_freq=save_freq, **settings)
    assert by_step(tmp_path / "a") == by_step(tmp_path / "whole")
    assert resumed.actor_rollout_wg.steps == whole.actor_rollout_wg.steps


@pytest.mark.parametrize("where", [*BEFORE_UPDATE, *FROM_UPDATE_ON])
def test_with_overlap_the_round_in_flight_is_asked_again(tmp_path, where):
    # The weights of the update in between are in the engine by then, so other segments may come.
    stop(tmp_path / "a", where, save_freq=100, **OVERLAPPED)
    trained = STOPPED_IN if where in FROM_UPDATE_ON else STOPPED_IN - 1
    assert checkpoint.newest_sealed(tmp_path / "a/checkpoints") == trained
    finish(tmp_path / "a", save_freq=100, **OVERLAPPED)
    lines = by_step(tmp_path / "a")
    assert sorted(lines) == list(range(1, STEPS + 1))
    names = [row[0] for line in lines.values() for row in line["rows"]]
    assert len(names) == len(set(names)), "no sample is trained twice"
    again = [row for row in lines[trained + 1]["rows"] if row[2][-1][1] == trained]
    assert again, "the first round after the resume has the newest weights"


def test_a_signal_in_an_evaluation_saves_the_step_before(tmp_path):
    stop(tmp_path, "_evaluate", every=STOPPED_IN, save_freq=100, **PLAIN)
    # The signal is heeded at the next step's round, or at the end of this step.
    assert checkpoint.newest_sealed(tmp_path / "checkpoints") == STOPPED_IN


def test_a_step_that_is_sealed_is_not_saved_again(tmp_path):
    trainer = stop(tmp_path, "_fit_generate", save_freq=1, **PLAIN)
    assert trainer.saved == [1, 2, 3]


def test_without_checkpoints_a_stopped_run_leaves_none(tmp_path):
    trainer = stop(tmp_path, "_fit_generate", save_freq=-1, **PLAIN)
    assert trainer.saved == []


def test_the_engine_drops_its_round_and_sleeps_before_the_trainer_saves(tmp_path):
    trainer = stop(tmp_path, "_fit_get_batch", save_freq=100, sleeps=True, **PLAIN)
    assert trainer.async_rollout_manager.told_to_drop == 1
    assert trainer.async_rollout_manager.asleep


def test_an_engine_that_does_not_drop_its_round_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_trainer, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(engine_watch, "POLL_S", 0.01)
    ray = FakeRay()
    monkeypatch.setattr(engine_watch, "ray", ray)
    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", send(signal.SIGTERM), save_freq=100, **PLAIN)
    hanging, release = actor(pulse=lambda through_core: (0, 0)), threading.Event()
    trainer.engines = EngineGuard(EngineWatch([hanging], 60.0, ray.clock), 60.0)
    trainer.checkpoint_manager.abort_replicas = lambda reject_request: release.wait()
    with stop_on_signals(), pytest.raises(StopRequested):
        trainer.fit()
    release.set()
    assert ray.killed == [hanging]
    assert trainer.saved[-1] == STOPPED_IN - 1


def test_a_state_that_cannot_be_saved_changes_nothing_about_the_end(tmp_path, capsys):
    tmp_path.mkdir(exist_ok=True)
    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", send(signal.SIGINT), save_freq=100, **PLAIN)

    def full(*_):
        raise OSError("no space left on device")

    trainer._save_checkpoint = full
    with stop_on_signals(), pytest.raises(StopRequested):
        trainer.fit()
    assert "Step 3 could not be saved: OSError: no space left" in capsys.readouterr().out


# --- engines --------------------------------------------------------------------------------------------


def gone() -> None:
    raise EngineUnavailableError("vLLM server 0 is gone")


@pytest.mark.parametrize("settings", [PLAIN, SEGMENTS])
@pytest.mark.parametrize("save_freq", [1, 100])
def test_an_engine_that_dies_costs_its_round_only(tmp_path, settings, save_freq):
    finish(tmp_path / "whole", save_freq=100, **settings)
    folder = tmp_path / "a"
    folder.mkdir()
    trainer = FaultyTrainer(folder, "_fit_get_batch", gone, save_freq=save_freq, **settings)
    with pytest.raises(EngineUnavailableError):
        trainer.fit()
    assert checkpoint.newest_sealed(folder / "checkpoints") == STOPPED_IN - 1
    finish(folder, save_freq=save_freq, **settings)
    assert by_step(folder) == by_step(tmp_path / "whole")


def test_nothing_is_saved_in_the_midst_of_a_sync_that_hangs(tmp_path, capsys):
    trainer = FaultyTrainer(tmp_path, "_fit_get_batch", gone, save_freq=100, **PLAIN)
    trainer._fit_generate = lambda: None

    def begin_to_hang():
        trainer.engines.left_behind = True
        gone()

    trainer.fault = begin_to_hang
    trainer._fit_generate = type(trainer)._fit_generate.__get__(trainer)
    with pytest.raises(EngineUnavailableError):
        trainer.fit()
    assert trainer.saved == []
    assert "Step 3 could not be saved" in capsys.readouterr().out


# --- signals ----------------------------------------------------------------------------------------------


def test_while_the_run_starts_a_signal_ends_it_at_once():
    with stop_on_signals(), pytest.raises(StopRequested) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.status == 143


def test_a_deferred_signal_waits_for_the_next_check(capsys):
    with stop_on_signals(), stop_signals.deferred():
        stop_signals.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopRequested, match="SIGINT") as stopped:
            stop_signals.check()
    assert stopped.value.status == 130


def test_the_second_signal_ends_the_process():
    pid = os.fork()
    if pid == 0:
        with stop_on_signals(), stop_signals.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] == before


def test_rays_own_handler_does_not_stay():
    def ray_init() -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    with stop_on_signals():
        with pytest.raises(StopRequested), stop_signals.while_ray_starts():
            ray_init()
        with pytest.raises(StopRequested):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_while_the_forked_driver_connects_has_its_own_status(tmp_path, monkeypatch, capsys):
    def ray_init(**_connection) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("ray.init", ray_init)
    run = {"output_dir": str(tmp_path), "command": ["python"]}
    trainer = {"default_local_dir": str(tmp_path / "none"), "save_freq": 1, "val_only": False}
    config = OmegaConf.create({"marsrl": {"run": run}, "trainer": {**trainer, "resume_mode": "auto"}})
    payload = tmp_path / "payload"
    monkeypatch.setattr(template_run, "over_verls_variables", lambda config, runtime_env: runtime_env)
    payload.write_bytes(pickle.dumps((config, {"runtime_env": {}}, "module:function", {})))
    with pytest.raises(SystemExit) as end:
        template_run.drive(os.open(payload, os.O_RDONLY))
    assert end.value.code == 143 and "ended by SIGTERM" in capsys.readouterr().out
