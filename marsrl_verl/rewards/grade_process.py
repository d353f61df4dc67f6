"""Run a grading function in a process of its own, which a timeout really ends.

Symbolic mathematics on text that a model wrote may run for ever or eat all memory, inside C code that
no signal interrupts. The process is started with `subprocess`: neither fork, which is unsafe beside
the threads of a Ray actor, nor multiprocessing's spawn, which would run the parent's main module again.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from typing import Any


class GradeTimeout(Exception):
    """The call took longer than allowed; its process has been ended."""


class GradeFailure(Exception):
    """The call raised, or its process died."""


class GradeProcess:
    """Calls one function of JSON-able arguments in a reusable process. Safe to share among threads;
    calls run one after the other.

    Args:
        target: `package.module:function`, importable in a fresh interpreter with this one's path.
        timeout_s: most seconds per call, waiting for other threads' calls not included.
        memory_mb: most address space of the process.
        start_timeout_s: most seconds until the process has imported the function.
    """

    def __init__(
        self, target: str, *, timeout_s: float = 10.0, memory_mb: int = 4096, start_timeout_s: float = 120.0
    ) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s}, expected more than 0")
        if memory_mb < 512:
            raise ValueError(f"memory_mb is {memory_mb}, expected at least 512")
        self.target = target
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.start_timeout_s = start_timeout_s
        self.starts = 0
        """How often the process was started."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def call(self, *arguments: Any) -> Any:
        """Call the function; starts the process if there is none.

        Raises:
            GradeTimeout: too slow; the process was ended, the next call starts a new one.
            GradeFailure: the function raised or its process died; the message says how.
        """
        with self._lock:
            process = self._running()
            line = (json.dumps(arguments) + "\n").encode()
            try:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
                answer = self._read(process, self.timeout_s)
            except OSError as error:
                self._kill()
                raise GradeFailure(f"{self.target}: its process died: {error}") from error
        if "error" in answer:
            raise GradeFailure(f"{self.target} raised {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process. A later call would start a new one."""
        with self._lock:
            self._kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        worker = "marsrl_verl.rewards.grade_worker"
        command = [sys.executable, "-m", worker, self.target, str(self.timeout_s), str(self.memory_mb)]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the parent: a grader that it ended would make a right answer count as wrong.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.starts += 1
        try:
            greeting = self._read(self._process, self.start_timeout_s)
        except GradeTimeout as error:
            raise GradeFailure(f"{self.target}: no start within {self.start_timeout_s:g} s") from error
        if "failed" in greeting:
            self._kill()
            raise GradeFailure(f"{self.target} can't be imported: {greeting['failed']}")
        return self._process

    def _read(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        """The next reply; on timeout or end of file the process is gone afterwards."""
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._kill()
                    raise GradeTimeout(f"{self.target} took longer than {timeout_s:g} s")
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    self._kill()
                    raise GradeFailure(
                        f"{self.target}: its process ended with exit status {process.returncode}"
                    )
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _kill(self) -> None:
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # unsent bytes for a process that is gone
                    continue
