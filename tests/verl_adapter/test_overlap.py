"""Generation beside training: what trains, with which weights, and what a kill changes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import time

import pytest
from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.verl_adapter.checkpoint import files as checkpoint

pytestmark = pytest.mark.slow

STEPS = 12
KILLS = 12
PLAIN = {"overlap": "none"}
OVERLAPPED = {"overlap": "one_step"}
SEGMENTS = {**OVERLAPPED, "segments": True, "min_group": 2, "min_groups": 2}


def run(folder, steps=STEPS, **settings) -> ScriptedTrainer:
    folder.mkdir(exist_ok=True)
    trainer = ScriptedTrainer(folder, steps, **settings)
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The whole run with these settings, one for all tests, which only look at it."""
    return functools.cache(lambda **settings: run(tmp_path_factory.mktemp("usual"), **settings))


def without_versions(lines: list[dict]) -> list:
    return [[row[:2] for row in line["rows"]] for line in lines]


def test_overlap_trains_the_same_samples_with_weights_one_step_older(usual):
    plain, overlapped = usual(**PLAIN), usual(**OVERLAPPED)
    assert without_versions(batches(plain.folder)) == without_versions(batches(overlapped.folder))
    for one, age in ((plain, 1), (overlapped, 2)):
        for line in batches(one.folder):
            assert {version for row in line["rows"] for _, version in row[2]} <= {max(0, line["step"] - age)}
    assert plain.generated_tokens == overlapped.generated_tokens > 0


def test_the_engine_gets_every_version_once_and_none_while_it_works(usual):
    assert usual(**OVERLAPPED).async_rollout_manager.versions == list(range(STEPS - 1))


def test_an_evaluation_sees_the_weights_of_its_step_and_changes_no_batch(tmp_path, usual):
    without = usual(**OVERLAPPED)
    trainer = run(tmp_path, every=3, **OVERLAPPED)
    assert trainer.evaluated == [("step_3", 3), ("step_6", 6), ("step_9", 9)]
    assert batches(tmp_path) == batches(without.folder)
    assert trainer.generated_tokens == without.generated_tokens


@pytest.mark.parametrize("settings", [PLAIN, OVERLAPPED])
def test_an_engine_that_sleeps_is_woken_before_every_round(tmp_path, usual, settings):
    # It frees its memory between rounds (an engine on GPUs of its own may do so with overlap too).
    trainer = run(tmp_path, sleeps=True, every=3, **settings)
    assert trainer.async_rollout_manager.naps == STEPS
    assert batches(tmp_path) == batches(usual(**settings).folder)


@pytest.mark.parametrize("settings", [PLAIN, OVERLAPPED, SEGMENTS])
def test_the_order_of_completion_changes_no_batch(tmp_path, usual, settings):
    run(tmp_path, engine_seed=None, **settings)
    assert batches(tmp_path) == batches(usual(engine_seed=11, **settings).folder)


def test_the_last_step_leaves_nothing_in_flight(usual):
    trainer = usual(**OVERLAPPED)
    assert not trainer.generation.in_flight
    assert trainer.told_last == [False] * (STEPS - 1) + [True]
    # What was decoded was trained with, or dropped with its problem: no round was decoded for nothing.
    assert trainer.async_rollout_manager.generated == trainer.generated_tokens


@pytest.mark.parametrize("save_freq", [1, 2, 100])
def test_a_token_limit_counts_a_round_when_its_step_uses_it(tmp_path, usual, save_freq):
    limit = usual(**OVERLAPPED).generated_tokens // 2
    plain = run(tmp_path / "plain", limit=limit, save_freq=save_freq, **PLAIN)
    overlapped = run(tmp_path / "overlapped", limit=limit, save_freq=save_freq, **OVERLAPPED)
    assert plain.global_steps == overlapped.global_steps < STEPS
    assert plain.generated_tokens == overlapped.generated_tokens >= limit


def test_a_sync_with_a_round_in_flight_is_refused(tmp_path):
    trainer = ScriptedTrainer(tmp_path, STEPS, **OVERLAPPED)
    trainer._fit_get_batch(1)
    trainer.generation.start_round()
    with pytest.raises(RuntimeError, match="in flight"):
        trainer._fit_update_weights()
    with pytest.raises(RuntimeError, match="in flight"):
        trainer.generation.state_dict()


