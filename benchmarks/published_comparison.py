"""The record of a comparison that the docs keep, from its `results.json`.

    python -m benchmarks.published_comparison outputs/compare/rema/results.json --commit 7652abb \
        --json docs/results/comparison_rema.json

It adds the commit. Tests compute the docs' tables from it. `--less METHOD` describes differences from a
method that no pair of the suite names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.compare.record import runs_of, text_of
from marsrl_verl.compare.results import Finished
from marsrl_verl.compare.statistics import seed_differences, t_interval
from marsrl_verl.compare.suite import Suite, load_suite
from marsrl_verl.compare.tables import outcomes_of
from marsrl_verl.reporting.tables import points


def published(suite: Suite, record: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """A record with the commit that its runs were made with.

    Raises:
        ValueError: a run is missing, or the budget was another one.
    """
    if record["budget"] != str(suite.budget):
        raise ValueError(f"the runs took {record['budget']}, the suite {suite.name} has {suite.budget}")
    runs = {(run["method"], run["seed"]) for run in record["runs"]}
    seeds = {seed for _, seed in runs}
    if missing := sorted({(method, seed) for method in suite.methods for seed in seeds} - runs):
        names = ", ".join(f"{method}-seed{seed}" for method, seed in missing)
        raise ValueError(f"runs are missing: {names}; finish the comparison first")
    return {**{key: record[key] for key in ("suite", "budget")}, "commit": commit, **record}


def described(suite: Suite, finished: Sequence[Finished], less: str) -> str:
    """Primary outcomes less those of a method that no pair of the suite names: mean and t interval of the
    differences of equal seeds in percentage points. No verdict, since none was named before the runs."""
    outcomes = outcomes_of(suite, finished)
    lines = [f"| less {less} | {' | '.join(suite.primary)} |", "|---|" + "---:|" * len(suite.primary)]
    for method in suite.methods:
        if method != less:
            found = [seed_differences(outcomes[less, name], outcomes[method, name]) for name in suite.primary]
            means = [t_interval(differences) for differences in found]
            cells = [points(one) for one in means]
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="the comparison's results.json")
    parser.add_argument("--commit", required=True, help="that the runs were made with")
    parser.add_argument("--less", help="describe the differences from this method too")
    parser.add_argument("--json", type=Path, required=True, help="write the record here")
    options = parser.parse_args()
    record = json.loads(options.record.read_text(encoding="utf-8"))
    suite = load_suite(record["suite"])
    options.json.write_text(text_of(published(suite, record, options.commit)), encoding="utf-8")
    if options.less:
        print(described(suite, runs_of(options.record), options.less))


if __name__ == "__main__":
    main()
