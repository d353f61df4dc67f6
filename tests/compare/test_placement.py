"""Runs at a time, and runs as jobs of a Ray cluster, whose command line a script stands in for."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fake_training import COMMAND as FAKE
from fake_training import SUITE

from marsrl_verl.compare.application import main
from marsrl_verl.compare.placement import RayJobs, no_dashboard_at
from marsrl_verl.compare.plan import Run, plan_runs
from marsrl_verl.compare.runner import Runner
from marsrl_verl.compare.suite import load_suite

CLIENT = """
import json, subprocess, sys
action, words = sys.argv[1], sys.argv[2:]
with open({notes!r}, "a") as file:
    file.write(json.dumps([action, *words]) + "\\n")
if action == "stop":
    print("gone")
    sys.exit({stops})
sys.exit(subprocess.call(words[words.index("--") + 1:]))
"""


@pytest.fixture
def suite(tmp_path) -> Path:
    path = tmp_path / "pair.yaml"
    path.write_text(SUITE)
    return path


def client(tmp_path: Path, stops: int = 0) -> tuple[str, str]:
    script = tmp_path / "ray_job.py"
    script.write_text(CLIENT.format(notes=str(tmp_path / "notes.jsonl"), stops=stops))
    return sys.executable, str(script)


def notes(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]


def test_so_many_runs_go_on_at_a_time(suite, tmp_path, capsys):
    """Each of two waits until the other has begun."""
    words = ["--seeds", "1", "--output", str(tmp_path / "out"), "fake.waits_for=2"]
    assert main([str(suite), *words, "--jobs", "2"], FAKE) == 0
    said = capsys.readouterr().out
    assert "about 1 min 30 s (1 min 30 s per run, a guess for 2 cores, 2 at a time)" in said
    methods = [run["method"] for run in json.loads((tmp_path / "out" / "results.json").read_text())["runs"]]
    assert methods == sorted(methods), "in the suite's order"


@pytest.mark.parametrize(
    ("jobs", "own", "threads"), [("1", None, "None"), ("99", None, "1"), ("2", "7", "7")]
)
def test_runs_at_the_same_time_share_the_cores(suite, tmp_path, monkeypatch, jobs, own, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    assert main([str(suite), "--seeds", "1", "--output", str(tmp_path / "out"), "--jobs", jobs], FAKE) == 0
    log = (tmp_path / "out" / "runs" / "one-seed1.log").read_text()
    assert f"with {threads} threads" in log


def test_a_run_is_a_job_with_what_it_reserves(suite, tmp_path):
    placement = RayJobs("http://head:8265", cpus=3, gpus=1, client=client(tmp_path))
    root = Path(os.path.relpath(tmp_path)) / "its $HOME runs"
    words = (f"marsrl.run.output_root={root}", "name=one-seed1", "marsrl.run.seed=1", "fake.said='a \\' b'")
    run = Run("one", 1, (*words, "marsrl.run.max_generated_tokens=1000"), root)
    outcome = Runner(load_suite(str(suite)), [run], FAKE, lambda line: None, placement=placement).run()
    assert [one.run.name for one in outcome.finished] == ["one-seed1"]
    ((action, address, job, *reserved, _, dashes, shell, script),) = notes(tmp_path)
    assert (action, address, dashes, shell) == ("submit", "--address=http://head:8265", "--", "sh")
    assert job.startswith("--submission-id=one-seed1-")
    assert reserved == ["--entrypoint-num-cpus=3", "--entrypoint-num-gpus=1"]
    change, execute = Path(script).read_text().splitlines()
    assert shlex.split(change) == ["cd", os.getcwd(), "||", "exit"]
    assert shlex.split(execute) == ["exec", *FAKE, *run.overrides, "ray_kwargs.ray_init.address=local"]


def test_a_job_has_a_name_that_no_earlier_one_had(tmp_path):
    placement, run = RayJobs("http://head:8265", cpus=2), Run("one", 1, (), tmp_path)
    first, second = (placement.command(run, FAKE) for _ in range(2))
    assert [word.partition("=")[0] for word in first if word not in second] == ["--submission-id"]
    assert not any("gpus" in word for word in first)


def test_a_job_whose_client_was_lost_is_stopped(suite, tmp_path):
    """The client fails while the job may go on."""
    placement = RayJobs("http://head:8265", cpus=2, client=client(tmp_path, stops=1))
    runs = plan_runs(load_suite(str(suite)), 1, tmp_path / "out", ("fake.fails_at_seed=1",))
    outcome = Runner(load_suite(str(suite)), runs, FAKE, lambda line: None, placement=placement).run()
    assert [words[0] for words in notes(tmp_path)] == ["submit", "stop"] * 2
    reason = outcome.failed[0].reason
    assert "exit status 3; job one-seed1-" in reason and "may go on: it could not be stopped (gone)" in reason


def test_the_seconds_of_a_job_are_its_own(suite, tmp_path):
    """The fake run says 12 of itself; the wait for a node is none of its time."""
    placement = RayJobs("http://head:8265", cpus=2, client=client(tmp_path))
    runs = plan_runs(load_suite(str(suite)), 1, tmp_path / "out")
    outcome = Runner(load_suite(str(suite)), runs, FAKE, lambda line: None, placement=placement).run()
    assert [one.seconds for one in outcome.finished] == [12.0, 12.0]
    assert json.loads(runs[0].record_path.read_text())["seconds"] == 12.0


def test_a_dry_run_prints_what_a_job_executes(suite, tmp_path, capsys):
    words = ["--seeds", "1", "--output", str(tmp_path / "out"), "--address", "http://head:8265", "--dry-run"]
    assert main([str(suite), *words], FAKE) == 0
    assert capsys.readouterr().out.count("ray_kwargs.ray_init.address=local") == 2
    assert not (tmp_path / "out").exists()


def test_seeds_that_can_show_nothing_are_warned_of(suite, tmp_path, capsys):
    suite.write_text(SUITE + "primary: [solver_accuracy]\n")
    for seeds, warned in (("1", "neither equivalence nor a"), ("2", "equivalence, but no"), ("6", None)):
        main([str(suite), "--seeds", seeds, "--output", str(tmp_path / "out")], FAKE)
        said = capsys.readouterr().out
        assert ("can show" in said) is (warned is not None)
        assert warned is None or f"--seeds {seeds} can show {warned} difference" in said


@pytest.mark.parametrize("stops", [0, 1])
def test_jobs_of_a_stopped_comparison_are_stopped(suite, tmp_path, stops):
    program = (
        "import sys\n"
        "from marsrl_verl.compare.application import end_on_sigterm\n"
        "from marsrl_verl.compare.placement import RayJobs\n"
        "from marsrl_verl.compare.plan import plan_runs\n"
        "from marsrl_verl.compare.runner import Runner\n"
        "from marsrl_verl.compare.suite import load_suite\n"
        "from pathlib import Path\n"
        "end_on_sigterm()\n"
        f"suite = load_suite({str(suite)!r})\n"
        f"runs = plan_runs(suite, 2, Path({str(tmp_path / 'out')!r}), ('fake.sleeps=100',))\n"
        f"placement = RayJobs('http://head:8265', 2, client={client(tmp_path, stops)!r})\n"
        f"Runner(suite, runs, {FAKE!r}, placement=placement, jobs=2).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    # Noted before the training program starts; its own note says that it sleeps.
    begun = tmp_path / "out" / "runs" / "calls.txt"
    while not begun.exists() or len(begun.read_text().split()) < 2:
        assert process.poll() is None and time.monotonic() < deadline, "no runs were started"
        time.sleep(0.05)  # polling a file that another process writes
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    jobs = {words[2].partition("=")[2] for words in notes(tmp_path) if words[0] == "submit"}
    assert len(jobs) == 2, "the others were never submitted"
    assert {words[-1] for words in notes(tmp_path) if words[0] == "stop"} == jobs
    assert said.count("may go on: it could not be stopped (gone)") == 2 * stops


@pytest.fixture
def answers():
    """The address of a server that answers everything with the status in its path, /api/version with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            first = self.path.split("/")[1]
            self.send_response(int(first) if first.isdecimal() else 200)
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_dashboard_is_asked_before_anything_is_handed_to_it(answers):
    assert no_dashboard_at(answers) is None and no_dashboard_at(answers + "/") is None
    assert no_dashboard_at(answers + "/401") is None, "it asks for a token"
    assert no_dashboard_at(answers + "/403") is None, "it refuses one without a token"
    assert "answers 404, so it is no Ray dashboard" in no_dashboard_at(answers + "/404")


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:6379", "ray://127.0.0.1:10001"])
def test_addresses_by_which_ray_looks_the_dashboard_up_are_left_to_it(address):
    assert no_dashboard_at(address) is None


def test_a_dead_dashboard_starts_no_run(suite, tmp_path, capsys):
    dead = "http://127.0.0.1:9"
    with pytest.raises(SystemExit) as ended:
        main([str(suite), "--output", str(tmp_path / "out"), "--address", dead], FAKE)
    assert ended.value.code == 2 and f"nobody answers at {dead}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "0"], "--jobs is 0, expected at least 1"),
        (["--gpus", "1"], "give its --address"),
        (["--cpus", "4"], "give its --address"),
        (["--address", "http://head:8265", "--cpus", "0"], "--cpus is 0, expected at least 1"),
        (
            ["--address", "http://head:8265", "ray_kwargs.ray_init.address=auto"],
            "ray_kwargs.ray_init.address=auto: the comparison sets this itself",
        ),
    ],
)
def test_wrong_placements_start_nothing(suite, capsys, words, said):
    with pytest.raises(SystemExit):
        main([str(suite), *words], FAKE)
    assert said in capsys.readouterr().err
