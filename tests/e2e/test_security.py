"""What a real run lets others reach and read: its listening sockets, and the key of an external Solver."""

from __future__ import annotations

import json
import os
import re
import subprocess
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

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

KEY = "sk-canary-7f3a91c2e5"
NODE = "marsrl.external_solver.endpoint"


@dataclass
class Seen:
    """What could be seen from outside while a run went on."""

    run: TrainingRun
    session: Path
    """Ray's session folder."""
    listening: set[tuple[str, str]] = field(default_factory=set)
    """(address, process) of every socket that listened for TCP connections."""
    command_lines: set[str] = field(default_factory=set)


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


def watched(root: Path, name: str, environment: dict[str, str], *overrides: str) -> Seen:
    """Run to the end and look at all of its processes meanwhile."""
    log = root / f"{name}.log"
    listening, command_lines = set(), set()
    with log.open("w") as stream:
        process = psutil.Popen(
            command(root, name, *overrides),
            cwd=REPOSITORY,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            for one in (process, *process.children(recursive=True)):
                try:
                    words = " ".join(one.cmdline())
                    command_lines.add(words)
                    listening |= {
                        (socket.laddr.ip, words)
                        for socket in one.net_connections(kind="tcp")
                        if socket.status == psutil.CONN_LISTEN
                    }
                except psutil.Error:
                    continue  # it ended meanwhile
            time.sleep(0.2)  # looking at processes that tell nobody when they change
    output = log.read_text()
    assert process.returncode == 0, output[-6000:]
    session = Path(re.search(r"logs: (\S+)/logs", output).group(1))
    return Seen(TrainingRun(root / name, output), session, listening, command_lines)


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Seen:
    """A run behind an external Solver with a key, that samples, trains and saves."""
    root = tmp_path_factory.mktemp("runs")
    with endpoint() as (url, keys):
        found = watched(
            root,
            "behind_an_endpoint",
            {"BIG_KEY": KEY},
            "external_solver=endpoint",
            f"{NODE}.base_urls=[{url}]",
            f"{NODE}.model=big",
            f"{NODE}.api_key_env=BIG_KEY",
            "marsrl.evaluation.after=true",
            "marsrl.evaluation.problems=4",
            "trainer.total_training_steps=2",
        )
    assert keys and set(keys) == {f"Bearer {KEY}"}, "otherwise the rest says nothing"
    return found


def test_nothing_listens_where_other_machines_reach_it(seen):
    addresses = {address for address, _ in seen.listening}
    assert addresses, "Ray's processes listen"
    others = {one for one in seen.listening if one[0] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}
    assert not others
    assert any("WorkerDict" in words for _, words in seen.listening), "the trainer's process was looked at"


def test_the_key_is_in_no_file_and_on_no_command_line(seen):
    assert not [words for words in seen.command_lines if KEY in words]
    files = [
        path for folder in (seen.session, seen.run.folder) for path in folder.rglob("*") if path.is_file()
    ]
    assert any(path.name == "runtime_env_agent.log" for path in files)
    assert not [str(path) for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in seen.run.output


def test_what_the_endpoint_answers_is_text_and_nothing_else(seen):
    solver = [row for row in seen.run.rollouts(1) if row["external"]]
    assert solver
    assert {row["response"] for row in solver} == {"It is \\boxed{2}.\x1b[31m  \ufffd"}
    assert "\x1b" not in seen.run.output
    report = (seen.run.folder / "report.md").read_text()
    assert "\x1b" not in report and "\\x1b[31m" in report
