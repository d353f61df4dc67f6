"""One evaluation as a training run does it: a system at a temperature and greedily, and its record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate, MetricInfo, Observations, estimates
from marsrl_verl.evaluation.runs import Evaluation, Runs, run_evaluation
from marsrl_verl.rollout.engine import RolloutEngine

BEFORE = "before"
"""Tag of the evaluation before the first training step."""
AFTER = "after"
"""Tag of the evaluation after the last training step."""
ALONE = "alone"
"""Tag of the evaluation of a run that does nothing else."""


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Results of an evaluation, small enough to keep: enough for tables, curves and differences."""

    tag: str
    step: int
    """The training step whose weights were evaluated; 0 before training."""
    confidence: float
    temperature: float
    problems: int
    samples_per_problem: int
    """Samples of the sampled pass; 0: there was none, and all metrics are greedy ones."""
    seconds: float
    generated_tokens: int
    observations: dict[str, Observations]
    """By metric name; greedy ones carry the suffix `_greedy`."""
    effort: dict[str, Estimate] = field(default_factory=dict)
    """Effort of a run, by metric name as above."""
    derived: dict[str, Estimate] = field(default_factory=dict)
    """Figures that follow from several metrics' observations, by name (`Evaluation.derived`)."""
    system: dict[str, Any] = field(default_factory=dict)
    """Settings of the evaluated system (`Evaluation.settings`)."""
    description: str = ""
    """Course of a run, in words (`Evaluation.description`)."""
    top_p: float | None = None
    """`top_p` of the sampled pass; None: the roles' own."""
    repetition_penalty: float = 1.0
    skipped: int = 0
    """Problems, of those above, whose prompt exceeds the first role's limit; no figure counts them."""
    metrics: dict[str, MetricInfo] = field(default_factory=dict)
    """Metrics of tables, in their order (`Evaluation.metrics`)."""
    curves: tuple[str, ...] = ()
    """Metrics of the learning curve: names of `estimates`."""
    headline: tuple[str, ...] = ()
    """Metrics that a comparison shows first, named in the same way."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """The problems' ids by data source, where they are of several, or benchmarks."""
    derived_of: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """`derived` of the problems of each data source."""
    benchmarks: dict[str, str] = field(default_factory=dict)
    """Figures that papers report of benchmarks (`data.benchmarks.Benchmark.metric`), by data source."""
    categories: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Problems' ids by category, of benchmarks whose score is a mean over categories."""
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of a paper by benchmark, in per cent, by what they are of."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Mean and interval by metric name, with those that are derived, and with the headline's of each data
        source (`<metric>/<source>`, where a slash of its name is an underscore)."""
        by_source = {
            f"{name}/{source.replace('/', '_')}": found
            for source, metrics in self.by_source().items()
            for name, found in metrics.items()
        }
        return estimates(self.observations, self.confidence) | self.derived | by_source

    def by_source(self) -> dict[str, dict[str, Estimate]]:
        """By data source, the headline's metrics, sampled and greedily; empty where there is one source."""
        bases = [name.removesuffix(GREEDY_SUFFIX) for name in self.headline]
        names = [f"{name}{suffix}" for suffix in ("", GREEDY_SUFFIX) for name in bases]
        known = {name: self.observations[name] for name in names if name in self.observations}
        return {
            source: estimates(_among(known, ids), self.confidence)
            for source, ids in sorted(self.sources.items())
        }

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in _plain_fields()}
        for name in _ESTIMATED:
            plain[name] = {metric: item.to_json() for metric, item in getattr(self, name).items()}
        plain["derived_of"] = {
            source: {metric: item.to_json() for metric, item in found.items()}
            for source, found in self.derived_of.items()
        }
        plain["metrics"] = {name: asdict(info) for name, info in self.metrics.items()}
        plain["estimates"] = {name: item.to_json() for name, item in self.estimates.items()}
        plain["observations"] = {
            name: {
                "outcomes": [int(x) if x in (0, 1) else x for x in items.outcomes],
                "problems": list(items.problems),
            }
            for name, items in self.observations.items()
        }
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> EvaluationRecord:
        """Reads what `to_json` wrote; fields with a default may be absent.

        Raises:
            KeyError, TypeError: another one is.
        """
        observations = {
            name: Observations(
                tuple(bool(x) if x in (0, 1) else float(x) for x in items["outcomes"]),
                tuple(items["problems"]),
            )
            for name, items in plain["observations"].items()
        }
        found: dict[str, Any] = {
            name: {metric: Estimate(**item) for metric, item in plain.get(name, {}).items()}
            for name in _ESTIMATED
        }
        known = {name: plain[name] for name in _plain_fields() if name in plain}
        found["derived_of"] = {
            source: {metric: Estimate(**item) for metric, item in items.items()}
            for source, items in plain.get("derived_of", {}).items()
        }
        found["metrics"] = {name: MetricInfo(**info) for name, info in plain.get("metrics", {}).items()}
        found |= {name: tuple(plain.get(name, ())) for name in ("curves", "headline")}
        return cls(**{**known, **found}, observations=observations)


