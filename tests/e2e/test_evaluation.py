"""An evaluation alone: the weights of a checkpoint without a trainer, and what a kill leaves of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from training_runs import (
    EVALUATE,
    EVALUATED,
    START_TIMEOUT_S,
    TrainingRun,
    assert_says_greedily,
    checkpoint_weights,
    evaluate,
    export,
    greedy_calls,
    greedy_outcomes,
    started,
    train,
)
from transformers import AutoModelForCausalLM

from marsrl_verl.demo.assets import model_path

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


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainingRun:
    return train(tmp_path_factory.mktemp("runs"), "trained", *EVALUATED, "trainer.total_training_steps=2")


def test_a_checkpoint_is_evaluated_as_the_run_evaluated_it(run, tmp_path):
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    found = evaluate(tmp_path, "alone", *EVALUATED, f"checkpoint={run.folder}")
    assert greedy_outcomes(found.folder, "alone") == greedy_outcomes(run.folder, "after")
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


def test_an_exported_checkpoint_says_greedily_what_the_run_said(run, tmp_path):
    folder = export(run.folder, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    trained = checkpoint_weights(run.folder, 2)
    assert all(torch.equal(one, trained[name]) for name, one in model.state_dict().items())
    assert_says_greedily(model, folder, greedy_calls(run.folder))
    by_vllm = evaluate(tmp_path, "again", *EVALUATED, f"actor_rollout_ref.model.path={folder}")
    assert greedy_outcomes(by_vllm.folder, "alone") == greedy_outcomes(run.folder, "after")


def test_an_evaluation_that_was_killed_goes_on_and_comes_to_the_same(tmp_path):
    evaluate(tmp_path, "whole", *SAMPLED)
    journal = tmp_path / "killed" / "evaluations" / "answers.jsonl"
    with started(tmp_path, "killed", *SAMPLED, program=EVALUATE) as (process, log):
        wait_for_answers(journal, 60, process, log)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    answered = journal.read_bytes().count(b"\n")
    again = evaluate(tmp_path, "killed", *SAMPLED, "marsrl.run.if_exists=resume")
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


@contextmanager
def served(model: str, log: Path) -> Iterator[str]:
    """vLLM's own OpenAI-compatible server with a model; yields its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--model", model, "--served-model-name", "served", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-model-len", "512", "--dtype", "float32", "--enforce-eager"]
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(server, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-6000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.2)  # polling a server that another process starts
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_system_behind_an_endpoint_is_evaluated_as_the_model_itself(tmp_path):
    words = ("marsrl.evaluation.problems=24", "marsrl.evaluation.samples_per_problem=0")
    own = evaluate(tmp_path, "own", *words)
    with served(model_path(), tmp_path / "server.log") as url:
        endpoint = (
            f"marsrl.policies.endpoint.endpoint.{key}" for key in (f"base_urls=[{url}]", "model=served")
        )
        found = evaluate(tmp_path, "served", *words, "policies=endpoint", *endpoint)
    mine, theirs = (
        json.loads((run.folder / "evaluations/alone.json").read_text())["observations"]
        for run in (own, found)
    )
    assert {"system_accuracy_greedy", "verifier_accuracy_greedy"} <= mine.keys()
    # Two engines add numbers up in another order, so that a near tie may fall otherwise.
    for name, items in mine.items():
        if name.endswith("accuracy_greedy"):
            pairs = zip(items["outcomes"], theirs[name]["outcomes"], strict=True)
            assert sum(one != other for one, other in pairs) <= 2, name
