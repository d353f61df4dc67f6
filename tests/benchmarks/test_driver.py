"""The benchmark of the driver's step: its inputs, how it measures, and that a step does the whole work."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks.driver import (
    comparison_table,
    differing_metrics,
    implementation_of,
    per_row,
    phase_table,
)
from benchmarks.driver_step import inputs as kinds
from benchmarks.driver_step.child import run_step
from benchmarks.driver_step.inputs import STAGES, Inputs, Sizes, generate, trainer_values
from benchmarks.driver_step.interface import Cluster, Place
from benchmarks.driver_step.meter import Meter, Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
SIZES = Sizes(rows=60, tokens=300, longest=700, longest_prompt=600, unfinished=0.5, continued=0.5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return generate(folder, SIZES)


class Direct:
    """The other processes' part, in this one."""

    def __init__(self, worker):
        self._worker = worker

    def call(self, command, **arguments):
        if command == "phases":
            return {"phases": self._worker.place.meter.rows()}
        return json.loads(json.dumps(getattr(self._worker, command)(**arguments)))


def test_inputs_have_the_sizes_that_were_asked_for(inputs):
    facts = inputs.facts()
    assert facts["trained_rows"] == 60
    assert facts["unfinished_rows"] == 30
    assert facts["longest_response"] == 700
    assert inputs.lengths.mean() == pytest.approx(300, rel=0.02)
    assert set(inputs.kind) == {kinds.COMPLETE, kinds.CONTINUED, kinds.UNFINISHED}
    for group in range(len(inputs.kind)):
        rows = inputs.rows_of(group)
        assert len(rows) == inputs.size[group] >= 2
        assert set(inputs.reward[rows]) == {0.0, 1.0}
    assert all(inputs.text(row) for row in range(len(inputs.group_of)))


def test_equal_sizes_give_equal_inputs(inputs, tmp_path):
    again = generate(tmp_path, SIZES)
    assert np.array_equal(again.tokens, inputs.tokens)
    assert np.array_equal(again.log_probs, inputs.log_probs)
    assert np.array_equal(again.prompt_text_bytes, inputs.prompt_text_bytes)
    assert Inputs(tmp_path).sizes == SIZES


def test_a_phase_has_its_own_peak_and_what_is_paused_has_none():
    meter = Meter()
    meter.begin("first")
    taken = np.ones(20 * 2**20)  # 160 MiB
    del taken
    with meter.paused():
        elsewhere = np.ones(40 * 2**20)
        del elsewhere
    meter.sent(3 * 2**20)
    meter.begin("second")
    first, second = meter.rows()
    assert 130 < first["peak"] - second["resident_after"] < 200
    assert second["peak"] - second["resident_after"] < 30
    assert (first["sent"], second["sent"]) == (3.0, 0.0)


def test_a_step_trains_all_rows_and_reports_every_phase(inputs, tmp_path):
    from benchmarks.driver_step import arrays

    (tmp_path / "store").mkdir()

    def place(side):
        store, cluster = Store(tmp_path / "store"), Cluster(workers=3, ranks=2, micro_batch_tokens=2_000)
        return Place(inputs, store, Meter(side), cluster, tmp_path)

    result = run_step(arrays.driver(place("driver")), Direct(arrays.worker(place("other processes"))))
    metrics, trained = result["metrics"], inputs.trained
    tokens = np.concatenate([inputs.tokens[inputs.row(row)] for row in np.flatnonzero(trained)])
    assert metrics["actor/entropy"] == pytest.approx(trainer_values()[tokens].mean(), rel=1e-4)
    ages = sum(
        int(inputs.paused_at[row]) if inputs.fate[row] == kinds.ENDS else int(inputs.lengths[row])
        for row in np.flatnonzero(trained)
        if inputs.kind[inputs.group_of[row]] == kinds.CONTINUED
    )
    assert metrics["off_policy/staleness_mean"] == pytest.approx(ages / len(tokens), rel=1e-4)
    for stage in set(inputs.stage_of):
        rows = trained & (inputs.stage_of[inputs.group_of] == stage)
        if rows.any():
            assert metrics[f"stage/{STAGES[stage]}/samples"] == rows.sum()
    assert metrics["pipeline/unfinished_samples"] == (inputs.fate == kinds.PAUSES).sum() > 0
    lines = (tmp_path / "run" / "rollouts" / "step_8.jsonl").read_text().splitlines()
    written = json.loads((tmp_path / "run" / "trained" / "step_8.json").read_text())
    assert len(lines) == len(written) == 60
    assert (tmp_path / "marsrl.pt").stat().st_size > 0
    assert list((tmp_path / "store").iterdir()) == []  # every message was read
    names = [phase["name"] for phase in result["phases"]]
    assert {"receive replies", "build and order the batch", "merge log-probs", "pack the reply"} <= set(names)
    assert all(phase["seconds"] > 0 for phase in result["phases"])


def result_of(seconds: float, peak: float, entropy: float = 1.0) -> dict:
    phase = {
        "name": "receive replies", "side": "driver", "seconds": seconds, "cpu_seconds": seconds,
        "resident_after": 150.0, "peak": peak, "sent": 7.0,
    }  # fmt: skip
    other = {**phase, "name": "pack the reply", "side": "other processes"}
    return {"resident_at_begin": 100.0, "phases": [phase, other], "metrics": {"actor/entropy": entropy}}


def test_tables_have_medians_ratios_and_what_differs():
    before = [result_of(8.0, 900.0), result_of(12.0, 900.0)]
    after = [result_of(2.0, 300.0, 1.5), result_of(4.0, 300.0, 1.5)]
    assert "| receive replies" in phase_table(before)
    assert "**10.0**" in phase_table(before)
    ratios = comparison_table(before, after)
    assert "0.250, 0.333" in ratios  # 2 / 8 and 4 / 12 seconds, and peaks of 200 / 800
    assert "0.250, 0.250" in ratios
    assert differing_metrics(before[0], after[0]) == ["actor/entropy: 1, 1.5"]
    assert "extrapolated" in per_row(before, {"trained_rows": 1152})
    assert "extrapolated" not in per_row(before, {"trained_rows": 2304})


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no checkout that this benchmark knows"):
        implementation_of(tmp_path)
