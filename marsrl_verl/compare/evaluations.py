"""Two evaluations alone of the same problems against each other, problem by problem."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marsrl_verl.compare.tables import table_of
from marsrl_verl.core.sanitize import markdown, one_line
from marsrl_verl.evaluation.estimators import Estimate, Observations, difference, estimate, mean_estimate
from marsrl_verl.evaluation.suite import ALONE, EvaluationRecord
from marsrl_verl.reporting.run_folder import read_evaluations
from marsrl_verl.reporting.samples import SAMPLES_FILE, read_samples
from marsrl_verl.reporting.summary import changes
from marsrl_verl.reporting.tables import flag, percent, points

NAMED = 10
"""Problems that are named at most, those on which the two disagree most."""


class EvaluationsError(ValueError):
    """Two folders that can't be compared."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation alone."""

    name: str
    record: EvaluationRecord
    """Its observations by `keys`."""
    samples: list[dict[str, Any]]
    """Its samples (`reporting.samples`)."""
    keys: dict[str, str]
    """By problem id, the problem's key in every evaluation: its row, counted where several are equal."""

    def answers(self, greedy: bool, source: str | None = None) -> Observations:
        """True or false for each sample of a pass: right or not; of one data source or all."""
        return Observations.of(
            (one["correct"], self.keys[one["problem"]])
            for one in self.samples
            if one["greedy"] == greedy and one["correct"] is not None and source in (None, one["data_source"])
        )

    def figures(self, name: str, greedy: bool) -> dict[str, float]:
        """The mean over its samples of a number of each problem."""
        found: dict[str, list[float]] = {}
        for one in self.samples:
            if one["greedy"] == greedy and one["correct"] is not None:
                found.setdefault(self.keys[one["problem"]], []).append(one[name])
        return {key: sum(values) / len(values) for key, values in found.items()}


def compare_evaluations(first: Path, second: Path) -> str:
    """The comparison as Markdown.

    Raises:
        EvaluationsError: a folder holds no evaluation alone, or their problems differ; says which.
    """
    names = [first.name, second.name] if first.name != second.name else [str(first), str(second)]
    pair = _read(first, names[0]), _read(second, names[1])
    _check_problems(*pair)
    sections = [f"# {markdown(names[1])} against {markdown(names[0])}", _about(*pair)]
    sections += ["## Answers", _answers(*pair), "## Metrics of both", _metrics(*pair)]
    return "\n\n".join([*sections, "## Where they disagree most", _disagreements(*pair)]) + "\n"


def _read(folder: Path, name: str) -> Evaluated:
    try:
        samples = list(read_samples(folder))
        record = next(one for one in read_evaluations(folder) if one.tag == ALONE)
    except (OSError, StopIteration, json.JSONDecodeError) as error:
        raise EvaluationsError(
            f"{folder} holds no finished evaluation alone: {SAMPLES_FILE} or evaluations/{ALONE}.json is "
            "missing or cut off. `python -m recipe.marsrl.main_eval` leaves both"
        ) from error
    rows = {one["problem"]: one["row"] for one in samples}
    counts: Counter[str] = Counter()
    keys = {}
    for problem, row in sorted(rows.items()):
        counts[row] += 1
        keys[problem] = f"{row} {counts[row]}"
    observations = {
        metric: Observations(found.outcomes, tuple(keys[problem] for problem in found.problems))
        for metric, found in record.observations.items()
    }
    return Evaluated(name, replace(record, observations=observations), samples, keys)


def _check_problems(first: Evaluated, second: Evaluated) -> None:
    """The same rows."""
    sides = [set(one.keys.values()) for one in (first, second)]
    if sides[0] == sides[1]:
        return
    found = []
    for one, other, keys in ((first, sides[1], sides[0]), (second, sides[0], sides[1])):
        asked = next((s for s in one.samples if one.keys[s["problem"]] not in other), None)
        text = f", the first: {one_line(asked['question'])[:80]!r}" if asked else ""
        found.append(f"{len(keys - other)} of {len(keys)} problems only in {one.name}{text}")
    raise EvaluationsError(
        f"{'; '.join(found)}. Expected the same problems in both: questions, references and data sources of "
        "data.val_files, and marsrl.evaluation.problems"
    )


