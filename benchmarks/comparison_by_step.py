"""A comparison's curve at equal steps, where its budget is something else: what a step teaches and takes.

    python -m benchmarks.comparison_by_step docs/results/comparison_attnrl.json --steps 4 8 12 16

A record's curve has an evaluation before training, one every `marsrl.evaluation.every` steps, and one at the
end, which is left out here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from marsrl_verl.compare.record import runs_of
from marsrl_verl.compare.results import Finished
from marsrl_verl.compare.statistics import seed_differences, t_interval
from marsrl_verl.compare.suite import Suite, load_suite
from marsrl_verl.reporting.tables import points

_EVERY = "marsrl.evaluation.every"


def steps_between(suite: Suite, method: str) -> int:
    """How many steps lie between a method's evaluations.

    Raises:
        ValueError: the suite does not say.
    """
    overrides = [one.partition("=") for one in (*suite.overrides, *suite.methods[method])]
    found = [value for key, _, value in overrides if key == _EVERY]
    if not found:
        raise ValueError(f"suite {suite.name}: {method} has no {_EVERY}, so its curve's steps are not known")
    return int(found[-1])


def at_step(one: Finished, step: int, every: int) -> tuple[float, int]:
    """The curve's value after so many steps, and what had been taken of the budget.

    Raises:
        ValueError: there was no evaluation after that step, or it was the last one; or the curve has not as
            many evaluations as that interval gives, as where the suite's was changed after the runs.
    """
    has, expected = len(one.curve.values), 1 + -(-one.steps // every)
    if has != expected:
        raise ValueError(
            f"the curve of {one.run.name} has {has} evaluations in {one.steps} steps, expected {expected} "
            f"from the suite's {_EVERY}={every}: which steps they belong to is not known"
        )
    index, rest = divmod(step, every)
    if rest or not 0 <= index < len(one.curve.values) - 1:
        last = every * (len(one.curve.values) - 2)
        raise ValueError(
            f"{one.run.name} has evaluations after every {every} steps until {last}, none after {step}"
        )
    return one.curve.values[index], one.curve.taken[index]


def by_step(suite: Suite, finished: Sequence[Finished], steps: Sequence[int]) -> str:
    """Per method the mean of its runs at each step, with what it had taken of the budget (thousands from a
    budget of 10,000 on); and the mean over the steps less that of the suite's `level_of`: t interval of the
    differences of equal seeds, percentage points.

    Raises:
        ValueError: the suite has no `level_of`, or the curves no evaluation after one of the steps.
    """
    if not suite.level_of:
        raise ValueError(f"suite {suite.name} has no level_of, the method that the others are set against")
    at: dict[str, dict[int, list[tuple[float, int]]]] = {}
    for method in suite.methods:
        every = steps_between(suite, method)
        runs = [one for one in finished if one.run.method == method]
        at[method] = {one.run.seed: [at_step(one, step, every) for step in steps] for one in runs}
    means = {
        method: {seed: fmean(value for value, _ in found) for seed, found in seeds.items()}
        for method, seeds in at.items()
    }
    base, unit = suite.level_of, 1000 if suite.budget.amount >= 10_000 else 1
    lines = [f"| | {' | '.join(f'step {step}' for step in steps)} | less {base} |"]
    lines.append("|---|" + "---:|" * (len(steps) + 1))
    for method, seeds in at.items():
        cells = [_cell(found, unit) for found in zip(*seeds.values(), strict=True)]
        less = t_interval(seed_differences(means[base], means[method]))
        lines.append(f"| {method} | {' | '.join(cells)} | {'' if method == base else points(less)} |")
    return "\n".join(lines)


def _cell(found: Sequence[tuple[float, int]], unit: int) -> str:
    value, taken = (fmean(column) for column in zip(*found, strict=True))
    return f"{100 * value:.1f} ({taken / unit:,.0f})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="a comparison's record")
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="after how many steps")
    options = parser.parse_args()
    suite = load_suite(json.loads(options.record.read_text(encoding="utf-8"))["suite"])
    print(by_step(suite, runs_of(options.record), options.steps))


if __name__ == "__main__":
    main()