_ESTIMATED = ("effort", "derived")


def _plain_fields() -> list[str]:
    """The record's fields that are JSON values themselves."""
    others = ("observations", "metrics", "derived_of", *_ESTIMATED)
    return [item.name for item in fields(EvaluationRecord) if item.name not in others]


def first_problems(problems: Sequence[Problem], most: int | None, *, each: bool) -> list[Problem]:
    """The first so many of the problems, or, `each`, of those of each data source; None: all."""
    if most is None or not each:
        return list(problems[:most])
    found: list[Problem] = []
    count: Counter[str] = Counter()
    for one in problems:
        count[one.data_source] += 1
        if count[one.data_source] <= most:
            found.append(one)
    return found


def _sources(problems: Iterable[Problem], benchmarks: Collection[str]) -> dict[str, list[str]]:
    """The ids by data source; empty where there is one that is no benchmark."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        found.setdefault(problem.data_source or "unknown", []).append(problem.problem_id)
    return found if len(found) > 1 or benchmarks else {}


def _in_categories(
    problems: Sequence[Problem], subsets: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """The ids by category, by the subset that a problem's row names."""
    return {
        category: [one.problem_id for one in problems if one.extra_info.get("subset") in named]
        for category, named in subsets.items()
    }


def _among(observations: Mapping[str, Observations], ids: Collection[str]) -> dict[str, Observations]:
    some = frozenset(ids)
    return {name: observed.among(some) for name, observed in observations.items()}


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """An evaluation's record and the runs behind it."""

    record: EvaluationRecord
    evaluation: Evaluation
    sampled: Runs | None
    greedy: Runs | None

    @property
    def passes(self) -> list[Runs]:
        """The runs of each pass that there was, the sampled one first."""
        return [runs for runs in (self.sampled, self.greedy) if runs is not None]


GREEDILY: Mapping[str, Any] = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
"""Settings of a greedy run's tokens."""


def drawn(sampling: Mapping[str, Sampling], **changed: Any) -> dict[str, Sampling]:
    """The settings by role of a run's tokens, with these in place of the roles' own: no segments, and no
    log-probabilities, which nobody reads where nothing is trained."""
    plain: Mapping[str, Any] = {"segment_tokens": None, "log_probs": False}
    return {role: replace(item, **plain, **changed) for role, item in sampling.items()}


