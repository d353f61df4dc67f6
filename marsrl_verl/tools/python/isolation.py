"""Isolation that a machine offers: each kind is tried, and a program inside tries to get out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.jail import mounts
from marsrl_verl.tools.python.jail.rules import Rules
from marsrl_verl.tools.python.pool import ENVIRONMENT, JAIL_FOLDER, SandboxError, SandboxPool, boot_command

_LAYOUT = (
    "import json, os, sys, sysconfig; places = sysconfig.get_paths(); "
    "print(json.dumps({'version': sys.version_info[:2], 'executable': os.path.realpath(sys.executable), "
    "'prefixes': [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix], "
    "'paths': [places['purelib'], places['platlib']]}))"
)
_LAYOUT_S = 30.0
_MARGIN = 160
"""Characters of an output that the mark in its middle may take."""


class IsolationError(Exception):
    """No isolation that will do; the message says why not."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Installation of an interpreter."""

    interpreter: str
    prefixes: list[str]
    paths: list[str]
    """Folders of packages."""


def layout_of(interpreter: str) -> Layout:
    """Asks an interpreter for its layout; IsolationError if it can't be used."""
    command = [interpreter, "-I", "-c", _LAYOUT]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_LAYOUT_S, check=True, stdin=subprocess.DEVNULL
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise IsolationError(f"the interpreter {interpreter} can't be used: {error}") from error
    if found["version"] < [3, 10]:
        raise IsolationError(f"the interpreter {interpreter} is older than 3.10")
    folder = os.path.dirname(found["executable"])
    prefixes = [*found["prefixes"], *([] if folder.endswith("/bin") else [folder])]
    return Layout(interpreter, list(dict.fromkeys(prefixes)), list(dict.fromkeys(found["paths"])))


def rules_for(settings: PythonConfig, kind: Isolation, layout: Layout) -> Rules:
    """The rules of a server's sandboxes."""
    budget = max(64, settings.max_output_chars - _MARGIN)
    readable = mounts.shown(layout.prefixes)
    return Rules(
        kind=str(kind),
        timeout_s=settings.timeout_s,
        memory_mb=settings.memory_mb,
        disk_mb=settings.disk_mb,
        processes=settings.max_processes,
        output_mb=settings.output_mb,
        head=budget - budget // 2,
        tail=budget // 2,
        echo=settings.echo,
        preload=list(settings.preload),
        readable=readable,
        paths=layout.paths,
        command=_bubblewrap(settings, layout, readable) if kind is Isolation.BUBBLEWRAP else [],
    )


