"""What a warm-started tiny model must be like."""

from __future__ import annotations

# Means at temperature 1 on held-out problems; a fresh warm start must lie in them too.
RANGES = {
    "solver_accuracy": (0.30, 0.65),
    "solver_accuracy_greedy": (0.45, 0.85),
    "verifier_accuracy": (0.60, 0.85),
    "verifier_recall": (0.60, 0.95),
    "verifier_false_alarm_rate": (0.10, 0.40),
    "corrector_fix_rate": (0.15, 0.70),
    "system_accuracy": (0.40, 0.87),
}


def assert_mediocre(estimates):
    outside = {
        name: round(estimates[name].mean, 3)
        for name, (low, high) in RANGES.items()
        if not low <= estimates[name].mean <= high
    }
    assert not outside, f"outside {RANGES}: {outside}"
