"""The Python tool on this machine: what models read, what is measured, what is cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import venv
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marsrl_verl.settings.reading import defaults, without_effect
from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult, ToolUnavailableError
from marsrl_verl.tools.python import isolation, pool, tool
from marsrl_verl.tools.python.config import Backend, Isolation, PythonConfig
from marsrl_verl.tools.python.isolation import IsolationError, open_pool
from marsrl_verl.tools.python.pool import SandboxError
from marsrl_verl.tools.python.tool import PythonTool
from marsrl_verl.tools.toolbox import Toolbox


def settings(**given: Any) -> PythonConfig:
    usual = {"preload": [], "timeout_s": 5.0, "memory_mb": 128, "prewarmed": 1, "min_isolation": "seccomp"}
    return PythonConfig(target="python", **{**usual, **given})


def using(work: Callable[[Toolbox, PythonTool], Awaitable[Any]], **given: Any) -> Any:
    """What `work` returns of a started toolbox, or a skip where this machine can't isolate."""

    async def run() -> Any:
        config = settings(**given)
        made = PythonTool.from_settings("python", config, seed=3, secrets={})
        box = Toolbox([(made, config)])
        try:
            await box.start()
        except ToolUnavailableError as error:
            pytest.skip(str(error))
        try:
            return await work(box, made)
        finally:
            await box.close()

    return asyncio.run(run())


def program(code: str, call_id: str = "g#0/0") -> ToolCall:
    return ToolCall("python", {"code": code}, call_id)


def run(*codes: str, **given: Any) -> list[ToolResult]:
    """What programs return, one after the other."""

    async def work(box: Toolbox, _: PythonTool) -> list[ToolResult]:
        return [await box.call(program(code)) for code in codes]

    return using(work, **given)


PROGRAMS = {
    "6 * 7": ("42", ToolOutcome.OK),
    "x = 1\nx": ("1", ToolOutcome.OK),
    "print('a'); 'b'": ("a\nb", ToolOutcome.OK),
    "None": ("", ToolOutcome.OK),
    "x = 5": ("", ToolOutcome.OK),
    "": ("", ToolOutcome.OK),
    "print('out'); import sys; print('err', file=sys.stderr)": ("out\nerr", ToolOutcome.OK),
    "raise SystemExit": ("", ToolOutcome.OK),
    "raise SystemExit(3)": ("", ToolOutcome.ERROR),
    "import sys; sys.exit('bad input')": ("bad input", ToolOutcome.ERROR),
    "print(__name__)": ("__main__", ToolOutcome.OK),
    "def f():\n    return 1 / 0\nprint('before')\nf()": (
        "before\nTraceback (most recent call last):\n"
        '  File "<program>", line 4, in <module>\n    f()\n'
        '  File "<program>", line 2, in f\n    return 1 / 0\n           ~~^~~\n'
        "ZeroDivisionError: division by zero",
        ToolOutcome.ERROR,
    ),
    "import os\nprint('a', flush=True)\nos.kill(os.getpid(), 15)": (
        "a\n[the program ended with SIGTERM]",
        ToolOutcome.ERROR,
    ),
}


def test_programs_read_as_at_a_terminal():
    for code, result in zip(PROGRAMS, run(*PROGRAMS), strict=True):
        text = result.text.replace("           ~~^~~\n", "")  # from Python 3.11 on
        wanted, outcome = PROGRAMS[code]
        assert (text, result.outcome) == (wanted.replace("           ~~^~~\n", ""), outcome), code
        assert result.info["ended"] == "ended" and result.attempts == 1


def test_limits_are_told():
    codes = (
        "print('begun', flush=True)\nwhile True: pass",
        "x = []\nwhile True: x.append(bytearray(b'1' * 2**20))",
        "while True: print('x' * 1000)",
        "1" * 3000,
    )
    slow, big, loud, long = run(*codes, timeout_s=1.0, output_mb=1, max_output_chars=300, code_chars=2000)
    assert (slow.text, slow.outcome) == ("begun\n[the program was ended after 1 s]", ToolOutcome.TIMEOUT)
    assert slow.seconds < 2.0
    assert big.outcome is ToolOutcome.ERROR and "emory" in big.text
    assert loud.truncated and len(loud.text) <= 300 and "bytes left out" in loud.text
    assert loud.text.endswith("[the program was ended: it printed more than 1 MiB]")
    assert (long.outcome, long.text) == (
        ToolOutcome.REFUSED,
        "the program has 3000 characters and was not run; 2000 are the most",
    )


def test_output_keeps_head_and_tail():
    (result,) = run("for k in range(10_000): print(k)", max_output_chars=200)
    lines = result.text.splitlines()
    assert result.truncated and len(result.text) <= 200
    assert lines[0] == "0" and lines[-1] == "9999"


def test_without_echo_nothing_is_printed_by_itself():
    (result,) = run("6 * 7", echo=False)
    schema = PythonTool("python", settings(echo=False), seed=1).schema()
    assert result.text == "" and "last line" not in str(schema)


