"""The suite of ReMA: what its runs are."""

from __future__ import annotations

import pytest
from launching import settings

from marsrl_verl.config.checks.context import typed_settings

pytestmark = pytest.mark.slow

METHODS = {
    "vrp_rl": ("rema_single_turn", 1),
    "mrp_rl": ("rema_single_turn", 1),
    "single_turn": ("rema_single_turn", 2),
    "dialogue_shared": ("rema", 1),
    "dialogue_adapters": ("rema", 2),
    "dialogue_models": ("rema", 2),
}


def test_all_of_them_answer_the_same_problems_with_one_or_two_policies():
    assert list(settings("rema")) == list(METHODS)
    files = set()
    for method, config in settings("rema").items():
        typed = typed_settings(config)
        policies = {typed.policy_of(role) for role in ("meta_thinking", "reasoning")}
        assert (typed.algo.name, len(policies)) == METHODS[method]
        files.add((config.data.train_files, config.data.val_files))
    assert len(files) == 1
