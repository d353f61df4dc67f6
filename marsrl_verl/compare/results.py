"""Results of a finished run that a comparison keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marsrl_verl.compare.curves import RunCurve, training_curve
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.statistics import t_interval
from marsrl_verl.compare.suite import TOOL_CALLS, Quantity, Suite
from marsrl_verl.evaluation.estimators import Estimate, MetricInfo
from marsrl_verl.evaluation.suite import AFTER, BEFORE
from marsrl_verl.reporting.metrics_log import StepMetrics, read_metrics
from marsrl_verl.reporting.run_folder import SUMMARY_FILE, read_evaluations

UPDATES_METRIC, TRAINED_METRIC = "batch/updates", "batch/rows"


class ResultError(ValueError):
    """A run's folder that does not hold what a finished run leaves."""


class Measured(NamedTuple):
    """One measurement of a run."""

    value: float | None
    """None where there was nothing to observe, e.g. the recall when no solution was wrong."""
    cases: int | None = None
    """Observations behind the value; None where an earlier version did not store it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run."""

    run: Run
    measured: Mapping[str, Measured]
    """By `before/…` or `after/…` and a metric of the evaluation; greedy ones end in `_greedy`."""
    steps: int
    """Training steps."""
    generated_tokens: int
    """Tokens generated for training; those of evaluations are not included."""
    executed_tool_calls: int
    seconds: float
    """Wall clock of the whole run, start-up and evaluations included."""
    problems: int | None
    """Held-out problems of the evaluation after training."""
    versions: dict[str, str]
    curve: RunCurve
    """The suite's curve."""
    step_seconds: float = 0.0
    """Sum over the training steps; start-up and evaluations are not in it."""
    updates: float | None = None
    """Updates in all steps; None if no step logs them. The same holds for `trained_rows`."""
    trained_rows: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The suite's figures: means over the training steps that have them."""
    metrics: Mapping[str, MetricInfo] = field(default_factory=dict)
    """Metrics that its tables show."""
    headline: tuple[str, ...] = ()
    """Metrics that a comparison shows first."""
    source: str | None = None
    """A hash of the source that made it (`run_records.source_fingerprint`); None: not known."""
    copied_from: str | None = None
    """Place that its record was copied from; None: this comparison made it."""

    def took(self, quantity: Quantity) -> int:
        """Returns how much of a quantity its training took."""
        return self.executed_tool_calls if quantity is TOOL_CALLS else self.generated_tokens

    def value(self, metric: str) -> float | None:
        """The value of one metric, None where it is absent or was not observed."""
        return self.measured[metric].value if metric in self.measured else None


def read_finished(run: Run, suite: Suite, wall_seconds: float | None = None) -> Finished:
    """Reads a finished run's folder. Its seconds are what the runner measured, else what it says of itself;
    ResultError where a file is missing or not readable, or the run was not evaluated before and after."""
    path = run.folder / SUMMARY_FILE  # a run writes it last
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        steps, evaluations = read_metrics(run.folder), tuple(read_evaluations(run.folder))
        facts = summary["run"]
        tokens, seconds = int(facts["training_tokens"]), float(wall_seconds or facts["seconds"])
        measured = {tag: summary[tag] for tag in (BEFORE, AFTER)}
        metrics = {name: MetricInfo(**info) for name, info in summary["metrics"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultError(
            f"{path} can't be read as a run's summary ({type(error).__name__}: {error}); delete {run.folder} "
            "to repeat the run"
        ) from error
    absent = [tag for tag, values in measured.items() if not values]
    if absent:
        raise ResultError(
            f"{run.folder} was not evaluated {' and '.join(absent)} training; leave marsrl.evaluation.before "
            "and marsrl.evaluation.after on"
        )
    evaluated = facts.get("evaluations", ())
    return Finished(
        run,
        {
            f"{tag}/{name}": Measured(estimate["mean"], estimate["n"])
            for tag, values in measured.items()
            for name, estimate in values.items()
        },
        steps=len(steps),
        generated_tokens=tokens,
        executed_tool_calls=int(_total(steps, TOOL_CALLS.metric) or 0),
        seconds=seconds,
        problems=next((one["problems"] for one in evaluated if one["tag"] == AFTER), None),
        versions=dict(facts.get("versions", {})),
        curve=training_curve(suite.curve, steps, evaluations, suite.budget.quantity),
        step_seconds=sum(step.timings.get("step") or 0.0 for step in steps),
        updates=_total(steps, UPDATES_METRIC),
        trained_rows=_total(steps, TRAINED_METRIC),
        figures={name: _mean(steps, name) for name in suite.figures},
        metrics=metrics,
        headline=tuple(summary["headline"]),
    )


def _logged(steps: list[StepMetrics], metric: str) -> list[float]:
    return [value for step in steps if (value := step.metrics.get(metric)) is not None]


def _total(steps: list[StepMetrics], metric: str) -> float | None:
    found = _logged(steps, metric)
    return sum(found) if found else None


def _mean(steps: list[StepMetrics], metric: str) -> float | None:
    found = _logged(steps, metric)
    return sum(found) / len(found) if found else None


def metrics_of(runs: Iterable[Finished]) -> dict[str, MetricInfo]:
    """Returns the metrics in the tables of any of the runs."""
    return {name: info for one in runs for name, info in one.metrics.items()}


def headline_of(runs: Iterable[Finished]) -> tuple[str, ...]:
    """Returns the metrics that any of the runs shows first."""
    return tuple(dict.fromkeys(name for one in runs for name in one.headline))


def by_method(runs: Iterable[Finished]) -> dict[str, list[Finished]]:
    """Methods and their runs in order of appearance."""
    found: dict[str, list[Finished]] = {}
    for one in runs:
        found.setdefault(one.run.method, []).append(one)
    return found


def over_seeds(runs: Iterable[Finished], metric: str) -> dict[str, Estimate]:
    """Mean and t interval of a metric over each method's seeds."""
    return {name: t_interval(one.value(metric) for one in some) for name, some in by_method(runs).items()}


def start_over_seeds(runs: Sequence[Finished], metric: str) -> Estimate | None:
    """The value before training, which runs of one seed measure several times: they give one value, their
    mean. None where methods start apart, as one agent and two of the same weights do: where the intervals of
    two methods have no value in common."""
    starts = over_seeds(runs, f"{BEFORE}/{metric}").values()
    lows = [one.low for one in starts if one.low is not None]
    highs = [one.high for one in starts if one.high is not None]
    if lows and max(lows) > min(highs):
        return None
    by_seed: dict[int, list[float]] = {}
    for one in runs:
        value = one.value(f"{BEFORE}/{metric}")
        if value is not None:
            by_seed.setdefault(one.run.seed, []).append(value)
    return t_interval(sum(values) / len(values) for values in by_seed.values())
