"""Real runs that several files look at."""

from __future__ import annotations

import pytest
from training_runs import REPEATABLE, TrainingRun, train


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory) -> TrainingRun:
    """One rank, pipelined, not interrupted."""
    return train(tmp_path_factory.mktemp("runs"), "whole", *REPEATABLE)
