"""What runs of SmolLM2 on word problems came to: a row a run, accuracy by level, a picture.

    for seed in 1 2 3; do make smollm2 ARGS="name=smollm2_$seed marsrl.run.seed=$seed"; done
    python -m benchmarks.real_model outputs/smollm2_* --picture docs/images/smollm2.png

A picture has the accuracy by level; where runs are of several methods, by method.

Reads the runs' evaluations before and after training, greedy and at temperature 1, and their recorded
rollouts; intervals are Wilson's, of 95 %. Starts nothing.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas
import yaml

from benchmarks.record import options, write_json
from benchmarks.tables import table
from benchmarks.training_runs import steps
from marsrl_verl.demo.smollm2.problems import Step
from marsrl_verl.evaluation.estimators import wilson_interval

TAGS = {"greedy": ("before_greedy", "after_greedy"), "T = 1": ("before", "after")}
ROLES = {
    "system_accuracy": "all roles right",
    "verifier_recall": "errors found",
    "verifier_false_alarm_rate": "false alarms",
}
"""What is told of methods with several roles."""
ANSWERING = ("solver", "agent", "initial", "solution")
"""Stages whose responses are first answers: of MarsRL and GRPO, ARPO, AttnRL, ReMA."""


WINDOW = 5
"""Steps."""


@dataclass(frozen=True)
class Window:
    """What MarsRL's roles did in some steps of training, in [cases, of so many]."""

    first: int
    last: int
    """Steps."""
    solved: list[int]
    errors_found: list[int]
    """Wrong solutions that the Verifier called wrong."""
    false_alarms: list[int]
    """Right solutions that it called wrong."""
    repaired: list[int]
    """Wrong solutions that the Corrector made right."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    name: str
    created: str
    """Date and time of its beginning."""
    method: str
    seed: int
    steps: int
    minutes: float
    """Of the steps and the evaluations; starting takes less than one more."""
    solved: dict[str, dict[int, list[int]]]
    """tag of an evaluation → level → [right, problems] of its first answers; a problem without one counts as
    not solved."""
    operations: dict[str, dict[str, list[int]]]
    """tag of an evaluation → sign of a problem's sum → [right, problems]."""
    roles: dict[str, dict[str, float]]
    """tag of an evaluation → the shares of `ROLES` that it has."""
    rewards: list[float]
    """Mean reward of the answering stage in each step; of a step without it, that of the step before."""
    windows: list[Window]
    """Of MarsRL; else empty."""


def parts(config: Any) -> tuple[dict[str, int], dict[str, str]]:
    """question → level, and question → operation, of the run's held-out problems."""
    rows = pandas.read_parquet(config["data"]["val_files"])
    questions = [chat[-1]["content"] for chat in rows["prompt"]]
    answers = [int(one["ground_truth"]) for one in rows["reward_model"]]
    level_of = dict(zip(questions, (int(one["level"]) for one in rows["extra_info"]), strict=True))
    return level_of, {one: operation(one, answer) for one, answer in zip(questions, answers, strict=True)}


def operation(question: str, answer: int) -> str:
    """The sign of a problem of one step."""
    left, right = (int(number) for number in re.findall(r"\d+", question))
    return next(sign for sign in "+-*" if Step(left, sign, right).result == answer)


def solved(folder: Path, tag: str, part_of: Mapping[str, Any]) -> dict[Any, list[int]]:
    """Right answers and problems by what part a question belongs to."""
    rows = [json.loads(line) for line in (folder / "rollouts" / f"eval_{tag}.jsonl").read_text().splitlines()]
    right = {row["problem"]["question"] for row in rows if row["stage"] in ANSWERING and _is_right(row)}
    found: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for question, part in part_of.items():
        found[part][0] += question in right
        found[part][1] += 1
    return dict(sorted(found.items()))


def _is_right(row: dict[str, Any]) -> bool:
    return row["answer"] is not None and row["answer"] == row["problem"]["ground_truth"]


