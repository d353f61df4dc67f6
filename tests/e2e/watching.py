"""Run a program and look at its processes from outside meanwhile."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from training_runs import REPOSITORY, START_TIMEOUT_S


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


def watched(words: list[str], log: Path, **environment: str) -> Seen:
    """Runs a program to its end and looks at all of its processes meanwhile."""
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
