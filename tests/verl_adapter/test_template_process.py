"""The template process with a launcher that has imported nothing heavy.

Upstream behaviour answered: Ray and multiprocessing start each process as a fresh interpreter that
imports everything again.
"""

from __future__ import annotations

import copy
import json
import multiprocessing.spawn
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marsrl_verl.reporting.run_lock import RunLockedError, hold
from marsrl_verl.verl_adapter.cpu.template import process as template_process
from marsrl_verl.verl_adapter.cpu.template.client import PYTHON_VARIABLE, SOCKET_VARIABLE

pytestmark = pytest.mark.skipif(not template_process.supported(), reason="needs Linux 5.3 or later")

STAND_IN = str(template_process.STAND_IN)
LAUNCHER = """
import sys
from marsrl_verl.verl_adapter.cpu.template.process import TemplateProcess
# colorsys stands for the heavy imports
with TemplateProcess(early_modules=[], modules=["colorsys"]) as template:
    template.provide({"RAY_JOB_ID": "02000000"})
    print(template.name, flush=True)
    sys.stdin.read()
"""


class Launcher:
    """A launcher that runs, and the variables of its clients."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", LAUNCHER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        name = self.process.stdout.readline().strip()
        assert name
        self.env = {**os.environ, SOCKET_VARIABLE: name, PYTHON_VARIABLE: sys.executable}

    def run(self, *arguments: str, program: str = STAND_IN, **options: object):
        """Runs a command line of the interpreter in a fork of the template."""
        options |= {"env": self.env, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([program, *arguments], **options)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([STAND_IN, *arguments], env=self.env, stdout=subprocess.PIPE, text=True)

    def end(self, number: int = 0) -> None:
        if number:
            self.process.send_signal(number)
        else:
            self.process.stdin.close()
        self.process.wait(timeout=30)


def run_launcher() -> Iterator[Launcher]:
    one = Launcher()
    yield one
    one.end(signal.SIGKILL)


own_launcher = pytest.fixture(run_launcher)
running = pytest.fixture(scope="module")(run_launcher)


@pytest.fixture
def launcher(running: Launcher) -> Launcher:
    """The module's, with variables of the test's own."""
    own = copy.copy(running)
    own.env = dict(running.env)
    return own


def wait_until_gone(pid: int) -> None:
    """Waits for a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 20)[0], f"process {pid} still runs"


REPORT = """
import json, os, sys
print(json.dumps({"argv": sys.argv, "cwd": os.getcwd(), "rank": os.environ.get("RANK"), "name": __name__,
    "path": sys.path, "stdin": sys.stdin.read(), "file": __file__, "variables": len(os.environ)}))
"""


def test_arguments_environment_folder_and_streams_are_the_clients(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "report.py"
    script.write_text(REPORT)
    launcher.env["RANK"] = "3"
    launcher.env["PYTHONPATH"] = str(tmp_path / "more")
    words = ("-u", "-X", "utf8", str(script), "--flag", "a b")
    result = launcher.run(*words, cwd=tmp_path, input="hello")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report.pop("path")[:2] == [str(tmp_path), str(tmp_path / "more")]
    # Nothing of the template's own environment is left over (the shell adds a few of its own).
    assert report.pop("variables") <= len(launcher.env) + 4
    assert report == {
        "argv": [str(script), "--flag", "a b"], "cwd": str(tmp_path), "rank": "3",
        "name": "__main__", "file": str(script), "stdin": "hello",
    }  # fmt: skip


def test_a_module_runs_as_main(launcher: Launcher) -> None:
    result = launcher.run("-m", "json.tool", "--compact", input='{"a": 1}')
    assert (result.returncode, result.stdout.strip()) == (0, '{"a":1}')


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('sorry')", 1, "sorry"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT, ""),
    ],
)
def test_the_exit_status_and_an_error_are_passed_on(launcher: Launcher, code: str, status: int, said: str):
    result = launcher.run("-c", code)
    assert result.returncode == status and said in result.stderr


def test_exit_handlers_and_threads_end_as_in_an_interpreter(launcher: Launcher) -> None:
    code = """
import atexit, threading
atexit.register(print, "handler")
threading.Thread(target=lambda: print("thread")).start()
"""
    assert launcher.run("-c", code).stdout == "thread\nhandler\n"


def test_signals_reach_the_fork(launcher: Launcher) -> None:
    code = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