def windows(folder: Path, count: int) -> list[Window]:
    """MarsRL's roles in each `WINDOW` of a run's steps."""
    found = []
    for first in range(1, count + 1, WINDOW):
        last = min(first + WINDOW - 1, count)
        solved, repaired = [0, 0], [0, 0]
        called = {False: [0, 0], True: [0, 0]}
        for step in range(first, last + 1):
            text = (folder / "rollouts" / f"step_{step}.jsonl").read_text()
            for row in map(json.loads, text.splitlines()):
                role, right = row["role"], row["reward"] > 0.5
                if role == "solver":
                    _count(solved, right)
                elif role == "verifier":
                    _count(called[row["solution_reward"] > 0.5], row["verdict"] == "wrong")
                elif role == "corrector" and row["solution_reward"] <= 0.5:
                    _count(repaired, right)
        found.append(Window(first, last, solved, called[False], called[True], repaired))
    return found


def _count(counts: list[int], case: bool) -> None:
    counts[0] += case
    counts[1] += 1


def read(folder: Path) -> Run:
    """A run's outcome, from what it has left."""
    config: Any = yaml.safe_load((folder / "config.yaml").read_text())
    done = steps(folder)
    level_of, operation_of = parts(config)
    evaluations = [
        json.loads((folder / "evaluations" / f"{tag}.json").read_text()) for tag in ("before", "after")
    ]
    seconds = sum(one["seconds"] for one in evaluations) + sum(one.timings["step"] for one in done)
    summary = json.loads((folder / "summary.json").read_text())
    roles = {
        tag + suffix: {
            name: summary[tag][name + suffix]["mean"] for name in ROLES if name + suffix in summary[tag]
        }
        for tag in ("before", "after")
        for suffix in ("", "_greedy")
    }
    rewards: list[float] = []
    for one in done:
        found = [
            one.metrics[key] for stage in ANSWERING if (key := f"stage/{stage}/reward_mean") in one.metrics
        ]
        rewards += found[:1] or rewards[-1:] or [0.0]
    return Run(
        name=folder.name,
        created=json.loads((folder / "run.json").read_text())["created"],
        method=config["marsrl"]["algo"]["name"],
        seed=config["marsrl"]["run"]["seed"],
        steps=len(done),
        minutes=seconds / 60,
        solved={tag: solved(folder, tag, level_of) for pair in TAGS.values() for tag in pair},
        operations={tag: solved(folder, tag, operation_of) for pair in TAGS.values() for tag in pair},
        roles=roles,
        rewards=rewards,
        windows=windows(folder, len(done)) if config["marsrl"]["algo"]["name"] == "marsrl" else [],
    )


def share(counts: Sequence[Sequence[int]]) -> str:
    """Percent right with its interval."""
    right, of = (sum(column) for column in zip(*counts, strict=True))
    low, high = wilson_interval(right / of, of)
    return f"{100 * right / of:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each run."""
    found = []
    for run in runs:
        cells = [f"{run.method}, seed {run.seed}", str(run.steps), f"{run.minutes:.1f}"]
        cells += [share(list(run.solved[tag].values())) for pair in TAGS.values() for tag in pair]
        found.append(cells)
    return found


