"""One process at a time: real processes, killed as a run is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from marsrl_verl.reporting import run_lock
from marsrl_verl.reporting.run_folder import OutputFolderError, RunFolder
from marsrl_verl.reporting.run_lock import LOCK_NAME, RunLockedError, acquire, hold, release

LIVE_RUN = """
import os, sys
from marsrl_verl.reporting.run_folder import RunFolder
RunFolder.create(sys.argv[1], "resume").metrics.append(1, {"a": 1.0})
if sys.argv[2:]:
    worker = os.fork()
    if worker == 0:
        os.execvp("sleep", ["sleep", "60"]) if sys.argv[2] == "exec" else os.read(0, 1)
        os._exit(0)
    print(worker, flush=True)
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def live_run(tmp_path):
    """Starts a process that writes into `tmp_path / run`; all are killed in the end."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", LIVE_RUN, str(tmp_path / "run"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("existing", ["resume", "replace"])
def test_a_live_run_is_not_touched(tmp_path, live_run, existing):
    process = live_run()
    assert process.stdout.readline() == "writing\n"
    before = contents(tmp_path / "run")
    with pytest.raises(OutputFolderError, match=rf"written by process {process.pid} on .* since 20\d\d-"):
        RunFolder.create(tmp_path / "run", existing)
    assert contents(tmp_path / "run") == before


def test_a_killed_run_gives_its_folder_back(tmp_path, live_run):
    process = live_run()
    process.stdout.readline()
    process.kill()
    process.wait()
    assert RunFolder.create(tmp_path / "run", "resume").resumed
    release(tmp_path / "run")


@pytest.mark.parametrize("kind", ["fork", "exec"])
def test_a_worker_that_outlives_the_run_does_not_keep_the_folder(tmp_path, live_run, kind):
    process = live_run(kind)
    worker = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        os.kill(worker, 0)
        assert given_back(tmp_path / "run")
    finally:
        os.kill(worker, signal.SIGKILL)


def given_back(folder, within_s: float = 20.0) -> bool:
    """Whether it can be held: a worker that was forked a moment ago may not have closed its copy yet."""
    until = time.monotonic() + within_s
    while True:
        try:
            with hold(folder):
                return True
        except RunLockedError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)


def test_a_process_that_adopts_the_lock_keeps_it(tmp_path):
    acquire(tmp_path)
    descriptor = run_lock.held()[tmp_path.resolve()]
    code = (
        "import sys; from pathlib import Path; from marsrl_verl.reporting import run_lock\n"
        f"folder = Path({str(tmp_path)!r}); run_lock.adopt({{folder: {descriptor}}})\n"
        "run_lock.acquire(folder); print('held', flush=True); sys.stdin.read()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[descriptor],
    )
    assert driver.stdout.readline() == "held\n"
    release(tmp_path)
    with pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
        acquire(tmp_path)
    driver.communicate()
    with hold(tmp_path):
        assert run_lock.held()
    assert tmp_path not in run_lock.held()


def test_a_folder_that_is_held_already_stays_held(tmp_path):
    with hold(tmp_path):
        with hold(tmp_path):
            pass
        assert tmp_path.resolve() in run_lock.held()


def test_a_lock_without_a_readable_owner(tmp_path, live_run):
    process = live_run()
    process.stdout.readline()
    (tmp_path / "run" / LOCK_NAME).write_text("")
    with pytest.raises(RunLockedError, match="another process"):
        acquire(tmp_path / "run")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def unsupported(*_args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_lock.fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="has no locks"), hold(tmp_path):
        pass
