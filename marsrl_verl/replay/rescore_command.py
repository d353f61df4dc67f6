"""`python -m recipe.marsrl.rescore RUN [reward=OPTION | marsrl.reward.ROLE.… ]`: grade rollouts again."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.core.group import Group
from marsrl_verl.core.sanitize import one_line, printable
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.replay.recorded import Line, by_trajectory, read_groups
from marsrl_verl.replay.rescore import Rescorer
from marsrl_verl.replay.settings import recorded_config
from marsrl_verl.reporting.files import to_json, write_lines_atomic
from marsrl_verl.reporting.rollout_files import rollout_files
from marsrl_verl.reporting.run_folder import OutputFolderError
from marsrl_verl.reporting.trained_tokens import stem
from marsrl_verl.rewards.loading import ClassLoadError
from marsrl_verl.rewards.running import RewardUnavailableError
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError

TRAINING = "training"
_EQUAL = 1e-9
_ANSWER = 60
"""Characters of an answer that an example shows."""


@dataclass
class StageGrades:
    """Recorded and new rewards of a role's sequences at a stage."""

    recorded: list[float] = field(default_factory=list)
    """Rewards; of the same sequences"""
    new: list[float] = field(default_factory=list)
    """those now."""
    failed: int = 0
    """Grades that failed now."""
    changed: list[Line] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    """Why sequences were not graded."""


Found = dict[tuple[str, str, str], StageGrades]
"""Keys: what the rollouts are of (training, or an evaluation's tag), role and stage."""


def main(arguments: Sequence[str]) -> int:
    """Runs one command line; 0: graded, 1: a reward can't go on, 2: rejected."""
    parser = argparse.ArgumentParser(
        prog="python -m recipe.marsrl.rescore",
        description="Grade the rollouts of a run again, by its own rewards or by others, without a model.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, e.g. outputs/demo")
    parser.add_argument(
        "words", nargs="*", metavar="SETTING", help="reward=OPTION, marsrl.reward.ROLE.…=VALUE"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="of what changed (default: RUN/rescored.jsonl)"
    )
    parser.add_argument("--examples", type=int, default=2, help="of changed rewards at each stage")
    given = parser.parse_intermixed_args(arguments)
    try:
        rescorer = Rescorer(recorded_config(given.run, given.words))
        try:
            found = asyncio.run(rescore_run(given.run, rescorer))
        finally:
            rescorer.close()
    except (OutputFolderError, ConfigError, ClassLoadError, RewardUnavailableError) as error:
        print(printable(error), file=sys.stderr)
        return 1 if isinstance(error, RewardUnavailableError) else EXIT_WRONG_CONFIGURATION
    output = given.output or given.run / "rescored.jsonl"
    changed = [line for one in found.values() for line in one.changed]
    write_lines_atomic(output, (to_json(line) + "\n" for line in changed))
    place = {stage: number for number, stage in enumerate(rescorer.stages)}
    names = list(dict.fromkeys(of for of, _, _ in found))
    rows = sorted(found, key=lambda one: (names.index(one[0]), place.get(one[2], len(place))))
    _show({one: found[one] for one in rows}, rescorer.gives_credit, given.examples)
    print(f"\n{len(changed)} changed: {output}")
    return 0


async def rescore_run(run: Path, rescorer: Rescorer) -> Found:
    """Grades all rollouts of a run's folder again."""
    found: Found = {}
    for path in rollout_files(run / "rollouts"):
        name = stem(path)
        training = name.startswith("step_")
        groups: list[Group] = []
        lines: dict[str, list[Line]] = {}
        for group, some in read_groups(path, rescorer.stages):
            groups.append(group)
            lines |= {each[0]["trajectory"]: each for each in by_trajectory(some)}
        left_out = await rescorer.rescore(groups, training=training)
        of = TRAINING if training else name.removeprefix("eval_")
        for one in (one for group in groups for one in group.trajectories):
            for line, reward in _pairs(lines[one.trajectory_id], one):
                stage = found.setdefault((of, line["role"], line["stage"]), StageGrades())
                _note(stage, line, one, reward, left_out.get(one.trajectory_id), path.name)
    return found


def _pairs(lines: list[Line], one: Trajectory) -> Iterator[tuple[Line, float | None]]:
    """The lines of a trajectory with the rewards that their sequences have now."""
    common = None if one.reward is None else one.reward.value
    for number, line in enumerate(lines):
        own = one.sequences[number].reward if one.sequences else None
        yield line, common if own is None else own


def _note(
    stage: StageGrades, line: Line, one: Trajectory, new: float | None, why: str | None, file: str
) -> None:
    if why is None and line["reward"] is None:
        why = "none was recorded: its problem was left before"
    if why is not None or new is None:
        stage.without.append(why or "nothing gives it a reward")
        return
    result: RewardResult = one.scored
    before = line["reward"]
    stage.recorded.append(before)
    stage.new.append(new)
    stage.failed += not result.graded
    if abs(new - before) > _EQUAL or result.graded is not line["graded"]:
        kept = ("step", "role", "stage", "trajectory", "sequence", "finish_reason", "final")
        about: dict[str, Any] = {name: line[name] for name in kept}
        stage.changed.append(
            {
                "file": file,
                **about,
                "question": line["problem"]["question"],
                "ground_truth": line["problem"]["ground_truth"],
                "recorded": before,
                "new": new,
                "graded": result.graded,
                "answer": result.info.get("answer"),
                "error": result.error,
            }
        )


def _show(found: Found, gives_credit: bool, examples: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    table = Table(box=None, pad_edge=False)
    for name in ("rollouts", "role", "stage", "reward", "graded", "recorded", "new", "changed", "failed"):
        table.add_column(name, justify="left" if name in ("rollouts", "role", "stage", "reward") else "right")
    for (of, role, stage), one in found.items():
        count = len(one.new)
        means = [f"{sum(some) / count:.4f}" if count else "–" for some in (one.recorded, one.new)]
        kind = "credit" if of == TRAINING and gives_credit else "grade"
        numbers = (str(count), *means, str(len(one.changed)), str(one.failed))
        table.add_row(*map(printable, (of, role, stage)), kind, *numbers)
    console.print(table)
    for (of, role, stage), one in found.items():
        for why in dict.fromkeys(one.without):
            print(f"{role} at {stage} ({of}): {one.without.count(why)} not graded: {printable(why)}")
        for line in one.changed[:examples]:
            answer = "" if line["answer"] is None else f", answer {one_line(line['answer'])[:_ANSWER]}"
            failed = f", {one_line(line['error'])}" if line["error"] else ""
            reference = one_line(line["ground_truth"])[:_ANSWER]
            print(
                f"  {printable(line['trajectory'])} ({of}, {role}): {line['recorded']:g} → {line['new']:g}"
                f"{answer}, reference {reference}{failed}"
            )
        if 0 < examples < len(one.changed):
            print(f"  … {len(one.changed) - examples} more ({of}, {printable(role)} at {printable(stage)})")
