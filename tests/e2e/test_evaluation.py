"""An evaluation alone: the weights of a checkpoint without a trainer, and what a kill leaves of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from training_runs import (
    EVALUATE,
    EVALUATED,
    START_TIMEOUT_S,
    evaluate,
    greedy_outcomes,
    started,
    train,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
SAMPLED = (
    "marsrl.evaluation.problems=100",
    "marsrl.evaluation.samples_per_problem=2",
    "marsrl.run.seeded_tokens=all",
)


def wait_for_answers(journal: Path, count: int, process, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"it ended by itself:\n{log.read_text()[-6000:]}"
        if journal.exists() and journal.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)  # polling a file that another process writes
    raise AssertionError(f"{count} answers were not there in {START_TIMEOUT_S} s:\n{log.read_text()[-6000:]}")


def test_a_checkpoint_is_evaluated_as_the_run_evaluated_it(tmp_path):
    run = train(tmp_path, "trained", *EVALUATED, "trainer.total_training_steps=2")
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    found = evaluate(tmp_path, "alone", *EVALUATED, f"checkpoint={run.folder}")
    assert greedy_outcomes(found.folder, "alone") == greedy_outcomes(run.folder, "after")
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_an_evaluation_that_was_killed_goes_on_and_comes_to_the_same(tmp_path):
    evaluate(tmp_path, "whole", *SAMPLED)
    journal = tmp_path / "killed" / "evaluations" / "answers.jsonl"
    with started(tmp_path, "killed", *SAMPLED, program=EVALUATE) as (process, log):
        wait_for_answers(journal, 60, process, log)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    answered = journal.read_bytes().count(b"\n")
    again = evaluate(tmp_path, "killed", *SAMPLED, "marsrl.run.existing=resume")
    taken = re.search(r"(\d+)\s+answers\s+were\s+there\s+already", again.output)
    assert taken and int(taken[1]) >= answered, "the group's other processes die a moment after its first one"
    whole, killed = (
        json.loads((tmp_path / name / "evaluations/alone.json").read_text()) for name in ("whole", "killed")
    )
    samples = [(tmp_path / name / "evaluations/samples.jsonl").read_text() for name in ("whole", "killed")]
    assert samples[0] == samples[1] and samples[0].count("\n") == 300, "two sampled answers and a greedy one"
    assert killed["observations"] == whole["observations"]
    assert killed["generated_tokens"] == whole["generated_tokens"]
    assert not journal.exists()
