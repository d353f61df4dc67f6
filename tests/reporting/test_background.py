"""Writing beside the training: order, errors, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from marsrl_verl.reporting.files import BackgroundWriter

SECONDS = 20


def broken() -> None:
    raise OSError("no space left")


def test_jobs_are_done_in_their_order_beside_the_caller():
    writer, done, go = BackgroundWriter(max_waiting=9), [], threading.Event()
    writer.submit(lambda: go.wait(SECONDS) and done.append(0))
    for number in range(1, 6):
        writer.submit(lambda number=number: done.append(number))
    assert done == [], "submit does not wait"
    go.set()
    writer.flush()
    assert done == list(range(6))
    writer.close()


def test_few_jobs_wait_at_a_time():
    writer, go, submitted = BackgroundWriter(max_waiting=2), threading.Event(), []

    def submit():
        for number in range(3):
            writer.submit(lambda: go.wait(SECONDS))
            submitted.append(number)

    thread = threading.Thread(target=submit)
    thread.start()
    while len(submitted) < 2:
        time.sleep(0.001)
    thread.join(0.1)
    assert thread.is_alive() and submitted == [0, 1]
    go.set()
    thread.join(SECONDS)
    assert submitted == [0, 1, 2]
    writer.close()


def test_an_error_surfaces_at_the_next_step_and_at_the_end():
    writer = BackgroundWriter()
    writer.submit(broken)
    with pytest.raises(OSError, match="no space left"):
        writer.flush()
    with pytest.raises(OSError, match="no space left"):
        writer.submit(lambda: None)
    with pytest.raises(OSError, match="no space left"):
        writer.close()


KILLED = """
import sys, pathlib
from marsrl_verl.reporting.files import BackgroundWriter
from marsrl_verl.reporting.files import write_lines_atomic
folder = pathlib.Path(sys.argv[1])
def lines(number):
    for _ in range(200_000 if number else 10):
        yield f"{number}\\n"
writer = BackgroundWriter()
for number in range(100):
    writer.submit(lambda number=number: write_lines_atomic(folder / f"step_{number}.jsonl", lines(number)))
    print(number, flush=True)
"""


def test_a_kill_while_it_writes_leaves_whole_files(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 5:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS)
    process.stdout.close()
    whole = sorted(path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert 3 <= len(whole) < 100
    for path in whole:
        number = int(path.stem.removeprefix("step_"))
        assert path.read_text() == f"{number}\n" * (200_000 if number else 10)