def role_rows(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each run of a method whose roles are told of, in percent before → after."""
    found = []
    for run in runs:
        if not any(run.roles.values()):
            continue
        cells = [f"{run.method}, seed {run.seed}"]
        for name in ROLES:
            for pair in TAGS.values():
                values = [run.roles[tag].get(name) for tag in pair]
                shown = ["–" if value is None else f"{100 * value:.0f}" for value in values]
                cells.append(" → ".join(shown))
        found.append(cells)
    return found


def window_rows(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each window of each run, in percent."""
    return [
        [run.name, f"{one.first} to {one.last}"]
        + [
            f"{100 * cases / of:.0f}" if of else "–"
            for cases, of in (one.solved, one.errors_found, one.false_alarms, one.repaired)
        ]
        for run in runs
        for one in run.windows
    ]


def part_rows(found: Sequence[Mapping[str, Mapping[Any, list[int]]]]) -> list[list[str]]:
    """Levels, or operations, of all runs together, greedy and at temperature 1.

    Args:
        found: `solved` or `operations` of each run.
    """
    rows = []
    for part in sorted({part for one in found for part in one["before"]}):
        having = [one for one in found if part in one["before"]]
        shares = [share([one[tag][part] for one in having]) for pair in TAGS.values() for tag in pair]
        rows.append([str(part), str(having[0]["before"][part][1]), *shares])
    return rows


def smooth(rewards: Sequence[float], window: int = 8) -> list[float]:
    """The mean of the last steps, at each step."""
    return [
        sum(part) / len(part)
        for n in range(len(rewards))
        if (part := rewards[max(0, n + 1 - window) : n + 1])
    ]


def draw(runs: Sequence[Run], path: Path) -> None:
    """Rewards while training; accuracy before and after, by level (greedy) or by method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    methods = list(dict.fromkeys(run.method for run in runs))
    draw_rewards(left, runs, methods)
    if len(methods) > 1:
        pairs = [
            (tag, f"{name} {when}")
            for name, pair in TAGS.items()
            for when, tag in zip(("before", "after"), pair, strict=True)
        ]
        parts = {
            one: {
                tag: [count for run in runs if run.method == one for count in run.solved[tag].values()]
                for tag, _ in pairs
            }
            for one in methods
        }
    else:
        pairs = [("before_greedy", "before"), ("after_greedy", "after")]
        parts = {
            f"level {level}": {tag: [run.solved[tag][level] for run in runs] for tag, _ in pairs}
            for level in sorted(runs[0].solved["before"])
        }
    draw_shares(right, parts, pairs)
    how = "" if len(methods) > 1 else ", greedy"
    right.set(title=f"Held-out problems{how}, {len(runs)} run{'s' * (len(runs) > 1)}")
    figure.savefig(path, dpi=110)


def draw_rewards(axes: Any, runs: Sequence[Run], methods: Sequence[str]) -> None:
    """A line for each run; with several methods a colour for each method."""
    named: set[str] = set()
    for run in runs:
        line: dict[str, Any] = {"label": f"seed {run.seed}"}
        if len(methods) > 1:
            label = None if run.method in named else run.method
            line = {"color": f"C{methods.index(run.method)}", "label": label}
            named.add(run.method)
        axes.plot(range(1, len(run.rewards) + 1), smooth(run.rewards), **line)
    axes.set(xlabel="training step", ylabel="mean reward of 8 steps", title="Training")
    axes.set_ylim(top=1)
    axes.legend(frameon=False)


def draw_shares(
    axes: Any,
    parts: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
    tags: Sequence[tuple[str, str]],
) -> None:
    """Bars of the shares that are right, with Wilson's intervals.

    Args:
        axes: of matplotlib.
        parts: by name, by evaluation, counts of right answers and of all.
        tags: the evaluations, with what they are called.
    """
    width = 0.8 / len(tags)
    for place, (tag, label) in enumerate(tags):
        counts = [[sum(column) for column in zip(*one[tag], strict=True)] for one in parts.values()]
        heights = [ok / of for ok, of in counts]
        ends = [wilson_interval(ok / of, of) for ok, of in counts]
        errors = [[h - low for h, (low, _) in zip(heights, ends, strict=True)],
                  [high - h for h, (_, high) in zip(heights, ends, strict=True)]]  # fmt: skip
        where = [n + width * (place + 0.5) - 0.4 for n in range(len(parts))]
        color = ("#bbbbbb", "#0072b2", "#dddddd", "#56b4e9")[place]
        axes.bar(where, heights, 0.9 * width, yerr=errors, capsize=2, label=label, color=color)
    axes.set(ylim=(0, 1), ylabel="share right")
    axes.set_xticks(range(len(parts)), list(parts))
    axes.legend(frameon=False)


def main() -> None:
    parser = options(__doc__, "the runs")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--picture", type=Path, help="draw here")
    arguments = parser.parse_args()
    runs = [read(folder) for folder in arguments.runs]
    head = [f"{name} {when}, %" for name in TAGS for when in ("before", "after")]
    print(table(["run", "steps", "minutes", *head], rows(runs)))
    print()
    if told := role_rows(runs):
        print(table(["run", *(f"{what}, {name}, %" for what in ROLES.values() for name in TAGS)], told))
        print()
    print(table(["level", "problems", *head], part_rows([run.solved for run in runs])))
    print()
    print(table(["operation", "problems", *head], part_rows([run.operations for run in runs])))
    if told := window_rows(runs):
        print()
        what = ["solved", "errors found", "false alarms", "repaired"]
        print(table(["run", "steps", *(f"{one}, %" for one in what)], told))
    if arguments.picture is not None:
        draw(runs, arguments.picture)
    write_json(arguments.json, [asdict(run) for run in runs])


if __name__ == "__main__":
    main()
