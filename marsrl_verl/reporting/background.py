"""Writing files beside the training: at the published size a step's rollouts are gigabytes of JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs jobs one after the other, in their order, in a thread of its own.

    A job's error is raised by the next call of any method, and again by every later one: what was to be
    written is lost, and the run must not go on as if it were not.

    Args:
        most_waiting: jobs that may be unfinished; with more, `submit` waits for the oldest.
    """

    def __init__(self, most_waiting: int = 2) -> None:
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run-folder")
        self._jobs: deque[Future[object]] = deque()

    def submit(self, job: Callable[[], object]) -> None:
        """Have a job done. What it reads must not be changed any more."""
        self._reap(self._most_waiting - 1)
        self._jobs.append(self._thread.submit(job))

    def flush(self) -> None:
        """Wait until all jobs are done."""
        self._reap(0)

    def close(self) -> None:
        """Wait until all jobs are done, and end the thread."""
        try:
            self.flush()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def _reap(self, most: int) -> None:
        """Take finished jobs off, and wait until at most so many are left; a failed one stays."""
        while self._jobs and (len(self._jobs) > most or self._jobs[0].done()):
            self._jobs[0].result()
            self._jobs.popleft()