def evaluate(
    engine: RolloutEngine,
    problems: list[Problem],
    evaluation: Evaluation,
    sampling: Mapping[str, Sampling],
    *,
    tag: str,
    step: int,
    temperature: float = 1.0,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    greedy: bool = True,
    samples_per_problem: int = 1,
    samples_of: Mapping[str, int] | None = None,
    benchmarks: Mapping[str, str] | None = None,
    categories: Mapping[str, Mapping[str, Collection[str]]] | None = None,
    published: Mapping[str, Mapping[str, float]] | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EvaluationResult:
    """Evaluates a method's system at `temperature`, greedily once per problem, or both.

    Args:
        engine: answers and scores requests.
        problems: held-out ones, with distinct ids.
        evaluation: the system.
        sampling: settings by role; their token limits and, for the sampled pass, `top_p` and `top_k`
            are kept, the temperature is replaced; responses are not cut into segments. The greedy pass
            uses temperature 0 alone.
        tag: `BEFORE`, `AFTER` or any other name that occurs once in a run, e.g. `step_20`.
        step: the training step whose weights answer.
        top_p: of the sampled pass, in place of the roles'; None: theirs.
        repetition_penalty: of both passes (`Sampling.repetition_penalty`).
        samples_per_problem: runs per problem of the sampled pass; 0: there is none, and curves and headline
            are of greedy metrics.
        samples_of: other numbers of them, by data source.
        benchmarks: see `EvaluationRecord.benchmarks`.
        categories: of benchmarks, the subsets of each category (`data.benchmarks.Benchmark.categories`).
        published: see `EvaluationRecord.published`.
        seed: of the sampled pass's tokens, so that they do not depend on the order of requests; None: the
            engine's own generator draws them.

    Raises:
        ValueError: as `run_evaluation`; neither pass is asked for.
    """
    if not samples_per_problem and not greedy:
        raise ValueError("samples_per_problem is 0 and greedy is false: expected one of the two passes")
    start = clock()
    passes: dict[str, Runs] = {}
    observations: dict[str, Observations] = {}
    costs: dict[str, Estimate] = {}

    def run(
        one: Evaluation, suffix: str, repeats: int, of: Mapping[str, int] | None = None, **settings: Any
    ) -> None:
        used = drawn(sampling, repetition_penalty=repetition_penalty, **settings)
        runs = run_evaluation(
            engine, one, problems, used, repeats=repeats, repeats_of=of, tag=f"{tag}{suffix}", step=step
        )
        observations.update({f"{name}{suffix}": item for name, item in one.observations(runs).items()})
        costs.update({f"{name}{suffix}": item for name, item in one.effort(runs, confidence).items()})
        passes[suffix] = runs

    if samples_per_problem:
        own = {} if top_p is None else {"top_p": top_p}
        run(evaluation, "", samples_per_problem, samples_of, temperature=temperature, seed=seed, **own)
    if greedy:
        run(evaluation.greedy(), GREEDY_SUFFIX, 1, **GREEDILY)
    derived = evaluation.derived(observations, confidence)
    sources = _sources(problems, benchmarks or {})
    suffix = "" if samples_per_problem else GREEDY_SUFFIX
    measured = {name.removesuffix(GREEDY_SUFFIX) for name in (*observations, *derived)}
    record = EvaluationRecord(
        tag=tag,
        step=step,
        confidence=confidence,
        temperature=temperature,
        problems=len(problems),
        samples_per_problem=samples_per_problem,
        seconds=clock() - start,
        generated_tokens=sum(runs.generated_tokens for runs in passes.values()),
        observations=observations,
        effort=costs,
        derived=derived,
        system=evaluation.settings(),
        description=evaluation.description(),
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        skipped=len({one.problem.problem_id for one in next(iter(passes.values())).skipped}),
        metrics={name: info for name, info in evaluation.metrics.items() if name in measured},
        curves=tuple(f"{name}{suffix}" for name in evaluation.curves if name in measured),
        headline=tuple(f"{name}{suffix}" for name in evaluation.headline if name in measured),
        sources=sources,
        derived_of={
            source: evaluation.derived(_among(observations, ids), confidence)
            for source, ids in sources.items()
        },
        benchmarks=dict(benchmarks or {}),
        categories={
            name: _in_categories([one for one in problems if one.data_source == name], subsets)
            for name, subsets in (categories or {}).items()
        },
        published={name: dict(figures) for name, figures in (published or {}).items()},
    )
    return EvaluationResult(record, evaluation, passes.get(""), passes.get(GREEDY_SUFFIX))
