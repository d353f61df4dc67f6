"""Scores on benchmarks as papers report them: a figure for each, and their mean."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate, Observations, estimate, metric_label
from marsrl_verl.evaluation.suite import EvaluationRecord

_ACCURACY, _PASS = "accuracy", re.compile(r"(?!.*_m?g_pass_)(\w+)_pass_at_(\d+)")


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the system, such as the Solver's accuracy, on all benchmarks."""

    label: str
    scores: Mapping[str, Estimate]
    """By benchmark."""
    mean: Estimate
    """Over the benchmarks, each of which counts the same."""
    categories: Mapping[str, Mapping[str, Estimate]]
    """By benchmark, where its score is the mean over categories."""


def benchmark_columns(record: EvaluationRecord) -> list[Column]:
    """Columns of the evaluation's scores on its benchmarks: each accuracy of its headline, and in place of it
    the figure that papers report of a benchmark (F1, exact match) where there is one."""
    columns = []
    for name in record.headline:
        base = name.removesuffix(GREEDY_SUFFIX)
        if not base.endswith(_ACCURACY):
            continue
        suffix, scores, categories = name[len(base) :], {}, {}
        for benchmark, metric in record.benchmarks.items():
            named = f"{base.removesuffix(_ACCURACY)}{metric}{suffix}"
            observed = record.observations.get(named) or record.observations[name]
            if known := record.categories.get(benchmark):
                categories[benchmark] = _category_scores(observed, known, record.confidence)
                scores[benchmark] = mean_of(list(categories[benchmark].values()))
                continue
            some = observed.among(frozenset(record.sources.get(benchmark, ())))
            scores[benchmark] = estimate(some, record.confidence)
        label, mean = metric_label(record.metrics, name), mean_of(list(scores.values()))
        columns.append(Column(label, scores, mean, categories))
    return columns


def _category_scores(
    observed: Observations, categories: Mapping[str, Collection[str]], confidence: float
) -> dict[str, Estimate]:
    """By category; of one with parts (`Reasoning/code`) the mean over these."""
    parts: dict[str, list[Estimate]] = {}
    for name, ids in categories.items():
        found = estimate(observed.among(frozenset(ids)), confidence)
        parts.setdefault(name.partition("/")[0], []).append(found)
    return {name: mean_of(found) for name, found in parts.items()}


def pass_at_most(record: EvaluationRecord, benchmark: str) -> tuple[int, Estimate] | None:
    """The largest k of a benchmark's pass@k, and this; None with one answer to each problem."""
    found = record.derived_of.get(benchmark, {}).items()
    passes = [(int(match[2]), one) for name, one in found if (match := _PASS.fullmatch(name))]
    return max(passes, key=lambda pair: pair[0], default=None)


def of_several_answers(
    record: EvaluationRecord, found: Mapping[str, Estimate], name: str
) -> list[tuple[str, Estimate]]:
    """Label and estimate of what a role's answers to each problem give together: pass@k for the largest k,
    and the accuracy of the most frequent answer. Empty where a problem has a single answer, or problems have
    different numbers of them, so that no k is that of all.

    Args:
        record: of the evaluation.
        found: its `estimates`.
        name: of a metric; only a role's accuracy (`solver_accuracy`) has such rows.
    """
    role = name.removesuffix(f"_{_ACCURACY}")
    numbers = [int(match[2]) for match in filter(None, map(_PASS.fullmatch, found)) if match[1] == role]
    if role == name or not numbers or answers_differ(record):
        return []
    label = record.metrics[name].label.removesuffix(f" {_ACCURACY}")
    k = max(numbers)
    rows = [(f"{label} pass@{k}", found[f"{role}_pass_at_{k}"])]
    if majority := found.get(f"{role}_majority_at_k"):
        rows.append((f"{label} majority answer", majority))
    return rows


def answers_differ(record: EvaluationRecord) -> bool:
    """True if the benchmarks have different numbers of answers to a problem."""
    observed = record.observations.get(record.headline[0]) if record.headline else None
    if observed is None:
        return False
    counts = Counter(observed.problems)
    return len({counts[name] for ids in record.sources.values() for name in ids[:1]}) > 1


def mean_of(scores: list[Estimate]) -> Estimate:
    """The mean of independent estimates, each with the same weight, and its interval from theirs (MOVER, Zou
    and Donner 2008): the distances to their ends, combined as those of a sum are. All None where one is not
    observed."""
    count = len(scores)
    means = [one.mean for one in scores if one.mean is not None]
    if not count or len(means) < count:
        return Estimate(None, None, None, 0)
    mean = math.fsum(means) / count
    below = (one.mean - one.low for one in scores if one.mean is not None and one.low is not None)
    above = (one.high - one.mean for one in scores if one.mean is not None and one.high is not None)
    low = mean - math.hypot(*below) / count
    return Estimate(mean, low, mean + math.hypot(*above) / count, sum(one.n for one in scores))
