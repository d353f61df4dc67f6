"""Actions that the meta-thinking agent chose in a run, by the difficulty of the problems:

    python -m marsrl_verl.algos.rema.actions outputs/NAME --output actions.png

reads the run's plans in JSON (`marsrl.algo.plan_form=json`) of epochs that train plans, prints the shares of
DECOMPOSE, REWRITE and EMPTY at each difficulty, and draws them with the mean difficulty of each action over
training (ReMA, arXiv 2503.09501, §4.2.2). A problem's difficulty is a number of the data (`extra_info.level`
or `extra_info.difficulty`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.algos.rema.json_actions import INVALID, ActionKind
from marsrl_verl.algos.rema.single_turn.config import PLAN

ACTIONS = (*(one.value for one in ActionKind), INVALID)
ROLLOUT_FOLDER = "rollouts"
"""Folder of a run's rollout logs."""
_PARTS = 8
"""Parts of training over which difficulties are averaged for the picture."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One plan of the log."""

    step: int
    action: str
    level: float | None
    correctness: float | None
    """The share of its solutions that were correct; None: it was not followed."""


def read_actions(folder: Path) -> list[Chosen]:
    """Returns the plans in JSON of a run, in the order of steps.

    Raises:
        ValueError: the run has none.
    """
    files = (folder / ROLLOUT_FOLDER).glob("step_*.jsonl")
    in_order = sorted(files, key=lambda path: int(path.stem.removeprefix("step_")))
    found = [one for path in in_order for one in _of_file(path)]
    if not found:
        raise ValueError(
            f"{folder}: no plan with an action in {ROLLOUT_FOLDER}/step_*.jsonl; give the folder of a run "
            "with marsrl.algo.plan_form=json and marsrl.run.log_rollouts=true that has trained plans"
        )
    return found


def _of_file(path: Path) -> Iterable[Chosen]:
    with path.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            # Epochs that count successes have all problems, those that train the ones in between.
            trained = line.get("pass_trains_plans", True)
            if line.get("stage") == PLAN and line.get("action") in ACTIONS and trained:
                level, correctness = line.get("level"), line.get("correctness")
                yield Chosen(int(line["step"]), str(line["action"]), level, correctness)


def shares_by_level(actions: Sequence[Chosen]) -> dict[float | None, dict[str, float]]:
    """Returns the share of each action at each difficulty, in ascending order; None, for all whose difficulty
    is unknown, last."""
    counts: dict[float | None, Counter[str]] = defaultdict(Counter)
    for one in actions:
        counts[one.level][one.action] += 1
    order = sorted(counts, key=lambda level: (level is None, level or 0.0))
    return {
        level: {action: counts[level][action] / counts[level].total() for action in ACTIONS}
        for level in order
    }


def mean_levels(actions: Sequence[Chosen], parts: int = _PARTS) -> dict[str, list[tuple[float, float]]]:
    """Returns for each action (mean step, mean difficulty) over consecutive parts of training in which it was
    chosen."""
    steps = sorted({one.step for one in actions})
    size = max(1, -(-len(steps) // parts))
    curves: dict[str, list[tuple[float, float]]] = {}
    for begin in range(0, len(steps), size):
        part = set(steps[begin : begin + size])
        middle = sum(part) / len(part)
        for action in ACTIONS:
            some = (one for one in actions if one.step in part and one.action == action)
            levels = [one.level for one in some if one.level is not None]
            if levels:
                curves.setdefault(action, []).append((middle, sum(levels) / len(levels)))
    return curves


def table(actions: Sequence[Chosen]) -> str:
    """Returns as text the shares by difficulty and in the first and the second half of the steps, and the
    share of each action's plans that led to the answer."""
    lines = [f"{'difficulty':>12}{'plans':>8}" + "".join(f"{action:>12}" for action in ACTIONS)]
    parts = [
        (_name(level), [one for one in actions if one.level == level]) for level in shares_by_level(actions)
    ]
    steps = sorted({one.step for one in actions})
    half = -(-len(steps) // 2)
    for part in filter(None, (steps[:half], steps[half:])):
        parts.append((f"step {part[0]}-{part[-1]}", [one for one in actions if one.step in part]))
    for name, some in parts:
        chosen = Counter(one.action for one in some)
        cells = "".join(f"{chosen[one] / len(some):>12.3f}" for one in ACTIONS)
        lines.append(f"{name:>12}{len(some):>8}{cells}")
    cells = "".join(f"{_correct(actions, one):>12}" for one in ACTIONS)
    lines.append(f"{'correct':>12}{len(actions):>8}{cells}")
    return "\n".join(lines)


def _name(level: float | None) -> str:
    return "unknown" if level is None else f"{level:g}"


def _correct(actions: Sequence[Chosen], action: str) -> str:
    values = [one.correctness for one in actions if one.action == action and one.correctness is not None]
    return f"{sum(values) / len(values):.3f}" if values else "-"


def draw(actions: Sequence[Chosen], path: Path, title: str) -> None:
    """Draws two panels: shares by difficulty, and the mean difficulty of each action over training."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_shares(left, shares_by_level(actions))
    for action, points in mean_levels(actions).items():
        colour = f"C{ACTIONS.index(action)}"  # as the bars
        right.plot(*zip(*points, strict=True), marker="o", color=colour)
    right.set(xlabel="training step", ylabel="mean difficulty", title="Difficulty by action")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(ACTIONS))
    figure.suptitle(title.replace("$", r"\$"))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_shares(axes: Any, shares: dict[float | None, dict[str, float]]) -> None:
    names = [_name(level) for level in shares]
    bottom = [0.0] * len(names)
    for action in ACTIONS:
        values = [one[action] for one in shares.values()]
        axes.bar(names, values, bottom=bottom, label=action)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set(xlabel="difficulty", ylabel="share of plans", title="Actions by difficulty", ylim=(0, 1))


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table and draws the picture; returns the exit status."""
    parser = argparse.ArgumentParser(description="Actions by the difficulty of their problems.")
    parser.add_argument("run", type=Path, help="folder of a run, such as outputs/NAME")
    picture = "picture to write (default: actions.png in the run's folder)"
    parser.add_argument("--output", type=Path, help=picture)
    arguments = parser.parse_args(words)
    try:
        found = read_actions(arguments.run)
    except (OSError, ValueError) as error:
        print(f"actions: {error}", file=sys.stderr)
        return 2
    output = arguments.output or arguments.run / "actions.png"
    print(table(found))
    draw(found, output, arguments.run.name)
    print(f"written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
