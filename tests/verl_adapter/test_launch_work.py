"""What a launched run does is named by a function."""

from __future__ import annotations

from pathlib import Path

from marsrl_verl.verl_adapter import launch

seen: list[tuple] = []


def note(config, session):
    seen.append((config, session))


def test_a_run_trains_unless_other_work_is_named(monkeypatch):
    trained = []
    monkeypatch.setattr(launch, "train", lambda config, session=None: trained.append((config, session)))
    launch.do(launch.TRAIN, {"a": 1})
    assert trained == [({"a": 1}, None)]


def test_other_work_gets_configuration_and_session():
    launch.do(f"{__name__}:note", {"a": 1}, Path("/session"))
    assert seen == [({"a": 1}, Path("/session"))]