def _bubblewrap(settings: PythonConfig, layout: Layout, readable: Sequence[str]) -> list[str]:
    """Command that starts an interpreter with the same mounts as `mounts.build` makes."""
    program = shutil.which("bwrap")
    if program is None:
        raise IsolationError("there is no command bwrap")
    words = [program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    words += ["--cap-drop", "ALL", "--uid", str(mounts.INNER_ID), "--gid", str(mounts.INNER_ID), "--clearenv"]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    # Before what is shown: an interpreter may be installed there.
    words += ["--size", str(settings.disk_mb * 2**20), "--perms", "1777", "--tmpfs", "/tmp"]
    for path in readable:
        if os.path.islink(path) and os.path.isdir(path):
            words += ["--symlink", os.path.realpath(path), path]
        else:
            words += ["--ro-bind", path, path]
    words += ["--ro-bind", os.path.join(JAIL_FOLDER, "jail"), "/jail/jail"]
    words += ["--dev", "/dev", "--dev-bind", "/dev/null", "/dev/zero"]  # see `mounts.DEVICES`
    words += ["--proc", "/proc", "--chdir", "/", "--remount-ro", "/", "--"]
    return words + boot_command(layout.interpreter, "/jail", "init", "[sys.argv[1:]]")


@dataclass(frozen=True, slots=True)
class Closed:
    """A pool whose sandboxes keep what they promise."""

    pool: SandboxPool
    isolation: Isolation
    passed_over: Mapping[str, str]
    """Reasons why stronger kinds are not available, by kind."""

    @property
    def warning(self) -> str | None:
        """Sentence to warn with where this is weaker than it could be on such a system, else None."""
        stronger = [name for name in self.passed_over if Isolation(name).strength > self.isolation.strength]
        if not stronger:
            return None
        reasons = "; ".join(f"{name}: {self.passed_over[name]}" for name in stronger)
        return (
            f"programs have isolation {self.isolation}, which is weaker than {stronger[0]} ({reasons}). "
            f"Allow what is missing (docs/guides/tools.md), or accept it with isolation={self.isolation}."
        )


async def open_pool(settings: PythonConfig) -> Closed:
    """The strongest isolation of those that will do; IsolationError if there is none."""
    candidates = list(Isolation) if settings.isolation is None else [settings.isolation]
    kinds = [one for one in candidates if one.strength >= settings.min_isolation.strength]
    layout = await asyncio.to_thread(layout_of, settings.interpreter or sys.executable)
    reasons: dict[str, str] = {}
    for kind in kinds:
        try:
            return Closed(await _tried(settings, kind, layout), kind, reasons)
        except (SandboxError, IsolationError, OSError) as error:
            reasons[str(kind)] = str(error)
    if not kinds:
        raise IsolationError(
            f"isolation {settings.isolation} is weaker than min_isolation {settings.min_isolation}"
        )
    raise IsolationError("; ".join(f"{name}: {why}" for name, why in reasons.items()))


async def _tried(settings: PythonConfig, kind: Isolation, layout: Layout) -> SandboxPool:
    rules = rules_for(settings, kind, layout)
    if kind is Isolation.BUBBLEWRAP and os.geteuid() == 0:
        rules = replace(rules, processes=0)  # the kernel does not limit how many root has
    most = settings.max_concurrency if settings.prewarmed else 0
    pool = SandboxPool(rules, layout.interpreter, warm=settings.prewarmed, most=most)
    try:
        await pool.start()
        await _check(pool, kind)
    except BaseException:
        pool.close()
        raise
    return pool


_ATTEMPTS = """
import json, os, socket, sys
found = {}
def attempt(name, what):
    try:
        what()
    except (MemoryError, OSError, ValueError):
        return
    found[name] = True
def connect(kind):
    socket.socket(kind, socket.SOCK_STREAM).close()
def fork():
    children = []
    try:
        for _ in range(MOST + 2):
            child = os.fork()
            if child == 0:
                os.close(hold[1])
                os.read(hold[0], 1)
                os._exit(0)
            children.append(child)
    finally:
        os.close(hold[1])
        os.close(hold[0])
        for child in children:
            os.waitpid(child, 0)
hold = os.pipe()
attempt("reads a file outside", lambda: open(SECRET, "rb").read())
try:
    with open(SECRET, "ab") as file:
        file.write(b"changed")
except OSError:
    pass
attempt("lists a folder outside", lambda: os.listdir(os.path.dirname(SECRET)))
attempt("signals the process outside", lambda: os.kill(OUTSIDE, 0))
attempt("opens a network socket", lambda: connect(socket.AF_INET))
attempt("opens a network socket (IPv6)", lambda: connect(socket.AF_INET6))
attempt("takes more memory than it may", lambda: bytearray((MEMORY + 64) * 2**20))
attempt("starts more processes than it may", fork)
if len(os.environ) > COUNT:
    found["has the environment of the run"] = True
print(json.dumps(sorted(found)))
"""
_SECRET = b"secret"
_READS = frozenset({"reads a file outside", "lists a folder outside"})
"""Findings that the system call filter alone does not prevent."""


async def _check(pool: SandboxPool, kind: Isolation) -> None:
    """Has a program try to get out; SandboxError if it could."""
    with _secret_file() as secret:
        values = {
            "SECRET": secret,
            "OUTSIDE": os.getpid(),
            "MEMORY": pool.rules.memory_mb,
            "MOST": pool.facts.get("processes", 0),
            "COUNT": len(ENVIRONMENT) + 4,
        }
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        answer = await pool.run(head + _ATTEMPTS, 0)
        changed = Path(secret).read_bytes() != _SECRET
    try:
        found = set(json.loads(answer["head"].splitlines()[-1]))
    except (ValueError, IndexError):
        output = " ".join(f"{answer['head']} {answer['tail']}".split())
        raise SandboxError(f"a first program did not run to its end ({answer['why']}): {output}") from None
    if kind is Isolation.SECCOMP:
        found -= _READS
    if changed:
        found.add("writes a file outside")
    if found:
        raise SandboxError(f"it does not hold: a program {', '.join(sorted(found))}")


@contextlib.contextmanager
def _secret_file() -> Iterator[str]:
    """Makes a file in a folder of its own, in the home folder where that can be written to. Only the
    isolation keeps programs out of it."""
    home = os.path.expanduser("~")
    place = home if os.access(home, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=".marsrl-secret-", dir=place) as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "secret")
        path.write_bytes(_SECRET)
        path.chmod(0o644)
        yield str(path)


@asynccontextmanager
async def probing() -> AsyncIterator[Closed]:
    """The strongest isolation of this machine, as a run with the default settings has it; for the doctor."""
    settings = PythonConfig(target="python", prewarmed=0, min_isolation=Isolation.SECCOMP)
    closed = await open_pool(settings)
    try:
        yield closed
    finally:
        closed.pool.close()
