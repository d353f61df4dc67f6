"""What `run_method` runs of a method: its settings, schedule, credit and what it observes."""

from __future__ import annotations

import pytest

from marsrl_verl.core.credit import EstimatorConfig, EstimatorCredit
from marsrl_verl.core.method import Method
from marsrl_verl.core.schedule import EpochMode, Schedule
from marsrl_verl.testing import run_method


class Credit(EstimatorCredit):
    def masks(self, rows, advantages):
        """All tokens, or too few."""
        return rows.columns["entropies"][self.config.seed :] >= 0


class Passing(Schedule):
    epoch_mode = EpochMode.BARRIER

    def __init__(self, config, tools):
        super().__init__(config, tools)
        self.ended = []

    def epoch_ended(self, step):
        self.ended.append(step)


class Seeded(Method):
    Credit, Schedule = Credit, Passing

    class Config(EstimatorConfig):
        seed: int = 0
        steps: int = 1

    def observe_step(self, view):
        return {"own/rows": float(len(view.rows)), "own/passes": float(len(self.schedule.ended))}


def says(turn):
    return turn.request.problem.ground_truth if turn.k else "no"


def test_settings_with_the_names_of_arguments_schedule_masks_and_what_is_observed():
    config = Seeded.Config(name="seeded", group_size=2, steps=7)
    first, second = run_method(Seeded, says, steps=2, problems=1, config=config)
    assert first.metrics["own/rows"] == 2.0 and second.metrics["own/passes"] == 1.0
    assert first.metrics["actor/masked_token_frac"] == 1.0 and not first.advantages.any()
    assert first.metrics["batch/advantage_max"] > 0.0
    with pytest.raises(ValueError, match=r"Credit.masks gave shape \(\d+,\), expected a value for each"):
        run_method(Seeded, says, problems=1, seed=1)
    with pytest.raises(TypeError, match="config has all settings already: set seed in it"):
        run_method(Seeded, says, config=config, seed=1)