def _about(first: Evaluated, second: Evaluated) -> str:
    rows = []
    for one in (first, second):
        greedy = any(sample["greedy"] for sample in one.samples)
        failed = sum(not sample["graded"] for sample in one.samples)
        settings = f"{one.record.samples_per_problem} at temperature {one.record.temperature:g}"
        asked = settings + " and one greedy" * greedy if one.record.samples_per_problem else "one greedy"
        rows.append([markdown(one.name), str(one.record.problems), asked, str(one.record.step), str(failed)])
    head = ["", "problems", "answers to each", "training step", "failed grades"]
    return table_of(head, rows, texts=(0, 2)) + (
        f"\n\nDifferences are {markdown(second.name)} less {markdown(first.name)}, paired by problem, with "
        f"{100 * second.record.confidence:g} % intervals over problems."
    )


def _answers(first: Evaluated, second: Evaluated) -> str:
    """Right answers, of all and of each data source, and what they took."""
    sources = sorted({one["data_source"] for one in first.samples})
    confidence, rows = second.record.confidence, []
    for greedy in (False, True):
        suffix = ", greedy" * greedy
        for source in [None, *(sources if len(sources) > 1 else ())]:
            sides = first.answers(greedy, source), second.answers(greedy, source)
            if all(side.n for side in sides):
                delta = difference(*sides, confidence)
                shares = [percent(estimate(side, confidence)) for side in sides]
                label = "right answers" if source is None else markdown(source)
                rows.append([label + suffix, str(delta.n), *shares, points(delta)])
        for name in ("tokens", "calls"):
            figures = first.figures(name, greedy), second.figures(name, greedy)
            known = all(any(side.values()) for side in figures)  # an endpoint's tokens are not
            if known and (shared := figures[0].keys() & figures[1].keys()):
                rows.append([name + suffix, str(len(shared)), *_numbers(*figures, confidence)])
    return table_of(["", "problems", markdown(first.name), markdown(second.name), "difference"], rows)


def _numbers(first: Mapping[str, float], second: Mapping[str, float], confidence: float) -> list[str]:
    """Means over problems, and the mean of the differences with Student's interval."""
    shared = first.keys() & second.keys()
    sides = [mean_estimate(((side[key], key) for key in shared), confidence) for side in (first, second)]
    delta = mean_estimate(((second[key] - first[key], key) for key in shared), confidence)
    return [*(_number(one) for one in sides), _number(delta, "+")]


def _number(value: Estimate, sign: str = "") -> str:
    spec = f"{sign},.1f"
    interval = "" if value.low is None else f" [{value.low:{spec}}, {value.high:{spec}}]"
    return f"{value.mean:{spec}}{interval}"


def _metrics(first: Evaluated, second: Evaluated) -> str:
    """The table of the shares that both measure."""
    rows = [
        [
            one.info.label + ", greedy" * one.greedy,
            *(percent(one.before), percent(one.after), points(one.delta), flag(one)),
        ]
        for one in changes(first.record, second.record)
        if one.delta.mean is not None
    ]
    if not rows:
        return "They have no metric in common."
    return table_of(["", markdown(first.name), markdown(second.name), "difference", ""], rows, texts=(0, 4))


def _disagreements(first: Evaluated, second: Evaluated) -> str:
    """The problems whose shares of right answers differ most."""
    greedy = not (first.record.samples_per_problem and second.record.samples_per_problem)
    sides = first.figures("correct", greedy), second.figures("correct", greedy)
    asked = {first.keys[one["problem"]]: one for one in first.samples}
    apart = {key: sides[1][key] - sides[0][key] for key in sides[0].keys() & sides[1].keys()}
    differing: Sequence[str] = sorted((key for key in apart if apart[key]), key=lambda k: (-abs(apart[k]), k))
    if not differing:
        return "Nowhere: every problem has the same share of right answers."
    rows = [
        [
            asked[key]["problem"],
            markdown(one_line(asked[key]["question"])[:100]),
            *(f"{100 * side[key]:.0f} %" for side in sides),
        ]
        for key in differing[:NAMED]
    ]
    up = sum(one > 0 for one in apart.values())
    table = table_of(["problem", "question", markdown(first.name), markdown(second.name)], rows, texts=(0, 1))
    return (
        f"{markdown(second.name)} has more right answers on {up} problems, fewer on {len(differing) - up}, "
        f"as many on {len(apart) - len(differing)}. Single problems differ by chance, too.\n\n{table}"
    )
