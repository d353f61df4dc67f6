"""The runs, each in a process of its own; finished ones are kept, failed ones reported."""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from marsrl_verl.compare.placement import Here, Placement
from marsrl_verl.compare.plan import TRAIN, Run
from marsrl_verl.compare.results import Finished, ResultError, read_finished
from marsrl_verl.compare.run_records import recorded_result, source_fingerprint, take_equal_runs, write_record
from marsrl_verl.compare.suite import TOOL_CALLS, Suite
from marsrl_verl.evaluation.estimators import metric_label
from marsrl_verl.evaluation.suite import AFTER, BEFORE

END_S = 30.0
"""Seconds that runs have to end by themselves, and again after a request to end."""
TAIL_LINES = 20
"""Last lines of a failed run's log that are shown."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A run without a result."""

    run: Run
    reason: str
    tail: str
    """The last lines of its log."""


@dataclass(slots=True)
class Outcome:
    """Runs of a comparison that finished or failed."""

    finished: list[Finished] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


class Runner:
    """Runs what is not finished yet, at most `jobs` at a time. `command` is the training program without
    overrides, `known` are records of comparisons whose equal runs are taken over; progress is said a line per
    call, from several threads."""

    def __init__(
        self,
        suite: Suite,
        runs: Sequence[Run],
        command: Sequence[str] = TRAIN,
        say: Callable[[str], None] = print,
        *,
        jobs: int = 1,
        placement: Placement | None = None,
        known: Sequence[Path] = (),
    ) -> None:
        self.suite, self.runs, self.command = suite, list(runs), tuple(command)
        self.say, self.jobs, self.placement, self.known = say, jobs, placement or Here(), tuple(known)
        self._measured: list[float] = []
        self._live: dict[str, tuple[Run, subprocess.Popen[bytes]]] = {}
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, on_finished: Callable[[Outcome], None] = lambda outcome: None) -> Outcome:
        """Carry out the runs, in their order. `on_finished` is called with the outcome so far after every run
        that was carried out, so that an interrupted comparison leaves its results too."""
        outcome = Outcome()
        take_equal_runs(self.runs, self.suite, self.known)
        results = ((run.name, recorded_result(run, self.suite)) for run in self.runs)
        finished = {name: done for name, done in results if done is not None}
        self._measured = [done.seconds for done in finished.values()]
        self.say(self._announcement(len(finished)))
        places = {
            run.name: f"[{number}/{len(self.runs)}] {run.method}, seed {run.seed}"
            for number, run in enumerate(self.runs, 1)
        }
        for name, done in finished.items():
            outcome.finished.append(done)
            whose = "" if done.copied_from is None else f", taken from {done.copied_from}"
            self.say(f"{places[name]}: finished before{whose}, {_described(done)}")
        left = [run for run in self.runs if run.name not in finished]
        # One process each, waited for in a thread: they are this process's children.
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                waiting = {pool.submit(self._carry_out, run, places[run.name]): run for run in left}
                for number, future in enumerate(as_completed(waiting), 1):
                    self._take(outcome, future.result(), places[waiting[future].name])
                    if number < len(left):
                        more = len(left) - number
                        self.say(f"    {_runs(more)} left, about {duration(self._seconds(more))}")
                    on_finished(outcome)
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                # Ctrl-C reaches the runs as well, and they need a moment to end their Ray and vLLM processes.
                self._end_all(at_once=not isinstance(error, KeyboardInterrupt))
                raise
        return outcome

    def _take(self, outcome: Outcome, result: Finished | Failed, place: str) -> None:
        if isinstance(result, Finished):
            outcome.finished.append(result)
            self._measured.append(result.seconds)
            self.say(f"{place}: {duration(result.seconds)}, {_described(result)}")
        else:
            outcome.failed.append(result)
            self.say(f"{place}: FAILED, {result.reason}\n{_indented(result.tail)}")

    def _carry_out(self, run: Run, place: str) -> Finished | Failed:
        self.say(f"{place}: started, log in {run.log_path}")
        run.root.mkdir(parents=True, exist_ok=True)
        # Without a record a run that is cut off counts as unfinished, whatever an earlier one left.
        run.record_path.unlink(missing_ok=True)
        start = time.monotonic()
        status = self._call(run)
        seconds = time.monotonic() - start
        if status != 0:
            left = self.placement.stop(run)  # of a job whose client was lost
            return self._failed(run, f"exit status {status}" + (f"; {left}" if left else ""))
        try:
            done = read_finished(run, self.suite, seconds if self.placement.is_timed else None)
            done = replace(done, source=source_fingerprint())
        except ResultError as error:
            return self._failed(run, str(error))
        budget, took = self.suite.budget, done.took(self.suite.budget.quantity)
        if took < budget.amount:
            fix = f"raise the suite's max_steps = {self.suite.max_steps}, or lower its budget with --budget"
            return self._failed(run, f"it took {took:,} of {budget} in {done.steps} steps; {fix}")
        write_record(done)
        return done

    def _call(self, run: Run) -> int:
        with run.log_path.open("w", encoding="utf-8") as log:
            with self._lock:
                if self._stopped:
                    raise InterruptedError(f"{run.name} was not started: the comparison ends")
                process = subprocess.Popen(
                    self.placement.command(run, self.command),
                    env=self.placement.environment(self.jobs),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                self._live[run.name] = (run, process)
            status = process.wait()
            with self._lock:
                if not self._stopped:
                    del self._live[run.name]
            return status

    def _end_all(self, *, at_once: bool) -> None:
        with self._lock:
            self._stopped = True
            live = list(self._live.values())
        processes = [process for _, process in live]
        try:
            if at_once:
                for process in processes:
                    process.terminate()
            with ThreadPoolExecutor(max(1, len(live))) as pool:
                for left in pool.map(self.placement.stop, [run for run, _ in live]):
                    if left is not None:
                        self.say(left)
            _end(processes)
        finally:  # a second Ctrl-C waits for nobody
            for process in processes:
                process.kill()

    def _failed(self, run: Run, reason: str) -> Failed:
        lines = run.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return Failed(run, reason, "\n".join(lines[-TAIL_LINES:]))

    def _announcement(self, finished: int) -> str:
        left = len(self.runs) - finished
        runs = f"{_runs(len(self.runs))} of {self.suite.budget} each"
        text = f"{self.suite.title}: {runs}, {finished} finished before"
        if not left:
            return text
        basis = "as measured" if self._measured else "a guess for 2 cores"
        each = f"{duration(self._seconds_per_run())} per run, {basis}"
        beside = f", {self.jobs} at a time" if self.jobs > 1 else ""
        return f"{text}; about {duration(self._seconds(left))} ({each}{beside})"

    def _seconds_per_run(self) -> float:
        return fmean(self._measured) if self._measured else self.suite.seconds_per_run

    def _seconds(self, runs: int) -> float:
        """Estimates the seconds that so many runs take."""
        return math.ceil(runs / self.jobs) * self._seconds_per_run()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for all of them; terminates, then kills, those that go on."""
    for ask in (subprocess.Popen.terminate, subprocess.Popen.kill):
        deadline = time.monotonic() + END_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                ask(process)
    for process in processes:
        process.wait()


def _described(done: Finished) -> str:
    changes = []
    for name in done.headline:
        before, after = done.value(f"{BEFORE}/{name}"), done.value(f"{AFTER}/{name}")
        if before is not None and after is not None:
            changes.append(f"{metric_label(done.metrics, name)} {100 * before:.1f} → {100 * after:.1f} %")
    calls = done.took(TOOL_CALLS)
    took = f"{done.generated_tokens:,} tokens" + (f" and {calls:,} tool calls" if calls else "")
    return ", ".join([f"{took} in {done.steps} steps", *changes])


def duration(seconds: float) -> str:
    """`1 h 05 min`, `4 min 30 s` or `12 s`."""
    total = round(seconds)
    if total >= 3600:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    if total >= 60:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total} s"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _indented(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.splitlines())
