"""The page's HTTP side, and the page as one file."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys

import pytest
from viewed import HOSTILE, make_run

from marsrl_verl.view.application import main
from marsrl_verl.view.export import export
from marsrl_verl.view.run import ViewedRun
from marsrl_verl.view.server import build_application

httpx = pytest.importorskip("httpx")
TOKEN = "sesame"


@pytest.fixture
def client(tmp_path):
    from fastapi.testclient import TestClient

    make_run(tmp_path / "shown")
    app = build_application([ViewedRun(tmp_path / "shown")], TOKEN)
    return TestClient(app, base_url="http://127.0.0.1")


def test_the_token_opens_the_page_and_a_cookie_keeps_it_open(client):
    assert client.get("/").status_code == 403 == client.get("/api/runs").status_code
    page = client.get("/", params={"token": TOKEN})
    assert page.status_code == 200 and "static/app.js" in page.text
    assert client.get("/api/runs").json()[0]["name"] == "shown"
    client.cookies.clear()
    assert client.get("/api/runs").status_code == 403


def test_other_names_of_this_machine_have_no_answer(client):
    assert client.get("/", params={"token": TOKEN}, headers={"Host": "evil.example"}).status_code == 400


def test_what_the_page_may_load_is_its_own(client):
    policy = client.get("/", params={"token": TOKEN}).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy


def test_answers(client):
    client.get("/", params={"token": TOKEN})
    assert client.get("/api/runs/0/overview").json()["steps"] == 2
    assert client.get("/api/runs/0/metrics").json()["steps"] == [1, 2]
    assert client.get("/api/runs/0/choices").json()["role"] == ["solver", "verifier"]
    found = client.get("/api/runs/0/lines", params={"role": "solver", "low": 1, "order": "-step"}).json()
    assert [one["problem"] for one in found["rows"]] == ["p2", "p1"]
    assert client.get("/api/runs/0/problems", params={"trained": "true"}).json()["total"] == 2
    row = found["rows"][0]
    line = client.get("/api/runs/0/line", params={"file": row["file"], "row": row["row"]}).json()
    assert HOSTILE in line["line"]["response"]


@pytest.mark.parametrize(
    "path",
    [
        *("runs/7/overview", "runs/0/line?file=step_1.jsonl&row=99", "runs/0/line?file=../run.json&row=0"),
        *("runs/0/lines?order=a;b", "runs/0/lines?limit=99999", "runs/0/lines?low=x"),
    ],
)
def test_what_is_not_there(client, path):
    client.get("/", params={"token": TOKEN})
    assert client.get(f"/api/{path}").status_code in (404, 422)


def test_one_file_has_it_all(tmp_path):
    make_run(tmp_path / "shown", steps=3)
    export([ViewedRun(tmp_path / "shown")], tmp_path / "page.html", problems=2)
    page = (tmp_path / "page.html").read_text()
    assert "src=" not in re.sub(r"<script.*?</script>", "", page, flags=re.S) and 'href="static' not in page
    (held,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, flags=re.S)
    assert "<" not in held
    (run,) = json.loads(held)["runs"]
    assert {one["problem"] for one in run["rows"]} == {"p1", "p2"}
    assert len(run["lines"]) == 8 and run["metrics"]["steps"] == [1, 2, 3]


def test_a_port_that_is_taken_is_named(tmp_path, capsys):
    make_run(tmp_path / "shown")
    with socket.create_server(("127.0.0.1", 0)) as one, pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "shown"), "--port", str(one.getsockname()[1])])
    assert ended.value.code == 2 and "0 takes a free one" in capsys.readouterr().err


def test_a_folder_that_is_no_runs_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path)])
    assert ended.value.code == 2 and "no run's folder" in capsys.readouterr().err


def test_ctrl_c_ends_it(tmp_path):
    make_run(tmp_path / "shown")
    with subprocess.Popen(
        [sys.executable, "-m", "recipe.marsrl.view", str(tmp_path / "shown")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job of a shell may ignore it
    ) as process:
        try:
            address = process.stdout.readline().strip()
            assert httpx.get(address, follow_redirects=True).status_code == 200
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
