"""Which checkpoints a run leaves: with a number to keep, when it is killed, and when it is rewound."""

from __future__ import annotations

import errno
import shutil
from types import SimpleNamespace

import pytest
import torch
from scripted_trainer import WEIGHTS, ScriptedTrainer, batches

from marsrl_verl.verl_adapter.checkpoint import files as checkpoint

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """As kill -9: nothing after it runs."""


def kill(*_args):
    raise Killed


def steps_in(folder) -> set[int]:
    return {int(path.name[len("global_step_") :]) for path in (folder / "checkpoints").glob("global_step_*")}


def usable(folder) -> int:
    """The step that a resume would go on from; its files are checked."""
    step = checkpoint.point_tracker_at_newest(folder / "checkpoints")
    assert step is not None, "no checkpoint is left"
    return step


@pytest.mark.parametrize(("keep", "left"), [(None, {2, 4, 6, 8}), (1, {8}), (2, {6, 8}), (9, {2, 4, 6, 8})])
def test_the_newest_are_kept(tmp_path, keep, left):
    trainer = ScriptedTrainer(tmp_path, 8, keep=keep)
    trainer.fit()
    assert steps_in(tmp_path) == left
    assert trainer.config.trainer.max_actor_ckpt_to_keep == keep


def test_those_of_the_run_before_count(tmp_path):
    ScriptedTrainer(tmp_path, 4).fit()
    ScriptedTrainer(tmp_path, 8, keep=2).fit()
    assert steps_in(tmp_path) == {6, 8}


PLACES = ("remove_manifest", "save_state", "data.pt", "write_manifest", "keep_newest", "rmtree")


@pytest.mark.parametrize(("place", "keep"), [*((place, 1) for place in PLACES), ("rmtree", 2)])
def test_a_kill_at_any_moment_of_a_save_leaves_one(tmp_path, monkeypatch, place, keep):
    trainer = ScriptedTrainer(tmp_path, 8, keep=keep)
    owner, name = {"rmtree": (shutil, "rmtree"), "data.pt": (torch, "save")}.get(place, (checkpoint, place))
    original = getattr(owner, name)

    def killed(*args, **kwargs):
        dies = trainer.global_steps == 6 and (place != "data.pt" or str(args[-1]).endswith(place))
        if dies and place == "rmtree":
            (args[0] / "actor" / WEIGHTS).unlink()
        if dies:
            raise Killed
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            trainer.fit()
    assert usable(tmp_path) == (6 if place in ("keep_newest", "rmtree") else 4)
    ScriptedTrainer(tmp_path, 8, keep=keep).fit()
    assert len(steps_in(tmp_path)) == keep and usable(tmp_path) == 8


def test_a_rewound_run_is_not_continued_from_what_it_gave_up(tmp_path):
    ScriptedTrainer(tmp_path, 8).fit()
    given_up = tmp_path / "checkpoints" / "global_step_4"
    first = ScriptedTrainer(tmp_path, 6, resume_from=given_up, save_freq=-1)
    first.fit()
    assert first.global_steps == 6
    assert steps_in(tmp_path) == {2, 4}
    before = len(batches(tmp_path))
    ScriptedTrainer(tmp_path, 8).fit()
    assert batches(tmp_path)[before]["step"] == 5
    aside = tmp_path / "checkpoints" / "replaced"
    assert {path.name for path in aside.iterdir()} == {"global_step_6.1", "global_step_8.1"}


def test_the_checkpoints_go_aside_before_the_metrics(tmp_path):
    ScriptedTrainer(tmp_path, 4).fit()
    trainer = ScriptedTrainer(tmp_path, 4, resume_from=tmp_path / "checkpoints" / "global_step_2")

    trainer.observer.begin = kill
    with pytest.raises(Killed):
        trainer.fit()
    assert usable(tmp_path) == 2


def test_a_folder_that_is_written_again_loses_its_manifest_first(tmp_path, monkeypatch):
    trainer = ScriptedTrainer(tmp_path, 4)
    trainer.fit()
    monkeypatch.setattr(checkpoint, "save_state", kill)
    with pytest.raises(Killed):
        trainer._save_checkpoint()
    assert usable(tmp_path) == 2


