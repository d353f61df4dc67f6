"""`python -m recipe.marsrl.replay RUN --problem ID`: a problem's way through its stages, from the records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marsrl_verl.core.sanitize import one_line, printable
from marsrl_verl.replay.parts import Responses
from marsrl_verl.replay.recorded import Line
from marsrl_verl.replay.settings import recorded_config
from marsrl_verl.reporting.rollout_files import read_line, rollout_files
from marsrl_verl.reporting.rollout_index import read_index
from marsrl_verl.reporting.run_folder import OutputFolderError
from marsrl_verl.reporting.trained_tokens import TrainedTokens, stem
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_IDS = 5
_LONGEST = 4000
"""Characters of a line of text."""


def main(arguments: Sequence[str]) -> int:
    """Runs one command line; 0: shown, 2: there is no such run or problem."""
    parser = argparse.ArgumentParser(
        prog="python -m recipe.marsrl.replay",
        description="Show a problem's way through the stages of a recorded run.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, e.g. outputs/demo")
    parser.add_argument("--problem", metavar="ID", required=True, help="as in the rollouts, e.g. p00000007")
    parser.add_argument("--step", type=int, metavar="N", help="of training; default: all that have it")
    parser.add_argument("--lines", type=int, default=8, help="of each part of a text (default: 8; 0: all)")
    given = parser.parse_args(arguments)
    from rich.console import Console

    try:
        responses = Responses.of(recorded_config(given.run, []))
        found = problem_lines(given.run, given.problem, given.step)
    except (OutputFolderError, ConfigError) as error:
        print(printable(error), file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION
    if not found:
        ids = ", ".join(_some_ids(given.run, given.step)) or "none"
        what = f"{given.run} has no rollouts of problem {printable(given.problem)}"
        where = "" if given.step is None else f" in step {given.step}"
        print(f"{what}{where}; some that it has: {ids}", file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    show(console, found, responses, given.lines)
    return 0


def problem_lines(run: Path, problem: str, step: int | None) -> list[Line]:
    """A problem's lines, each with `file` and, where it was trained, `advantages` of its parts."""
    import pyarrow.compute as pc

    found: list[Line] = []
    trained = TrainedTokens.of_run(run)
    for path in _files(run, step):
        table = read_index(path)
        for place in table.filter(pc.equal(table["problem"], problem)).to_pylist():
            line = read_line(path, place)
            of = trained.advantages(path.name, line["trajectory"], line["sequence"])
            found.append({**line, "file": path.name, "advantages": of})
    return found


def _files(run: Path, step: int | None) -> list[Path]:
    files = rollout_files(run / "rollouts")
    return files if step is None else [one for one in files if one.name.startswith(f"step_{step}.")]


def _some_ids(run: Path, step: int | None) -> list[str]:
    found: dict[str, None] = {}
    for path in _files(run, step):
        found |= dict.fromkeys(read_index(path)["problem"].unique().to_pylist())
        if len(found) >= _SHOWN_IDS:
            break
    return [printable(one) for one in list(found)[:_SHOWN_IDS]]


def show(console: Console, lines: list[Line], responses: Responses, most: int) -> None:
    """Prints a problem's lines, groups in the order in which one was built from another.

    Args:
        console: where to.
        lines: see `problem_lines`.
        responses: of the run.
        most: lines of each part; 0: all.
    """
    problem = lines[0]["problem"]
    _print(console, f"Problem {problem['id']} ({problem['data_source']})", "bold")
    _print(console, problem["question"], indent="  ")
    _print(console, f"Reference: {one_line(problem['ground_truth'])}")
    for some in _in_turn(lines):
        _print(console, "")
        _print(console, _heading(some), "bold")
        for line in some:
            _print(console, _summary(line), "cyan", indent="  ")
            for part in responses.parts(line):
                mark = "┆ " if part.copied else "" if part.own else "│ "
                _print(console, _cut(part.text.strip("\n"), most), "dim" if mark else None, f"    {mark}")
            for event in line["events"]:
                if event.get("kind") == "tool":
                    _print(console, _call(event), "magenta", indent="    ")


def _in_turn(lines: list[Line]) -> Iterator[list[Line]]:
    """The groups, each file's for themselves: first what no other group gave rise to."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["file"], line["group"]), []).append(line)
    source = {name: (some[0]["parent"] or "").rpartition("#")[0] for (_, name), some in groups.items()}

    def depth(name: str) -> int:
        return 1 + depth(source[name]) if source.get(name) in source else 0

    # A problem of an evaluation has a file for each of its passes.
    evaluations = {file: not file.startswith("step_") for file, _ in groups}
    for key in sorted(
        groups, key=lambda key: (evaluations[key[0]], evaluations[key[0]] and key[0], depth(key[1]))
    ):
        yield groups[key]


def _heading(some: list[Line]) -> str:
    first = some[0]
    count = len({line["trajectory"] for line in some})
    parts_ = [f"{first['stage']}: group {first['group']}", f"{count} trajector{'y' if count == 1 else 'ies'}"]
    where = f"step {first['step']}" if first["file"].startswith("step_") else stem(Path(first["file"]))
    built = [] if first["parent"] is None else [f"built from {first['parent']}"]
    return ", ".join([*parts_, where, *built])


def _summary(line: Line) -> str:
    fork = line["fork"]
    reward = "none" if line["reward"] is None else f"{line['reward']:g}"
    failed = " (grade failed)" if line["graded"] is False else ""
    advantages = _own_advantages(line)
    spread = dict.fromkeys(f"{one:+.3g}" for one in (min(advantages), max(advantages))) if advantages else ()
    found = [
        f"#{line['trajectory'].rpartition('#')[2]} {line['role']}",
        f"reward {reward}{failed}",
        *([f"advantage {' to '.join(spread)}"] if spread else []),
        line["finish_reason"] + (f" ({one_line(line['error'])})" if line["error"] else ""),
        "another model's" if line["external"] else f"{line['tokens']} tokens after {line['prompt_tokens']}",
        *([] if line["external"] else [f"{line['policy']} of step {line['policy_version']}"]),
        *([f"answer {one_line(line['answer'])}"] if line.get("answer") is not None else []),
        *([f"leaves {fork['trajectory']} at token {fork['token']}"] if fork else []),
    ]
    return "  ".join(found)


def _own_advantages(line: Line) -> list[float]:
    """Advantages of the tokens that the policy wrote."""
    values: list[float] = []
    for end, value in line["advantages"]:
        values += [value] * (end - len(values))
    masked = {at for begin, end in line["masked"] for at in range(begin, end)}
    return [value for at, value in enumerate(values) if at not in masked]


def _call(event: Mapping[str, Any]) -> str:
    arguments = one_line(json.dumps(event["arguments"], ensure_ascii=False))
    cached = ", kept result" if event.get("cached") else ""
    return f"→ {event['tool']}({arguments}): {event['outcome']}, {event['seconds']:.2f} s{cached}"


def _cut(text: str, most: int) -> str:
    lines = [one if len(one) <= _LONGEST else f"{one[:_LONGEST]} …" for one in text.split("\n")]
    if most <= 0 or len(lines) <= most:
        return "\n".join(lines)
    before = -(-most // 2)
    after = most - before
    left_out = len(lines) - most
    return "\n".join([*lines[:before], f"… {left_out} lines …", *(lines[-after:] if after else [])])


def _print(console: Console, text: str, style: str | None = None, indent: str = "") -> None:
    """Prints text as text, whatever it looks like."""
    for line in printable(text).split("\n"):
        console.print(f"{indent}{line}", style=style, markup=False, soft_wrap=True)
