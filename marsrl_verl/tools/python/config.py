"""Settings of the Python tool."""

from __future__ import annotations

from pydantic import Field, field_validator

from marsrl_verl.endpoints.config import check_urls
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Needs, Settings, limits, only_with
from marsrl_verl.tools.base import ToolConfig


class Backend(Choice):
    """Place where programs run."""

    LOCAL = "local"
    """Sandboxes on the node of the rollout worker."""
    REMOTE = "remote"
    """A server with the API of SandboxFusion."""


class Isolation(Choice):
    """Isolation of a sandbox, the strongest first (docs/guides/tools.md)."""

    NAMESPACES = "namespaces"
    """Process, mount, network, IPC and user namespaces of its own, a file system of its own, a system call
    filter."""
    BUBBLEWRAP = "bubblewrap"
    """The same, made by `bwrap`, each with a fresh interpreter: where the kernel lets that command alone make
    namespaces."""
    LANDLOCK = "landlock"
    """No namespaces: Landlock closes the file system, the system call filter the rest. Programs start no
    processes and write no files."""
    SECCOMP = "seccomp"
    """The system call filter alone: programs can read what the run's user can read."""

    @property
    def strength(self) -> int:
        """Rank for comparisons; the two with namespaces are equally strong."""
        return {"namespaces": 2, "bubblewrap": 2, "landlock": 1, "seccomp": 0}[self.value]


class RemoteConfig(Settings):
    """A server with the API of SandboxFusion (`POST <url>/run_code`)."""

    urls: list[str] = Field(default_factory=list)
    """Such as `http://host:8080`. With several of them every call goes to the next one, a repeated one to the
    next after that which failed."""
    api_key_env: str | None = None
    """Name of the environment variable that holds a key, which is sent as bearer token; null: none is sent.
    The process that starts the run needs it."""
    api_key_file: str | None = None
    """File with the key, in place of `api_key_env`."""
    compile_timeout_s: float = limits(10.0, gt=0.0, why="seconds")
    """Seconds that the server is given for the compilation, which Python has none of."""

    @field_validator("urls")
    @classmethod
    def _urls(cls, value: list[str]) -> list[str]:
        check_urls(value)
        return value


_LOCAL = Needs("backend", Backend.LOCAL)


class PythonConfig(ToolConfig):
    """A Python interpreter: a call runs a program and returns what it prints."""

    max_concurrency: int = limits(8, ge=1, le=100, why="a hundred sandboxes at most")
    """Most programs at a time in each rollout worker; further ones wait."""
    timeout_s: float = limits(10.0, gt=0.0, le=3600.0, why="seconds, an hour at most")
    """Most seconds of a program by the clock, and in sandboxes of processor time, all of its processes
    together. A call's attempt ends within a second more; on a server within ten, in which it waits for a
    place there."""
    backend: Backend = Backend.LOCAL
    """`local`: sandboxes on the rollout worker's node. `remote`: a server with SandboxFusion's API."""
    isolation: Isolation | None = limits(None, needs=_LOCAL)
    """Isolation of sandboxes; null: the strongest that the machine offers, in the order of the choices."""
    min_isolation: Isolation = limits(Isolation.LANDLOCK, needs=_LOCAL)
    """The weakest that will do: a run on a machine that offers less is rejected. `namespaces` and
    `bubblewrap` count as equal."""
    memory_mb: int = limits(512, ge=16, why="the interpreter itself takes some")
    """MiB that the processes of a program may take together beside the interpreter, which counts once."""
    disk_mb: int = limits(64, ge=1, why="a file system has a size", needs=_LOCAL)
    """Size of a program's own folder for files in MiB, which is in memory."""
    max_processes: int = limits(32, ge=0, why="0 is none", needs=_LOCAL)
    """Processes and threads that a program may have at a time; 0: it may start threads alone."""
    output_mb: int = limits(16, ge=1, why="a program may print something", needs=_LOCAL)
    """A program that prints more MiB is ended; `max_output_chars` says how much of it is kept."""
    code_chars: int = limits(65_536, ge=1, why="a program has a character")
    """Longer programs are not run."""
    echo: bool = limits(True, needs=_LOCAL)
    """Print the value of a program's last line if it is an expression, as a notebook does."""
    preload: list[str] = limits(["numpy", "sympy"], needs=_LOCAL)
    """Modules that interpreters have imported before a program comes."""
    interpreter: str | None = limits(None, needs=_LOCAL)
    """Path of an interpreter, 3.10 or newer, whose packages programs can import; null: this environment's."""
    prewarmed: int = limits(4, ge=0, le=20, why="0 is none, more than 20 are never needed", needs=_LOCAL)
    """Sandboxes that are ready before the first program comes; later as many as programs have run at a time.
    0: none ever is."""
    remote: RemoteConfig = only_with(Needs("backend", Backend.REMOTE), RemoteConfig)
    """Settings of back end `remote`."""