@pytest.mark.parametrize(("before", "after"), [(PLAIN, OVERLAPPED), (OVERLAPPED, PLAIN)])
def test_overlap_may_change_between_a_run_and_its_continuation(tmp_path, usual, before, after):
    run(tmp_path, steps=4, **before)
    run(tmp_path, **after)
    assert without_versions(batches(tmp_path)) == without_versions(batches(usual(**PLAIN).folder))


def test_a_step_recorded_late_counts_no_time_twice(tmp_path):
    # The run ended between the checkpoint of a step and its record.
    run(tmp_path, steps=2, **OVERLAPPED)
    trainer = ScriptedTrainer(tmp_path, 3, **OVERLAPPED)
    recorded: dict[int, dict[str, float]] = {}
    trainer.observer.recorded = lambda step: False
    trainer.observer.record = lambda step, metrics, timing: recorded.setdefault(step, dict(timing))
    trainer._load_checkpoint()
    trainer.timing = {"gen": 1.0, "rollout": 5.0, "update_actor": 2.0}
    trainer._load_checkpoint = lambda: trainer.global_steps
    trainer.fit()
    assert recorded[2]["step"] == pytest.approx(3.0 + recorded[2]["update_weights"])


def _attempt(folder, settings) -> None:
    run(folder, save_freq=1, **settings)
    (folder / "done").touch()


def kill_at_random_moments(folder, settings, kills: int, seed: int, latest: float) -> tuple[int, list[int]]:
    """Runs in child processes that are killed (-9) `kills` times, then once to the end.

    An attempt is killed at most `latest` seconds after its start. Each must go on from the newest checkpoint.

    Returns:
        The number of kills, and the steps of the checkpoints that attempts began from.
    """
    fork, rng = multiprocessing.get_context("fork"), random.Random(seed)
    done, resumed = 0, []
    while not (folder / "done").exists():
        newest = checkpoint.newest_complete(folder / "checkpoints")
        before = len(batches(folder))
        child = fork.Process(target=_attempt, args=(folder, settings))
        child.start()
        if done < kills:
            child.join(rng.uniform(0.0, latest))
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                done += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        written = batches(folder)[before:]
        if written:
            assert written[0]["step"] == (newest or 0) + 1
            resumed.append(newest or 0)
    return done, resumed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_at_random_moments_change_no_batch(tmp_path):
    whole, started = tmp_path / "whole", time.monotonic()
    run(whole, save_freq=1, **SEGMENTS)
    # A slow machine needs more time until its first checkpoint.
    latest = max(0.25, 0.3 * (time.monotonic() - started))
    expected = {line["step"]: line for line in batches(whole)}
    assert sorted(expected) == list(range(1, STEPS + 1))
    kills, attempt, resumed = 0, 0, []
    started = time.monotonic()
    while kills < KILLS and time.monotonic() - started < 120:
        folder = tmp_path / f"killed_{attempt}"
        more, began = kill_at_random_moments(
            folder, SEGMENTS, kills=KILLS - kills, seed=attempt, latest=latest
        )
        kills, attempt, resumed = kills + more, attempt + 1, resumed + began
        found = batches(folder)
        # A step whose checkpoint was not complete is repeated, with the same rows under the same weights.
        assert {line["step"] for line in found} == set(expected)
        for line in found:
            assert line == expected[line["step"]]
    assert kills == KILLS
    assert len([step for step in resumed if step > 0]) >= 2, resumed


@pytest.mark.parametrize("settings", [PLAIN, OVERLAPPED])
def test_the_ranks_record_the_steps_that_are_profiled(tmp_path, settings):
    trainer, calls = ScriptedTrainer(tmp_path, 4, **settings), []
    trainer.config.global_profiler = {"steps": [2, 4, 9]}
    ranks = trainer.actor_rollout_wg
    ranks.start_profile = lambda **named: calls.append(named["profile_step"])
    ranks.stop_profile = lambda **named: calls.append((trainer.global_steps, len(ranks.steps), named))
    trainer.fit()
    # The update is a part of its step, and the command at the end is the last recorded step's.
    assert calls == [2, (2, 2, {"run_command": False}), 4, (4, 4, {"run_command": True})]
