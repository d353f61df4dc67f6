"""Counters of the server, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from marsrl_verl.evaluation.runs import Call, Run
from marsrl_verl.serving.protocol import usage_of

_SECONDS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600)


@dataclass(slots=True)
class Stopwatch:
    """Seconds of a run, once it has ended."""

    seconds: float = 0.0


class ServiceMetrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self._running = Gauge("marsrl_runs_running", "Runs of the system on their way", registry=own)
        self._waiting = Gauge("marsrl_runs_waiting", "Requests that wait for a run", registry=own)
        self._seconds = Histogram(
            "marsrl_run_seconds", "Seconds of runs that ended", buckets=_SECONDS, registry=own
        )
        self._ends = Counter("marsrl_runs", "Runs that ended, by why", ["end"], registry=own)
        self._calls = Counter("marsrl_calls", "Answers of roles", ["role", "finish"], registry=own)
        self._tokens = Counter("marsrl_tokens", "Tokens by role", ["role", "kind"], registry=own)
        self._requests = Counter("marsrl_requests", "HTTP requests for runs", ["status"], registry=own)
        self._up = Gauge("marsrl_engines_up", "1 where the engines answer", registry=own)
        self._restarts = Counter("marsrl_engine_restarts", "Restarts of dead engines", registry=own)
        self._in_engines = Gauge("marsrl_engine_requests", "Requests in the engines", registry=own)
        self._up.set(1)

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Somebody waits."""
        with self._waiting.track_inprogress():
            yield

    @contextmanager
    def runs(self) -> Iterator[Stopwatch]:
        """A run is on its way; it counts with its time where it ends by itself."""
        watch, begun = Stopwatch(), time.monotonic()
        with self._running.track_inprogress():
            yield watch
        watch.seconds = time.monotonic() - begun
        self._seconds.observe(watch.seconds)

    def note_call(self, call: Call) -> None:
        """A role has answered."""
        self._calls.labels(call.request.role, call.trajectory.finish.value).inc()
        for role, counted in usage_of(call.trajectory).items():
            for kind, count in counted.items():
                self._tokens.labels(role, kind.removesuffix("_tokens")).inc(count)

    def note_end(self, run: Run) -> None:
        """A run has ended."""
        self._ends.labels(str(getattr(run.end, "value", run.end))).inc()

    def note_request(self, status: int) -> None:
        """A request was answered; 499: its client had gone."""
        self._requests.labels(str(status)).inc()

    def engines_up(self, up: bool) -> None:
        """They answer, again or no longer."""
        self._up.set(up)
        if up:
            self._restarts.inc()

    def in_engines(self, requests: int) -> None:
        """Sets the number of requests in the engines, as these last reported it."""
        self._in_engines.set(requests)

    def text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