signal.pause()
"""
    process = launcher.start("-c", code)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(timeout=30) == 5


def sleeper(launcher: Launcher) -> tuple[subprocess.Popen[str], int]:
    process = launcher.start("-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()")
    return process, int(process.stdout.readline())


def test_killing_the_client_kills_the_fork(launcher: Launcher) -> None:
    process, pid = sleeper(launcher)
    process.kill()
    process.wait(timeout=30)
    wait_until_gone(pid)


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_with_the_launcher(own_launcher: Launcher, number: int) -> None:
    process, pid = sleeper(own_launcher)
    own_launcher.end(number)
    process.wait(timeout=30)
    wait_until_gone(pid)


def test_a_variable_that_was_read_at_import_makes_a_fresh_interpreter(launcher: Launcher) -> None:
    code = "import os, sys; print('colorsys' in sys.modules, os.environ['RAY_JOB_ID'])"
    launcher.env["RAY_JOB_ID"] = "02000000"
    assert launcher.run("-c", code).stdout == "True 02000000\n"
    launcher.env["RAY_JOB_ID"] = "03000000"
    assert launcher.run("-c", code).stdout == "False 03000000\n"


def test_random_numbers_differ_between_forks(launcher: Launcher) -> None:
    code = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert launcher.run("-c", code).stdout != launcher.run("-c", code).stdout


def test_without_a_template_the_client_is_the_interpreter(launcher: Launcher) -> None:
    launcher.env[SOCKET_VARIABLE] = "marsrl-template-nobody"
    assert launcher.run("-c", "print(6 * 7)").stdout == "42\n"


SPAWNING = """
import multiprocessing, sys
from marsrl_verl.verl_adapter.cpu.template.process import use_template_for_multiprocessing

def work(connection):
    connection.send("colorsys" in sys.modules)

if __name__ == "__main__":
    use_template_for_multiprocessing()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    print(ours.recv())
    process.join()
    print(process.exitcode)
"""


def test_multiprocessing_spawns_forks(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    result = launcher.run(str(script), program=sys.executable)
    assert result.stdout == "True\n0\n", result.stderr


SHARING = """
import signal
from multiprocessing.shared_memory import SharedMemory
from marsrl_verl.verl_adapter.cpu.template.process import use_template_for_multiprocessing
use_template_for_multiprocessing()
memory = SharedMemory(create=True, size=10)
print(memory.name, flush=True)
signal.pause()
"""


def test_shared_memory_of_a_killed_fork_is_removed(own_launcher: Launcher) -> None:
    process = own_launcher.start("-c", SHARING)
    segment = Path("/dev/shm") / process.stdout.readline().strip()
    assert segment.exists()
    own_launcher.end(signal.SIGKILL)
    # The tracker holds standard output open until it has cleaned up.
    process.stdout.read()
    process.wait(timeout=30)
    assert not segment.exists()


def test_without_a_template_multiprocessing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    before = multiprocessing.spawn.get_executable()
    template_process.use_template_for_multiprocessing()
    assert multiprocessing.spawn.get_executable() == before


DRIVER = """
import os, pickle, sys
from marsrl_verl.reporting import run_lock
with os.fdopen({payload}, "rb") as stream:
    run_lock.adopt(pickle.load(stream))
worker = os.fork()
if worker == 0:
    os.execvp("sleep", ["sleep", "30"])
print(len(run_lock.held()), worker, flush=True)
sys.stdin.read()
"""
LOCKING_LAUNCHER = """
import os, pickle, sys
from pathlib import Path
from marsrl_verl.reporting import run_lock
from marsrl_verl.verl_adapter.cpu.template.process import TemplateProcess
folder = Path(sys.argv[1])
with TemplateProcess(early_modules=[], modules=["colorsys"]) as template, run_lock.hold(folder):
    template.provide({})
    locks = run_lock.held()
    status = template.run(["-c", sys.argv[2]], pickle.dumps(locks), list(locks.values()))
"""


def test_the_driver_holds_the_runs_folder_and_its_workers_do_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKING_LAUNCHER, str(tmp_path), DRIVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    held, worker = map(int, process.stdout.readline().split())
    try:
        assert held == 1
        with pytest.raises(RunLockedError, match=f"process {process.pid}"), hold(tmp_path):
            pass
        process.stdin.close()  # the driver ends, and the launcher after it
        assert process.wait(timeout=30) == 0
        os.kill(worker, 0)
        with hold(tmp_path):
            pass
    finally:
        process.kill()
        os.kill(worker, signal.SIGKILL)


IDS = """
import threading
from ray import ObjectRef
print(ObjectRef.from_random().hex())
thread = threading.Thread(target=lambda: print(ObjectRef.from_random().hex()))
thread.start()
thread.join()
"""


def template_with(module: str, tmp_path: Path, monkeypatch) -> template_process.TemplateProcess:
    (tmp_path / "imported_by_it.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return template_process.TemplateProcess(early_modules=[], modules=["imported_by_it"])


def test_forks_draw_ids_of_their_own(tmp_path, monkeypatch):
    """As fresh interpreters do. Ray's objects and tasks have such ids, those of threads among them."""
    module = "import ray\n\n@ray.remote\nclass Actor:\n    pass\n"
    with (
        template_with(module, tmp_path, monkeypatch) as template,
        (tmp_path / "ids").open("w") as file,
    ):
        template.provide({})
        code = f"import os; os.dup2({file.fileno()}, 1)\n{IDS}"
        assert [template.run(["-c", code], descriptors=[file.fileno()]) for _ in range(2)] == [0, 0]
    ids = (tmp_path / "ids").read_text().split()
    assert len(set(ids)) == 4


def test_a_template_that_drew_rays_random_numbers_is_refused(tmp_path, monkeypatch):
    module = "from ray import ObjectRef\nObjectRef.from_random()\n"
    with template_with(module, tmp_path, monkeypatch) as template:
        template.provide({})
        with pytest.raises(
            template_process.TemplateEndedError, match=r"(?s)Ray's random numbers.*fork_server=false"
        ):
            template.run(["-c", ""])
