"""The small record of a comparison that the docs keep, from the folder of its runs.

    python -m benchmarks.published_comparison rema outputs/compare/rema --seeds 9 --commit 7652abb \\
        --json docs/results/comparison_rema.json

It holds the suite's primary outcomes, what stands in its headline and what `--metrics` names, of every run
before and after training, the means of its figures over the steps, and the curves. Tests compute the docs'
tables from it. The command prints the whole report.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.compare.curves import curves_json
from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.report import mean_figure, report_markdown
from marsrl_verl.compare.results import Finished, Row, metrics_of, read_finished
from marsrl_verl.compare.statistics import seed_differences, t_interval
from marsrl_verl.compare.suite import AREA, Suite, load_suite
from marsrl_verl.compare.tables import outcomes_of
from marsrl_verl.evaluation.estimators import Estimate, MetricInfo
from marsrl_verl.evaluation.suite import AFTER, BEFORE

COSTS = ("generated_tokens", "executed_tool_calls", "seconds")


@dataclass(frozen=True, slots=True)
class Published:
    """What a record holds."""

    rows: list[Row]
    curves: list[dict[str, Any]]
    metrics: dict[str, MetricInfo]
    seeds: int


def record_of(
    suite: Suite, seeds: int, finished: Sequence[Finished], commit: str, more: Sequence[str] = ()
) -> dict[str, Any]:
    """A record as JSON has it.

    Args:
        seeds: of every method.
        commit: that the runs were made with.
        more: metrics beside those of the suite's headline and its primary outcomes.

    Raises:
        ValueError: no run measures a metric, or a run is missing.
    """
    known = metrics_of(finished)
    wanted = list(dict.fromkeys([*suite.primary, *suite.headline, *more]))
    if unknown := [name for name in wanted if name not in known and name != AREA]:
        raise ValueError(f"no run measures {', '.join(unknown)}; they measure {', '.join(known)}")
    if len(finished) != seeds * len(suite.methods):
        raise ValueError(
            f"{len(finished)} runs are finished, expected {seeds} of each of {len(suite.methods)} methods; "
            f"finish the comparison first"
        )
    runs = []
    for one, curve in zip(finished, curves_json(suite, finished), strict=True):
        last = one.rows[-1]  # rows after training come last
        runs.append(
            {
                "method": one.run.method,
                "seed": one.run.seed,
                "steps": len(one.steps),
                **{name: getattr(last, name) for name in COSTS},
                **{
                    tag: {
                        name: [row.value, row.cases]
                        for row in one.rows
                        for name in wanted
                        if row.metric == f"{tag}/{name}"
                    }
                    for tag in (BEFORE, AFTER)
                },
                "figures": {name: mean_figure(one, name) for name in suite.figures},
                "curve": {key: curve[key] for key in (suite.budget.quantity.name, "values")},
            }
        )
    return {
        "suite": suite.name,
        "budget": str(suite.budget),
        "commit": commit,
        "versions": finished[0].versions,
        "curve": suite.curve,
        "metrics": {name: asdict(known[name]) for name in wanted if name in known},
        "runs": runs,
    }


def read_record(content: Mapping[str, Any]) -> Published:
    """The rows and curves of a record."""
    rows, curves = [], []
    for run in content["runs"]:
        spent = {AFTER: {name: run[name] for name in COSTS}, BEFORE: dict.fromkeys(COSTS, 0)}
        for tag in (BEFORE, AFTER):
            rows += [
                Row(run["method"], run["seed"], f"{tag}/{name}", value, **spent[tag], cases=cases)
                for name, (value, cases) in run[tag].items()
            ]
        curves.append({"method": run["method"], "seed": run["seed"], **run["curve"]})
    metrics = {name: MetricInfo(**info) for name, info in content["metrics"].items()}
    return Published(rows, curves, metrics, len({run["seed"] for run in content["runs"]}))


def described(suite: Suite, record: Published, less: str) -> str:
    """Primary outcomes less those of a method that no pair of the suite names: mean and t interval of the
    differences of equal seeds in percentage points. No verdict, since none was named before the runs."""
    outcomes = outcomes_of(suite, record.rows, record.curves)
    lines = [f"| less {less} | {' | '.join(suite.primary)} |", "|---|" + "---:|" * len(suite.primary)]
    for method in suite.methods:
        if method != less:
            found = [seed_differences(outcomes[less, name], outcomes[method, name]) for name in suite.primary]
            means = [t_interval(differences) for differences in found]
            cells = [_points(one) for one in means]
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _points(value: Estimate) -> str:
    if value.mean is None or value.low is None or value.high is None:
        return "–"
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def text_of(record: Mapping[str, Any]) -> str:
    """The record with a line for each run."""
    head = {key: value for key, value in record.items() if key != "runs"}
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in record["runs"])
    return f'{json.dumps(head, indent=1, ensure_ascii=False)[:-2]},\n "runs": [\n{lines}\n]}}\n'


def main() -> None:
    """Write the record, print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", help="its name, or its file")
    parser.add_argument("folder", type=Path, help="the comparison's")
    parser.add_argument("--seeds", type=int, required=True, help="of every method")
    parser.add_argument("--commit", required=True, help="that the runs were made with")
    parser.add_argument("--metrics", default="", help="more metrics than the suite names, a,b,c")
    parser.add_argument("--less", help="describe the differences from this method too")
    parser.add_argument("--json", type=Path, required=True, help="write the record here")
    options = parser.parse_args()
    suite = load_suite(options.suite)
    finished = [read_finished(run) for run in plan_runs(suite, options.seeds, options.folder)]
    more = [name for name in options.metrics.split(",") if name]
    record = record_of(suite, options.seeds, finished, options.commit, more)
    options.json.write_text(text_of(record), encoding="utf-8")
    print(report_markdown(suite, options.seeds, finished, [], None))
    if options.less:
        print(described(suite, read_record(record), options.less))


if __name__ == "__main__":
    main()
