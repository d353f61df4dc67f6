"""Composing and checking a configuration takes seconds: the same words are composed once."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from preparing import sums, write_lines

from marsrl_verl.data_preparation import application

composed_once = functools.lru_cache(maxsize=None)(application.training_config)


@pytest.fixture(autouse=True)
def compose_once(monkeypatch):
    monkeypatch.setattr(application, "training_config", composed_once)


@pytest.fixture
def source(tmp_path) -> Path:
    """A file of nine sums."""
    return write_lines(tmp_path / "sums.jsonl", sums(9))


@pytest.fixture
def output(tmp_path) -> Path:
    """The folder that the command writes."""
    return tmp_path / "out"
