"""Placement of a comparison's runs: on this machine, or as jobs of a Ray cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from marsrl_verl.compare.plan import Run

RAY_ADDRESS = "ray_kwargs.ray_init.address"
"""A job on one node starts a Ray of its own."""
STOP_S = 60.0
"""Most seconds that the cluster has to accept that a job is stopped."""
_ANSWER_S = 5.0
"""Most seconds that a dashboard has to say its version."""


def no_dashboard_at(address: str) -> str | None:
    """Why no job can be handed to a dashboard, `http://HEAD:8265`; None where it answers, and for what Ray
    looks a dashboard up by (`auto`, `HOST:6379`, `ray://HEAD:10001`)."""
    if not address.startswith(("http://", "https://")):
        return None
    try:
        urllib.request.urlopen(f"{address.rstrip('/')}/api/version", timeout=_ANSWER_S).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):  # it wants a token, which Ray's command line sends
            return None
        return f"{address} answers {error.code}, so it is no Ray dashboard"
    except (OSError, ValueError) as error:
        return f"nobody answers at {address}: {getattr(error, 'reason', error)}"
    return None


class Here:
    """A run is a process of this machine."""

    is_timed: ClassVar[bool] = True
    """True where the process begins when the run does."""

    def words(self, run: Run, program: Sequence[str]) -> list[str]:
        """The training program, given without overrides, with those of a run."""
        return [*program, *run.overrides]

    def command(self, run: Run, program: Sequence[str]) -> list[str]:
        """The process that is started here and lasts as long as the run; arguments as `words`."""
        return self.words(run, program)

    def environment(self, jobs: int) -> dict[str, str] | None:
        """Variables of that process, one of so many at a time; None: this one's. Runs that go on at the same
        time share the cores, where more threads than cores would wait for each other; OMP_NUM_THREADS says
        otherwise."""
        if jobs == 1:
            return None
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        return {"OMP_NUM_THREADS": str(threads), **os.environ}

    def stop(self, run: Run) -> str | None:
        """Ends what the end of that process leaves behind; what is left all the same."""
        return None


@dataclass(slots=True)
class RayJobs:
    """Like `Here`, with a job of a Ray cluster for each run, whole on one of its nodes, where it starts a Ray
    of its own. Ray begins a job once a node has what it reserves.

    All nodes need the same environment at the same path, and the folder in which the comparison was started
    on a disk that they share.
    """

    address: str
    """Address of the dashboard, such as `http://HEAD:8265`."""
    cpus: int
    """CPUs that a run reserves."""
    gpus: int = 0
    """GPUs that a run reserves; it sees no others."""
    client: Sequence[str] = (sys.executable, "-m", "ray.scripts.scripts", "job")
    """Ray's command line."""
    is_timed: ClassVar[bool] = False
    _jobs: dict[str, str] = field(default_factory=dict)

    def words(self, run: Run, program: Sequence[str]) -> list[str]:
        return [*program, *run.overrides, f"{RAY_ADDRESS}=local"]

    def command(self, run: Run, program: Sequence[str]) -> list[str]:
        """Writes the job's script beside the run's log: Ray joins an entry point's words in a way that the
        shell, which it is given to, doesn't take apart again."""
        words = self.words(run, program)
        script = run.script_path.resolve()
        # A job begins in a folder of its own.
        text = f"cd {shlex.quote(os.getcwd())} || exit\nexec {shlex.join(words)}\n"
        script.write_text(text, encoding="utf-8")
        # Ray takes no name twice, not even that of a job which has ended.
        self._jobs[run.name] = job = f"{run.name}-{uuid.uuid4().hex[:8]}"
        gpus = [f"--entrypoint-num-gpus={self.gpus}"] if self.gpus else []
        resources = [f"--entrypoint-num-cpus={self.cpus}", *gpus]
        named = [f"--address={self.address}", f"--submission-id={job}"]
        return [*self.client, "submit", *named, *resources, "--log-color=false", "--", "sh", str(script)]

    def environment(self, jobs: int) -> dict[str, str] | None:
        """A job has its node's."""
        return None

    def stop(self, run: Run) -> str | None:
        job = self._jobs[run.name]
        try:
            done = subprocess.run(
                [*self.client, "stop", f"--address={self.address}", "--no-wait", job],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=STOP_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"no answer within {STOP_S:g} s"
        else:
            if done.returncode == 0:
                return None
            reason = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
        return f"job {job} may go on: it could not be stopped ({reason}); ray job stop {job}"


Placement: TypeAlias = Here | RayJobs
