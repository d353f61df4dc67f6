"""The configurations that a suite's runs are launched with: composed and checked once for all tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from omegaconf import DictConfig

from marsrl_verl.compare.plan import Run, plan_runs
from marsrl_verl.compare.suite import FOLDER, load_suite
from marsrl_verl.config.application import main

_FOLDER = tempfile.TemporaryDirectory(suffix=" a folder")


@functools.cache
def launched(name: str) -> dict[str, tuple[Run, DictConfig]]:
    """By method. A grid's have its first value alone. Of methods that are those of the suite that this one is
    like there is the first alone: the others are launched there."""
    suite = load_suite(name)
    runs = plan_runs(suite, 1, Path(_FOLDER.name))[:: len(suite.grid.values) if suite.grid else 1]
    if "\nmethods:" not in (FOLDER / f"{name}.yaml").read_text():
        runs = runs[:1]
    configs: list[DictConfig] = []

    def launch(config: DictConfig) -> int:
        configs.append(config)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(_FOLDER.name)
        for run in runs:
            assert main([*run.overrides], launch) == 0, run.method
    return {run.method: (run, config) for run, config in zip(runs, configs, strict=True)}


def settings(name: str) -> dict[str, DictConfig]:
    """The configuration of each method."""
    return {method: config for method, (_, config) in launched(name).items()}
