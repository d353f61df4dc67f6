"""The warm-started model that is shipped: mediocre in every role, so that there is something to learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from marsrl_verl.demo.assets import model_path
from studies.tiny.measure import measure
from studies.tiny.tokenizer import vocabulary

# Means at temperature 1 on held-out problems.
RANGES = {
    "solver_accuracy": (0.30, 0.65),
    "solver_accuracy_greedy": (0.45, 0.85),
    "verifier_accuracy": (0.60, 0.85),
    "verifier_recall": (0.60, 0.95),
    "verifier_false_alarm_rate": (0.10, 0.40),
    "corrector_fix_rate": (0.15, 0.70),
    "system_accuracy": (0.40, 0.87),
}


@pytest.fixture(scope="module")
def estimates():
    return measure(AutoModelForCausalLM.from_pretrained(model_path()), problems=200)


@pytest.mark.parametrize("name", RANGES)
def test_every_role_is_mediocre(estimates, name):
    low, high = RANGES[name]
    assert low <= estimates[name].mean <= high


def test_it_is_small_and_has_the_tiny_tokenizer():
    assert sum(path.stat().st_size for path in Path(model_path()).iterdir()) <= 2_000_000
    assert AutoTokenizer.from_pretrained(model_path()).get_vocab() == vocabulary()
