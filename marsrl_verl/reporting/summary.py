"""`summary.json`: a run's result in one object.

    {"before": {metric: {mean, low, high, n}}, "after": {…}, "change": {…}, "headline": [metric, …],
     "metrics": {metric: {label, meaning, higher_is_better, follows_errors}}, "run": {…}}

`before` and `after` hold the evaluation's metrics at its temperature and, with the suffix `_greedy`,
greedily; `change` the paired differences after - before on the problems that both measured (its `n`), of
those that are shares of observations. A metric without an observation has n = 0 and null values; an
evaluation that was not done is null. `metrics` says how the metrics of the tables are named, in their order,
`headline` which come first in a comparison. `run` holds the run's facts, and for each evaluation what a run
of the system cost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate, MetricInfo, difference
from marsrl_verl.evaluation.suite import AFTER, BEFORE, EvaluationRecord

EMPTY = Estimate(None, None, None, 0)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts that a reader needs to judge or repeat a run."""

    name: str
    method: str
    mode: str
    """Pipeline mode: `sequential` or `pipelined`."""
    seed: int
    steps: int
    seconds: float
    """Wall clock of the whole run, evaluations included. For a resumed run, that of the last process, and of
    the steps and evaluations of earlier ones that count."""
    training_tokens: int
    """Tokens generated for training."""
    versions: dict[str, str] = field(default_factory=dict)
    """Package → version."""
    extra: dict[str, str | int | float | None] = field(default_factory=dict)
    """Anything else worth a line, by a readable label: model, parameters, device, ranks."""
    warnings: list[str] = field(default_factory=list)
    """Warnings of the run (`marsrl.watch`), a sentence each."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before and after training."""

    name: str
    info: MetricInfo
    greedy: bool
    before: Estimate
    after: Estimate
    delta: Estimate

    @property
    def direction(self) -> int:
        """1 if it is better after, -1 if worse: the interval of the paired difference leaves out 0. 0 where
        it does not, and where the metric is not judged (`MetricInfo.judged`)."""
        if not self.info.judged(self.before.n, self.after.n):
            return 0
        return self.delta.sign if self.info.higher_is_better else -self.delta.sign


def changes(before: EvaluationRecord | None, after: EvaluationRecord | None) -> list[Change]:
    """The change of every metric of the tables in their order, first sampled, then greedy ones; those of a
    pass that neither record has are absent."""
    first = before.estimates if before else {}
    second = after.estimates if after else {}
    sampled = any(one is not None and one.samples_per_problem for one in (before, after))
    rows = []
    for greedy in (False, True):
        for base, info in shown_metrics(before, after).items():
            name = base + GREEDY_SUFFIX if greedy else base
            if (sampled and not greedy) or name in first or name in second:
                pair = first.get(name, EMPTY), second.get(name, EMPTY)
                rows.append(Change(name, info, greedy, *pair, _delta(before, after, name)))
    return rows


def shown_metrics(*records: EvaluationRecord | None) -> dict[str, MetricInfo]:
    """The metrics of the tables, those of the last record first."""
    found = [record for record in reversed(records) if record is not None]
    return {name: info for record in found for name, info in record.metrics.items()}


def _delta(before: EvaluationRecord | None, after: EvaluationRecord | None, name: str) -> Estimate:
    if before is None or after is None:
        return EMPTY
    first, second = before.observations.get(name), after.observations.get(name)
    return difference(first, second, after.confidence) if first and second else EMPTY


def build_summary(
    before: EvaluationRecord | None, after: EvaluationRecord | None, facts: RunFacts
) -> dict[str, Any]:
    """The content of `summary.json`."""
    return {
        BEFORE: _values(before),
        AFTER: _values(after),
        "change": {row.name: row.delta.to_json() for row in changes(before, after)},
        **_names(before, after),
        "run": {**asdict(facts), "evaluations": [_facts(item) for item in (before, after) if item]},
    }


def evaluation_summary(record: EvaluationRecord, facts: RunFacts) -> dict[str, Any]:
    """The content of `summary.json` of a run that is one evaluation:
    {"evaluation": {metric: {mean, low, high, n}}, "metrics": {…}, "headline": […], "run": {…}}."""
    return {
        "evaluation": _values(record),
        **_names(record),
        "run": {**asdict(facts), "evaluations": [_facts(record)]},
    }


def _names(*records: EvaluationRecord | None) -> dict[str, Any]:
    last = next((record for record in reversed(records) if record is not None), None)
    metrics = {name: asdict(info) for name, info in shown_metrics(*records).items()}
    return {"metrics": metrics, "headline": [] if last is None else list(last.headline)}


def _values(record: EvaluationRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {name: item.to_json() for name, item in record.estimates.items()}


def _facts(record: EvaluationRecord) -> dict[str, Any]:
    names = (
        "tag", "step", "temperature", "confidence", "problems", "samples_per_problem", "system",
        "seconds", "generated_tokens",
    )  # fmt: skip
    effort = {name: item.to_json() for name, item in record.effort.items()}
    return {**{name: getattr(record, name) for name in names}, "effort": effort}
