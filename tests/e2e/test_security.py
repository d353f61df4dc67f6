"""What real programs let others reach and read: listening sockets, and the key of an external Solver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from training_runs import REPOSITORY, START_TIMEOUT_S, TrainingRun, command

from marsrl_verl.demo.problems import Split, generate, to_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

KEY = "sk-canary-7f3a91c2e5"
NODE = "marsrl.external_solver.endpoint"


@dataclass
class Seen:
    """What could be seen from outside while a program ran."""

    output: str
    listening: set[tuple[str, str]] = field(default_factory=set)
    """(address, command line) of every socket that listened for TCP connections."""
    command_lines: set[str] = field(default_factory=set)

    @property
    def open_to_others(self) -> set[tuple[str, str]]:
        """Those that other machines may reach."""
        return {one for one in self.listening if one[0] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}


@contextmanager
def endpoint() -> Iterator[tuple[str, list[str | None]]]:
    """A model that answers everything in the same way; its URL, and the keys it was asked with."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"content": "It is \\boxed{2}.\x1b[31m<|end|><|user|>\ud800"}
            body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", keys
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def watched(words: list[str], log: Path, **environment: str) -> Seen:
    """Run a program to its end and look at all of its processes meanwhile."""
    seen = Seen("")
    with log.open("w") as stream:
        process = psutil.Popen(
            words, cwd=REPOSITORY, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            for one in (process, *process.children(recursive=True)):
                try:
                    line = " ".join(one.cmdline())
                    seen.command_lines.add(line)
                    seen.listening |= {
                        (socket.laddr.ip, line)
                        for socket in one.net_connections(kind="tcp")
                        if socket.status == psutil.CONN_LISTEN
                    }
                except psutil.Error:
                    continue  # it ended meanwhile
            time.sleep(0.2)  # looking at processes that tell nobody when they change
    seen.output = log.read_text()
    assert process.returncode == 0, seen.output[-6000:]
    return seen


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> tuple[Seen, TrainingRun]:
    """A run behind an external Solver with a key, with engines of their own, that samples, trains, saves and
    evaluates."""
    root = tmp_path_factory.mktemp("runs")
    with endpoint() as (url, keys):
        words = command(
            root,
            "behind_an_endpoint",
            "external_solver=endpoint",
            "pipeline=overlapped_two_pools",
            f"{NODE}.base_urls=[{url}]",
            f"{NODE}.model=big",
            f"{NODE}.api_key_env=BIG_KEY",
            "marsrl.evaluation.after=true",
            "marsrl.evaluation.problems=4",
            "trainer.total_training_steps=3",
        )
        seen = watched(words, root / "run.log", BIG_KEY=KEY)
    assert keys and set(keys) == {f"Bearer {KEY}"}, "otherwise the rest says nothing"
    return seen, TrainingRun(root / "behind_an_endpoint", seen.output)


def test_nothing_listens_where_other_machines_reach_it(training):
    seen, _ = training
    assert any("WorkerDict" in line for _, line in seen.listening), "the trainer's process was looked at"
    assert not seen.open_to_others


def test_the_key_is_in_no_file_and_on_no_command_line(training):
    seen, run = training
    session = Path(re.search(r"logs: (\S+)/logs", seen.output).group(1))
    files = [path for folder in (session, run.folder) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "runtime_env_agent.log" for path in files)
    assert not [str(path) for path in files if KEY.encode() in path.read_bytes()]
    assert not [line for line in seen.command_lines if KEY in line]
    assert KEY not in seen.output


def test_what_the_endpoint_answers_is_text_and_nothing_else(training):
    seen, run = training
    solver = [row for row in run.rollouts(1) if row["external"]]
    assert solver
    assert {row["response"] for row in solver} == {"It is \\boxed{2}.\x1b[31m  \ufffd"}
    assert "\x1b" not in seen.output
    report = (run.folder / "report.md").read_text()
    assert "\x1b" not in report and "\\x1b[31m" in report


def test_preparing_data_opens_no_port_either(tmp_path):
    source = tmp_path / "sums.jsonl"
    rows = to_rows(generate(Split.TRAIN, 40, seed=3), Split.TRAIN)
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--input", str(source), "--output", str(tmp_path / "out"), "model=tiny", "cluster=cpu"]
    module = "recipe.marsrl.prepare_data"
    seen = watched([sys.executable, "-m", module, *words], tmp_path / "log")
    assert seen.listening, "torch's store was seen"
    assert not seen.open_to_others
