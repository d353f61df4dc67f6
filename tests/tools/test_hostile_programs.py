"""Programs that try to break out of the Python tool's sandboxes (`hostile_programs.yaml`), with and
without namespaces, and with those of bubblewrap."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python import pool
from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.tool import PythonTool
from marsrl_verl.tools.toolbox import Toolbox

pytestmark = pytest.mark.slow

MUST_FAIL = """
def must_fail(what):
    try:
        what()
    except BaseException as error:
        print("refused:", type(error).__name__)
    else:
        print("ESCAPED")
"""
TOLD = """
import os, time
out, into = os.pipe()
def filled(mib):
    os.write(into, b'%d ' % mib)
def slowly(mib):
    held = []
    for _ in range(12):  # in a second, so that a supervisor of a busy machine looks in between
        held.append(bytearray(b'1') * (mib * 2**20 // 12))
        filled(mib // 12)
        time.sleep(0.09)
    time.sleep(60)
def told(fill, processes):
    for _ in range(processes):
        if os.fork() == 0:
            try: fill()
            finally: os._exit(0)
    total = b''
    while sum(map(int, total.split()[:-1])) < 224: total += os.read(out, 100)
    print('ESCAPED', flush=True)
    time.sleep(60)
"""


@dataclass(frozen=True)
class Hostile:
    """A program and what must hold when it is run."""

    name: str
    code: str
    ends: tuple[str, ...] = ("ok", "error")
    shows: str = ""


def _programs() -> list[Hostile]:
    text = Path(__file__).with_name("hostile_programs.yaml").read_text(encoding="utf-8")
    found = []
    for one in yaml.safe_load(text):
        given = (("must_fail", MUST_FAIL), ("told", TOLD))
        head = "".join(text for name, text in given if name in one["code"])
        ends = tuple(one.get("ends", ("ok", "error")))
        found.append(Hostile(one["name"], head + one["code"], ends, one.get("shows", "")))
    return [
        *found,
        Hostile("very long", f"#{'x' * 60_000}\nprint('read')", ("ok",), "read"),
        Hostile("null bytes", "print('a')\0", ("error",)),
        Hostile("deeply nested source", f"x = {'(' * 5000}{')' * 5000}", ("error",)),
    ]


PROGRAMS = _programs()
TIMEOUT_S = 2.0
AT_A_TIME = 4
KINDS = (Isolation.NAMESPACES, Isolation.BUBBLEWRAP, Isolation.LANDLOCK)
"""The machine has to offer them: `bubblewrap` wants the command bwrap. `seccomp` alone keeps no files."""


@dataclass
class Outside:
    """What no program may touch."""

    folder: Path
    listener: socket.socket
    abstract: socket.socket
    before: str = ""
    mark: str = ""

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def state(self) -> str:
        """Everything in the folder, with contents, modes and times."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            seen = path.lstat()
            digest.update(f"{path} {seen.st_mode} {seen.st_size} {seen.st_mtime_ns} {seen.st_uid}".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()


@dataclass
class Ran:
    """What came of all programs at one kind of isolation."""

    results: dict[str, ToolResult] = field(default_factory=dict)
    neighbours: dict[str, ToolResult] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Processes that were there when no program ran any more, beside the server and what it keeps ready."""
    after_close: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("a secret")
    os.chmod(folder / "secret", 0o644)
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            os.chmod(path, path.stat().st_mode | 0o055) if path != Path.home() else None
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0marsrl-hostile-{os.getpid()}")
    abstract.listen()
    with abstract, socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as named:
        named.bind(str(folder / "socket"))
        named.listen()
        os.chmod(folder / "socket", 0o777)
        found = Outside(folder, listener, abstract, mark=f"MARK_{os.getpid()}_{time.monotonic_ns()}")
        found.before = found.state()
        yield found


@pytest.fixture(scope="module", params=KINDS, ids=str)
def ran(request: pytest.FixtureRequest, outside: Outside) -> Iterator[Ran]:
    patch = pytest.MonkeyPatch()
    patch.setenv("MARSRL_SECRET", "a secret of the run")
    patch.setitem(pool.ENVIRONMENT, "MARK", outside.mark)
    try:
        yield asyncio.run(_run_all(request.param, outside))
    finally:
        patch.undo()


async def _run_all(kind: Isolation, outside: Outside) -> Ran:
    config = PythonConfig(
        target="python", isolation=kind, min_isolation=Isolation.SECCOMP, timeout_s=TIMEOUT_S, preload=[],
        memory_mb=128, disk_mb=16, max_processes=16, output_mb=8, max_output_chars=2000,
        max_concurrency=2 * AT_A_TIME, retries=0, prewarmed=2,
    )  # fmt: skip
    tool = PythonTool.from_settings("python", config, seed=1, secrets={})
    box, ran, places = Toolbox([(tool, config)]), Ran(), asyncio.Semaphore(AT_A_TIME)
    try:
        await box.start()
    except ToolUnavailableError as error:
        pytest.skip(f"this machine does not offer {kind}: {error}")

    async def one(program: Hostile) -> None:
        async with places:
            call = ToolCall("python", {"code": _filled(program.code, outside)}, f"{program.name}/0")
            beside = ToolCall("python", {"code": "6 * 7"}, f"{program.name}/1")
            both = await asyncio.gather(box.call(call), box.call(beside))
            ran.results[program.name], ran.neighbours[program.name] = both

    await asyncio.gather(*[one(program) for program in PROGRAMS])
    # What is kept ready may still be starting.
    ran.left = await _left(outside.mark, lambda one: "from jail import" not in one)
    await box.close()
    ran.after_close = await _left(outside.mark)
    return ran


async def _left(mark: str, counts: Callable[[str], bool] = bool) -> list[str]:
    """Processes that have not ended within five seconds."""
    for _ in range(100):
        if not (left := list(filter(counts, _marked(mark)))):
            break
        await asyncio.sleep(0.05)
    return left


def _filled(code: str, outside: Outside) -> str:
    values = {
        "@OUTSIDE@": str(outside.folder), "@PID@": str(os.getpid()), "@PORT@": str(outside.port),
        "@HOME@": os.path.expanduser("~"),
    }  # fmt: skip
    for name, value in values.items():
        code = code.replace(name, value)
    return code


def _marked(mark: str) -> list[str]:
    """Command lines of the living processes with the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{folder.name}: {words}")
        except OSError:
            continue
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_program_is_kept_in_and_ends_as_it_should(ran: Ran, program: Hostile, request) -> None:
    result = ran.results[program.name]
    assert "ESCAPED" not in result.text
    assert result.seconds <= TIMEOUT_S + 1.0
    assert len(result.text) <= 2000
    assert result.text == result.text.encode("utf-8", "strict").decode()
    kind = request.node.callspec.params["ran"]
    if kind is Isolation.LANDLOCK or (kind is Isolation.BUBBLEWRAP and os.geteuid() == 0):
        # Programs start no processes there, with Landlock they write no files, and mostly fail earlier.
        assert str(result.outcome) in ("ok", "error", "timeout"), result
        return
    assert str(result.outcome) in program.ends, result
    assert program.shows in result.text


def test_neighbours_live(ran: Ran) -> None:
    wrong = {
        name: one for name, one in ran.neighbours.items() if (one.outcome, one.text) != (ToolOutcome.OK, "42")
    }
    assert not wrong


def test_no_process_is_left(ran: Ran) -> None:
    assert not ran.left
    assert not ran.after_close


def test_nothing_outside_has_changed(ran: Ran, outside: Outside) -> None:
    assert outside.state() == outside.before
    for one in (outside.listener, outside.abstract):
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.accept()
