from __future__ import annotations

import pytest

from benchmarks.pipeline_modes import rows_of, table, until, work_of
from benchmarks.training_runs import Step


def step(number: int, rows: float, seconds: float, **metrics: float) -> Step:
    return Step(
        number,
        {"batch/rows": rows, "batch/tokens": 10 * rows, **metrics},
        {"step": seconds, "gen": seconds / 2},
    )


def test_the_last_step_counts_in_part():
    recorded = [step(1, 0, 4.0), step(2, 10, 2.0), step(3, 20, 8.0), step(4, 9, 1.0)]
    seconds, count, tokens, phases = until(recorded, 15)
    assert (seconds, count, tokens) == (4.0 + 2.0 + 2.0, 2.25, 150.0)
    assert phases["gen"] == 4.0 and phases["mark"] == 0.0


def test_a_run_that_trained_too_little_is_an_error():
    with pytest.raises(ValueError, match="trained 10 samples in 1 steps, 11 are needed; raise --extra-steps"):
        until([step(1, 10, 1.0)], 11)


def test_means_are_over_samples():
    def counted(samples, mean, longest):
        return {
            "role/solver/samples": samples,
            "stage/solver/samples": samples,
            "role/solver/response_length_mean": mean,
            "role/solver/response_length_max": longest,
            "role/solver/truncation_frac": mean / 100,
        }

    found = work_of([step(1, 4, 1.0, **counted(3, 10.0, 40)), step(2, 4, 1.0, **counted(1, 50.0, 30))])
    assert found == {
        "solver samples": 4,
        "solver longest": 40,
        "solver mean length": pytest.approx(20.0),
        "solver at the limit": pytest.approx(0.2),
    }


def test_ratios_are_to_the_sequential_run_of_the_same_repetition():
    runs = {"pipelined": [step(1, 5, 1.0), step(2, 15, 1.0)], "sequential": [step(1, 10, 4.0)]}
    rows = rows_of(runs, 4, 0)
    assert [(row.mode, row.seconds, row.samples) for row in rows] == [
        ("sequential", 4.0, 10),
        ("pipelined", pytest.approx(1 + 1 / 3), 10),
    ]
    assert "times faster 3.00; 3.00" in table(rows)
