"""What a server's settings must say before anything starts."""

from __future__ import annotations

import socket

import pytest

from marsrl_verl.config.command_line import SERVE
from marsrl_verl.reporting.run_folder import RunFolder

KEY = "marsrl.serve.api_key_env=SERVED_WITH"


@pytest.fixture
def serve(run):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]

    def call(*words: str):
        return run("cluster=cpu", f"marsrl.serve.port={port}", *words, program=SERVE)

    return call


def test_a_server_reads_no_data(serve):
    done = serve("data=parquet", "data.train_files=null", "data.val_files=null")
    assert done.status == 0, done.err
    assert done.launched.marsrl.serve.enabled and done.launched.trainer.val_only


def test_others_need_a_key(serve, monkeypatch):
    refused = serve("marsrl.serve.host=0.0.0.0")
    assert refused.status == 2 and "no key is asked for" in refused.err
    missing = serve("marsrl.serve.host=0.0.0.0", KEY)
    assert missing.status == 2 and "marsrl.serve.api_key_env" in missing.err and "not set" in missing.err
    monkeypatch.setenv("SERVED_WITH", "sesame")
    assert serve("marsrl.serve.host=0.0.0.0", KEY).status == 0
    twice = serve(KEY, "marsrl.serve.api_key_file=key")
    assert twice.status == 2 and "Two places" in twice.err


def test_a_port_that_somebody_has_is_refused(serve):
    with socket.create_server(("127.0.0.1", 0)) as one:
        done = serve(f"marsrl.serve.port={one.getsockname()[1]}")
    assert done.status == 2 and "Nothing can listen" in done.err


def test_a_plan_says_where(serve):
    plan = serve("dry_run=true", "marsrl.serve.max_running=7")
    assert plan.status == 0 and "serves at http://127.0.0.1:" in plan.out and "7 runs" in plan.out
    assert "Evaluation" not in plan.out


def test_a_run_that_trains_serves_nobody(run):
    inert = run("cluster=cpu", "marsrl.serve.port=8001")
    assert inert.status == 2 and "It has no effect with marsrl.serve.enabled" in inert.err
    asked = run("cluster=cpu", "marsrl.serve.enabled=true")
    assert asked.status == 2 and "recipe.marsrl.serve" in asked.err


def test_a_server_does_not_suggest_to_delete_the_run_that_it_serves(serve, tmp_path):
    folder = RunFolder.create(tmp_path / "trained")
    (folder.path / "metrics.jsonl").write_text("{}\n")
    done = serve(f"marsrl.run.output_root={tmp_path}", "name=trained")
    assert done.status == 2 and "checkpoint=… names the run to serve" in done.err
    assert "replace" not in done.err
