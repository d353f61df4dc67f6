"""`python -m recipe.marsrl.export_rollouts RUN --format … --output FOLDER`: for others' viewers."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from marsrl_verl.core.sanitize import printable
from marsrl_verl.replay.atif import document
from marsrl_verl.replay.inspect_log import write_log
from marsrl_verl.replay.parts import Responses
from marsrl_verl.replay.recorded import Line
from marsrl_verl.replay.settings import recorded_config
from marsrl_verl.reporting.files import write_json_atomic
from marsrl_verl.reporting.rollout_files import read_lines, rollout_files
from marsrl_verl.reporting.run_folder import OutputFolderError
from marsrl_verl.reporting.trained_tokens import TrainedTokens, stem
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError

ATIF, INSPECT = "atif", "inspect"
_UNSAFE = re.compile(r"[^\w.-]+")


def main(arguments: Sequence[str]) -> int:
    """Runs one command line; 0: written, 2: rejected."""
    parser = argparse.ArgumentParser(
        prog="python -m recipe.marsrl.export_rollouts",
        description="Write a run's rollouts as others read them: ATIF, a JSON file for each sequence, or "
        "logs of Inspect, one for each step and evaluation.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, e.g. outputs/demo")
    parser.add_argument("--format", choices=[ATIF, INSPECT], required=True)
    parser.add_argument("--output", type=Path, metavar="FOLDER", required=True, help="a new one")
    parser.add_argument(
        "--step", type=int, action="append", metavar="N", help="this step alone; several times"
    )
    parser.add_argument("--problem", action="append", metavar="ID", help="this problem alone; several times")
    given = parser.parse_args(arguments)
    try:
        if given.output.exists():
            raise OutputFolderError(
                f"--output {given.output} exists, and nothing is overwritten: name a new folder"
            )
        if given.format == INSPECT and importlib.util.find_spec("inspect_ai") is None:
            raise OutputFolderError("--format inspect needs inspect_ai: pip install 'marsrl-verl[inspect]'")
        config = recorded_config(given.run, [])
        responses, model = Responses.of(config), str(config.actor_rollout_ref.model.path)
    except (OutputFolderError, ConfigError) as error:
        print(printable(error), file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION
    count = files = 0
    trained = TrainedTokens.of_run(given.run)
    for path in rollout_files(given.run / "rollouts"):
        name = stem(path)
        if given.step is not None and name not in {f"step_{step}" for step in given.step}:
            continue
        found = list(_trajectories(trained, path, given.problem))
        if not found:
            continue
        count += len(found)
        if given.format == ATIF:
            files += _write_atif(given.output / name, found, responses, model, trained, path.name)
        else:
            target = given.output / f"{name}.eval"
            target.parent.mkdir(parents=True, exist_ok=True)
            task = f"{config.marsrl.run.name}/{name}"
            write_log(target, found, responses, task=task, model=model, written=path.stat().st_mtime)
            files += 1
    if not count:
        print(f"{given.run} has no such rollouts", file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION
    print(f"{count} trajectories in {files} files: {given.output}")
    return 0


def _trajectories(trained: TrainedTokens, path: Path, problems: Sequence[str] | None) -> Iterator[list[Line]]:
    """The lines of each trajectory of a file, with the advantages of their tokens."""
    wanted = (line for line in read_lines(path) if not problems or line["problem"]["id"] in problems)
    for name, some in groupby(wanted, key=lambda line: line["trajectory"]):
        yield [{**line, "advantages": trained.advantages(path.name, name, line["sequence"])} for line in some]


def _write_atif(
    folder: Path,
    found: Sequence[Sequence[Line]],
    responses: Responses,
    model: str,
    trained: TrainedTokens,
    file: str,
) -> int:
    files = 0
    for lines in found:
        for line in lines:
            kept = trained.columns(file, line["trajectory"], line["sequence"])
            made = document(
                line, responses, model, alone=len(lines) == 1, log_probs=kept.get("rollout_log_probs", ())
            )
            write_json_atomic(folder / f"{_UNSAFE.sub('.', made['trajectory_id'])}.json", made)
            files += 1
    return files