def test_random_numbers_derive_from_the_call():
    async def three(box: Toolbox, _: PythonTool) -> list[ToolResult]:
        code = "import random; print(random.random(), hash('a'))"
        return [await box.call(program(code, call_id)) for call_id in ("g#0/0", "g#0/0", "g#0/1")]

    first, again, other = using(three)
    assert first.text == again.text != other.text


@pytest.mark.parametrize("prewarmed", [0, 1])
def test_calls_share_nothing(prewarmed):
    spoils = "import builtins, sys, math\nbuiltins.len = None\nmath.pi = 3\nsys.path.clear()\nprint('spoilt')"
    looks = "import math, decimal; print(len('abc'), math.pi > 3)"
    assert [one.text for one in run(spoils, looks, prewarmed=prewarmed, max_concurrency=1)] == [
        "spoilt",
        "3 True",
    ]


def test_a_cancelled_call_ends_its_program():
    async def cancelled(box: Toolbox, _: PythonTool) -> float:
        running = asyncio.ensure_future(box.call(program("while True: pass")))
        await asyncio.sleep(0.3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        began = asyncio.get_running_loop().time()
        assert (await box.call(program("1 + 1"))).text == "2"
        return asyncio.get_running_loop().time() - began

    assert using(cancelled, max_concurrency=1, timeout_s=30.0) < 10


def test_another_server_is_started_when_it_is_gone():
    async def killed(box: Toolbox, made: PythonTool) -> tuple[ToolResult, int]:
        served = made._closed.pool
        running = asyncio.ensure_future(box.call(program("import time; time.sleep(0.6); print('never')")))
        await asyncio.sleep(0.3)
        os.kill(served._server.pid, signal.SIGKILL)
        return await running, served.starts

    result, starts = using(killed)
    assert starts >= 2
    assert (result.text, result.outcome, result.attempts) == ("never", ToolOutcome.OK, 2)


def test_a_server_that_hangs_is_replaced(monkeypatch):
    monkeypatch.setattr(pool, "READY_S", 3.0)

    async def stopped(box: Toolbox, made: PythonTool) -> tuple[list[ToolResult], int, list[int]]:
        servers = [made._closed.pool._server]
        servers[0].send_signal(signal.SIGSTOP)
        results = await asyncio.gather(*[box.call(program("6 * 7")) for _ in range(3)])
        servers.append(made._closed.pool._server)
        return results, made._closed.pool.starts, [one.poll() for one in servers]

    results, starts, ended = using(stopped, prewarmed=0, max_concurrency=3)
    assert [(one.text, one.outcome) for one in results] == [("42", ToolOutcome.OK)] * 3
    assert starts == 2 and ended == [-signal.SIGKILL, None]


def test_weaker_isolation_than_there_could_be_is_warned_of():
    reasons = {"namespaces": "unshare: not permitted", "bubblewrap": "there is no command bwrap"}
    made = PythonTool("python", settings(), seed=1)
    for kind, over, warned in (
        (Isolation.LANDLOCK, reasons, True),
        (Isolation.LANDLOCK, {}, False),  # it was asked for
        (Isolation.BUBBLEWRAP, {"namespaces": "unshare: not permitted"}, False),
    ):
        made._closed = isolation.Closed(SimpleNamespace(facts={}), kind, over)
        said = made.about()
        if warned:
            told = "namespaces: unshare: not permitted; bubblewrap: there is no command"
            assert f"weaker than namespaces ({told}" in said["warning"]
        else:
            assert "warning" not in said and said["passed_over"] == over


@pytest.mark.parametrize("home", ["/", "/tmp"])
def test_any_home_folder_will_do(monkeypatch, home):
    """Both are seen in a sandbox, and nothing of the machine's in them."""

    async def opened() -> None:
        (await open_pool(settings(isolation="namespaces"))).pool.close()

    try:
        asyncio.run(opened())
    except IsolationError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("HOME", home)
    asyncio.run(opened())
    assert not list(Path(home).glob(".marsrl-secret-*"))


@contextlib.contextmanager
def environment(parent: str) -> Iterator[Path]:
    """A virtual environment with a module `own_module` in a folder below `parent`."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root, programs have a user of their own
        venv.create(folder / "there/real", with_pip=False)
        packages = next(folder.glob("there/real/lib/python*/site-packages"))
        (packages / "own_module.py").write_text("VALUE = 42\n")
        yield folder


@pytest.mark.parametrize("kind", ["namespaces", "bubblewrap", "landlock"])
def test_an_environment_that_is_a_link_is_seen(kind):
    """A relative one too, by a way that is a link itself."""
    with environment("/var/tmp") as folder:
        (folder / "there/.venv").symlink_to("../there/real")
        (folder / "way").symlink_to("there")
        for link in ("there/.venv", "way/.venv"):
            given = {"interpreter": f"{folder}/{link}/bin/python", "isolation": kind}
            assert run("import own_module; own_module.VALUE", **given)[0].text == "42"


@pytest.mark.parametrize("kind", ["namespaces", "bubblewrap", "landlock"])
def test_an_interpreter_below_tmp_is_seen_and_read_only(kind):
    """Programs have a `/tmp` of their own, which must not hide it."""
    code = """
import own_module, os
try:
    open(os.path.dirname(own_module.__file__) + '/new.py', 'w')
except OSError:
    print('read-only')
print(own_module.VALUE)"""
    with environment("/tmp") as folder:
        (result,) = run(code, interpreter=f"{folder}/there/real/bin/python", isolation=kind)
        assert result.text.split() == ["read-only", "42"]
        assert not list(folder.rglob("new.py"))


@pytest.mark.parametrize("kind", Isolation, ids=str)
def test_each_isolation_of_this_machine_holds(kind):
    async def one(box: Toolbox, _: PythonTool) -> tuple[ToolResult, ToolResult]:
        said = box.about()["python"]
        assert (said["backend"], said["isolation"]) == ("local", str(kind))
        started = "import subprocess as s\nprint(s.run(['/bin/echo', 'child'], capture_output=True).stdout)"
        return await box.call(program("print(6 * 7)")), await box.call(program(started))

    result, child = using(one, isolation=kind)
    assert result.text == "42"
    if kind.strength < Isolation.NAMESPACES.strength:
        assert child.outcome is ToolOutcome.ERROR and "PermissionError" in child.text


@pytest.mark.parametrize("kind", Isolation, ids=str)
def test_what_an_interpreter_has_imported_is_no_programs_memory(kind):
    kept = "import time; kept = b'x' * (12 * 2**20); time.sleep(0.2); print('kept')"
    assert run(kept, isolation=kind, preload=["numpy"], memory_mb=24)[0].text == "kept"


def test_preloaded_modules_are_there():
    code = "import sys; print('numpy' in sys.modules); import numpy; numpy.arange(3)"
    assert run(code, preload=["numpy"], memory_mb=512)[0].text == "True\n[0 1 2]"


def test_less_than_the_minimum_is_refused(monkeypatch):
    async def nothing_but_the_filter(given: PythonConfig, kind: Isolation, layout: Any) -> Any:
        raise SandboxError(f"no {kind} here")

    monkeypatch.setattr(isolation, "_tried", nothing_but_the_filter)
    config = settings(min_isolation="landlock")
    with pytest.raises(ToolUnavailableError) as refused:
        asyncio.run(PythonTool.from_settings("python", config, seed=1, secrets={}).start())
    told = str(refused.value)
    assert (
        "namespaces: no namespaces here; bubblewrap: no bubblewrap here; landlock: no landlock here" in told
    )
    assert "seccomp" not in told and "min_isolation = landlock" in told and "backend=remote" in told
    with pytest.raises(IsolationError, match="isolation seccomp is weaker than min_isolation landlock"):
        asyncio.run(open_pool(settings(isolation="seccomp", min_isolation="landlock")))


def test_a_sandbox_that_does_not_hold_is_passed_over(monkeypatch):
    monkeypatch.setattr(isolation, "_ATTEMPTS", "print('[\"reads a file outside\"]')")
    with pytest.raises(IsolationError, match="landlock: it does not hold: a program reads a file outside"):
        asyncio.run(open_pool(settings(isolation="landlock", min_isolation="landlock")))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"preload": ["no_such_module"]}, "No module named 'no_such_module'"),
        ({"interpreter": "/no/python"}, "the interpreter /no/python can't be used"),
    ],
)
def test_what_keeps_it_from_starting_is_told(given, told):
    made = PythonTool.from_settings("python", settings(**given), seed=1, secrets={})
    with pytest.raises(ToolUnavailableError, match=told):
        asyncio.run(made.start())


def test_settings_of_another_back_end_have_no_effect():
    config = settings(backend="remote", isolation="landlock", min_isolation="landlock", prewarmed=4)
    keys = [issue.key for issue in without_effect(config, "marsrl.tools.python")]
    assert keys == ["marsrl.tools.python.isolation", "marsrl.tools.python.preload"]
    local = PythonConfig(target="python", remote={"urls": ["http://a"]})
    assert [one.key for one in without_effect(local, "t")] == ["t.remote.urls"]
    assert defaults(PythonConfig)["min_isolation"] == "landlock"
    assert PythonConfig(target="python").backend is Backend.LOCAL


def test_unknown_endings_are_told():
    info: dict[str, Any] = {}
    assert tool._ending(None, info) == (ToolOutcome.ERROR, "the program was ended by the system")
    assert tool._ending(9, info)[1] == "the program ended with SIGKILL" and info["signal"] == 9
    assert tool._ending(40, info)[1] == "the program ended with signal 40"
    assert tool._ending(0x0300, info) == (ToolOutcome.ERROR, "") and info["exit_code"] == 3