def test_a_damaged_file_of_a_rank_is_refused_on_resume(tmp_path):
    ScriptedTrainer(tmp_path, 4).fit()
    weights = tmp_path / "checkpoints" / "global_step_4" / "actor" / WEIGHTS
    weights.write_text(weights.read_text().replace("1", "9"))
    with pytest.raises(checkpoint.CheckpointError, match=f"{WEIGHTS} is damaged.*remove .*global_step_4 to"):
        ScriptedTrainer(tmp_path, 8).fit()
    with pytest.raises(checkpoint.CheckpointError, match=f"{WEIGHTS} is damaged.*name another checkpoint"):
        ScriptedTrainer(tmp_path, 8, resume_from=tmp_path / "checkpoints" / "global_step_4").fit()


def of_torch(*_args, **_kwargs):
    raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 576 vs 470")


def of_the_system(*_args, **_kwargs):
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def no_plain_value(*_args, **_kwargs):
    raise TypeError("checkpoint: state.x is a set, expected plain values")


@pytest.mark.parametrize(
    ("fails", "free", "says"),
    [
        (of_torch, 0, "there is no space left"),
        (of_the_system, 2**40, "there is no space left"),
        (no_plain_value, 2**40, "TypeError: checkpoint: state.x is a set"),
    ],
)
def test_a_save_that_fails_says_why_and_what_room_there_is_and_leaves_nothing(
    tmp_path, monkeypatch, fails, free, says
):
    ScriptedTrainer(tmp_path, 4).fit()
    trainer = ScriptedTrainer(tmp_path, 8)
    monkeypatch.setattr(torch, "save", fails)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(checkpoint.CheckpointError) as caught:
        trainer.fit()
    message = str(caught.value)
    assert f"{tmp_path}/checkpoints/global_step_6 can't be written: {says}" in message
    assert ("no space left" in message) == ("Make room" in message) == (fails is not no_plain_value)
    assert f"has {'0.0 MiB' if free == 0 else '1024.0 GiB'} free" in message and "if_exists=resume" in message
    monkeypatch.undo()
    assert steps_in(tmp_path) == {2, 4}
    ScriptedTrainer(tmp_path, 8).fit()
    assert usable(tmp_path) == 8


def test_an_unreadable_manifest_before_it_hides_no_failed_save(tmp_path):
    for step in (2, 4):
        folder = tmp_path / f"global_step_{step}"
        folder.mkdir()
        (folder / "manifest.json").write_text("not JSON")
    error = checkpoint.give_up(tmp_path / "global_step_4", OSError(errno.ENOSPC, "No space left on device"))
    assert "there is no space left" in str(error) and "takes" not in str(error)
    assert not (tmp_path / "global_step_4").exists()


def test_a_run_that_starts_anew_continues_nothing(tmp_path):
    ScriptedTrainer(tmp_path, 4).fit()
    before = len(batches(tmp_path))
    trainer = ScriptedTrainer(tmp_path, 2, save_freq=-1)
    trainer.continues_run = False  # as `if_exists=replace`, and another run's checkpoint appeared since
    trainer.fit()
    assert [line["step"] for line in batches(tmp_path)[before:]] == [1, 2]


def test_a_worker_describes_the_files_of_its_rank(tmp_path):
    from verl.single_controller.base.decorator import MAGIC_ATTR, Dispatch

    from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker

    for rank in range(2):
        (tmp_path / f"model_world_size_2_rank_{rank}.pt").write_bytes(b"weights")
    call = MarsRLActorRolloutRefWorker.describe_shards
    found = call(SimpleNamespace(rank=1), str(tmp_path))
    assert {name: facts["bytes"] for name, facts in found.items()} == {"model_world_size_2_rank_1.pt": 7}
    assert getattr(call, MAGIC_ATTR)["dispatch_mode"] == Dispatch.ONE_TO_ALL
