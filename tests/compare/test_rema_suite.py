"""The suite of ReMA: what its runs are."""

from __future__ import annotations

import pytest

from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.suite import load_suite
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config

pytestmark = pytest.mark.slow

METHODS = {
    "vrp_rl": ("rema_single_turn", 1),
    "mrp_rl": ("rema_single_turn", 1),
    "single_turn": ("rema_single_turn", 2),
    "dialogue_shared": ("rema", 1),
    "dialogue_adapters": ("rema", 2),
    "dialogue_models": ("rema", 2),
}


def test_all_of_them_answer_the_same_problems_with_one_or_two_policies(tmp_path):
    suite = load_suite("rema")
    runs = plan_runs(suite, 1, tmp_path)
    assert [run.method for run in runs] == list(METHODS)
    files = set()
    for run in runs:
        config = compose_config(parse_arguments(list(run.overrides))).config
        settings = typed_settings(config)
        policies = {settings.policy_of(role) for role in ("meta_thinking", "reasoning")}
        assert (settings.algo.name, len(policies)) == METHODS[run.method]
        files.add((config.data.train_files, config.data.val_files))
    assert len(files) == 1
