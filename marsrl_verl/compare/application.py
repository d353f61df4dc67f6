"""The command line: `python -m marsrl_verl.compare SUITE --seeds N --output FOLDER [key=value …]`, or
`python -m marsrl_verl.compare FOLDER FOLDER` of two evaluations alone."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from marsrl_verl.compare.evaluations import EvaluationsError, compare_evaluations
from marsrl_verl.compare.picture import draw_comparison
from marsrl_verl.compare.placement import RAY_ADDRESS, Here, Placement, RayJobs, no_dashboard_at
from marsrl_verl.compare.plan import OWN_KEYS, TRAIN, plan_runs
from marsrl_verl.compare.record import RecordError, record_json, text_of
from marsrl_verl.compare.report import report_markdown
from marsrl_verl.compare.run_records import known_runs
from marsrl_verl.compare.runner import Outcome, Runner
from marsrl_verl.compare.suite import Suite, SuiteError, load_suite, suite_names
from marsrl_verl.compare.verdicts import seeds_to_decide
from marsrl_verl.config.application import check_values
from marsrl_verl.config.renamed import rename_overrides
from marsrl_verl.reporting.files import write_atomic
from marsrl_verl.reporting.html import write_report
from marsrl_verl.reporting.record import python_path, shell_line
from marsrl_verl.settings.issues import ConfigError

PICTURE = "comparison.png"
DEFAULT_CPUS = 2
"""CPUs of a job by default: a tiny run keeps two cores busy."""


def main(argv: Sequence[str], command: Sequence[str] = TRAIN) -> int:
    """Runs a comparison; 0: every run has a result, 1: some have none, 2: nothing started, 130: Ctrl-C."""
    parser = build_parser()
    arguments = parser.parse_intermixed_args(list(argv))
    if Path(arguments.suite).is_dir():
        return _compare_folders(parser, arguments)
    least = {"seeds": 1, "budget": 1, "jobs": 1, "cpus": 1, "gpus": 0}
    for flag, lowest in least.items():
        value = getattr(arguments, flag)
        if value is not None and value < lowest:
            default = parser.get_default(flag)
            without = "leave it out" if default is None else f"the default is {default}"
            parser.error(f"--{flag} is {value}, expected at least {lowest}; {without}")
    if arguments.address is None and (arguments.cpus is not None or arguments.gpus):
        parser.error("--cpus and --gpus are what a job of a Ray cluster reserves; give its --address as well")
    wrong = [word for word in arguments.overrides if "=" not in word and not word.startswith("~")]
    if wrong:
        parser.error(f"{' '.join(wrong)}: expected one suite, and Hydra overrides of the form key=value")
    try:
        arguments.overrides, notes = rename_overrides(arguments.overrides)
    except ConfigError as error:
        parser.error(str(error))
    for note in notes:
        print(note, file=sys.stderr)
    own = OWN_KEYS if arguments.address is None else (*OWN_KEYS, RAY_ADDRESS)
    taken = [word for word in arguments.overrides if word.lstrip("+~").split("=")[0] in own]
    if taken:
        parser.error(
            f"{' '.join(taken)}: the comparison sets this itself; use --seeds, --budget and --output, or a "
            "suite file of your own"
        )
    try:
        suite = load_suite(arguments.suite)
        if arguments.budget is not None:
            guess = suite.seconds_per_run * arguments.budget / suite.budget.amount
            budget = replace(suite.budget, amount=arguments.budget)
            suite = replace(suite, budget=budget, seconds_per_run=guess)
        output = arguments.output or Path("outputs", "compare", suite.name)
        if file := next((place for place in (output, *output.parents) if place.is_file()), None):
            parser.error(f"--output {output}: {file} is a file, expected a folder")
        runs = plan_runs(suite, arguments.seeds, output, tuple(arguments.overrides))
        known_runs(runs, arguments.known)
    except (SuiteError, RecordError) as error:
        parser.error(str(error))
    if tuple(command) == TRAIN:  # another program's settings are its own
        print(f"checking the settings of {len(suite.methods)} methods", file=sys.stderr, flush=True)
        for run in runs[: len(suite.methods)]:
            try:
                check_values(list(run.overrides), runs_here=arguments.address is None)
            except ConfigError as error:
                parser.error(f"method {run.method}: {error}")
    placement: Placement = Here()
    if arguments.address is not None:
        placement = RayJobs(arguments.address, arguments.cpus or DEFAULT_CPUS, arguments.gpus)
    if arguments.dry_run:
        for run in runs:
            before = python_path() if arguments.address is None else []  # a job has its node's
            print(shell_line([*before, *placement.words(run, command)]))
        return 0
    if arguments.address is not None and (what := no_dashboard_at(arguments.address)):
        parser.error(f"--address: {what}. Start Ray there (`ray start --head`), or name its dashboard")

    runner = Runner(
        suite, runs, command, _say, jobs=arguments.jobs, placement=placement, known=arguments.known
    )
    return _compare(runner, arguments.seeds, output)


def _compare_folders(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Prints the comparison of two evaluations, and writes it into `--output` where that is given."""
    own = ("suite", "overrides", "output")
    of_suites = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in own and value != parser.get_default(name)
    ]
    if of_suites:
        parser.error(f"{', '.join(of_suites)}: {arguments.suite} is a folder, and these are of suites")
    folders = [Path(one) for one in (arguments.suite, *arguments.overrides)]
    if len(folders) != 2 or not folders[1].is_dir():
        parser.error(f"found {' '.join(map(str, folders))}, expected two folders of evaluations alone")
    try:
        text = compare_evaluations(*folders)
    except EvaluationsError as error:
        parser.error(str(error))
    print(text, end="")
    if arguments.output is not None:
        write_report(arguments.output / "report.md", text)
    return 0


def end_on_sigterm() -> None:
    """Lets SIGTERM end the program as an exception does, so that the run that is going on ends with it; left
    alone, it would write into a folder that the next start replaces."""

    def end(signal_number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + signal_number)

    signal.signal(signal.SIGTERM, end)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the options."""
    parser = argparse.ArgumentParser(
        prog="python -m marsrl_verl.compare",
        description="Train several methods with several seeds on an equal budget, and "
        "write results.json, report.md and a picture. Runs that are finished are kept, so the "
        "same command continues an interrupted comparison. Or, of two folders of evaluations alone: compare "
        "their answers problem by problem.",
    )
    parser.add_argument("suite", help=f"{', '.join(suite_names())}, or the path of a suite's .yaml file")
    more = "Hydra overrides of every run, key=value; or the second of two folders of evaluations"
    parser.add_argument("overrides", nargs="*", help=more)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every method (default: 3)")
    parser.add_argument("--output", type=Path, help="the folder (default: outputs/compare/<suite>)")
    budget = "of each run, in what the suite counts: generated tokens or tool calls (default: the suite's)"
    parser.add_argument("--budget", type=int, help=budget)
    jobs = "runs at a time (default: 1); on a cluster as many as have room there at once"
    parser.add_argument("--jobs", type=int, default=1, help=jobs)
    parser.add_argument(
        "--address",
        help="of a Ray cluster's dashboard, http://HEAD:8265, or another that `ray job submit` takes: each "
        "run is a job on one of its nodes",
    )
    reserved = "that a job reserves on its node"
    parser.add_argument("--cpus", type=int, help=f"CPUs {reserved} (default: {DEFAULT_CPUS})")
    parser.add_argument("--gpus", type=int, default=0, help=f"GPUs {reserved} (default: 0)")
    known = (
        "results.json of a comparison made elsewhere, whose runs with the same overrides are taken over; may "
        "be given several times"
    )
    parser.add_argument("--known", type=Path, action="append", default=[], metavar="FILE", help=known)
    parser.add_argument("--dry-run", action="store_true", help="print the commands, start nothing")
    return parser


def _say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece: several threads say something


def _compare(runner: Runner, seeds: int, output: Path) -> int:
    write = partial(write_results, runner.suite, seeds, output)
    outcomes = runner.suite.questions
    if outcomes and seeds < (needed := seeds_to_decide(outcomes)):
        shows = "equivalence, but no difference" if seeds > 1 else "neither equivalence nor a difference"
        _say(
            f"warning: --seeds {seeds} can show {shows} in any of the primary outcomes (here {outcomes}); "
            f"--seeds {needed} could"
        )
    try:
        outcome = runner.run(write)
    except KeyboardInterrupt:
        _say("\nInterrupted; the same command continues with the runs that are not finished.")
        return 130
    write(outcome)
    _say(f"\nReport: {output / 'report.md'}")
    if not outcome.failed:
        return 0
    names = ", ".join(one.run.name for one in outcome.failed)
    print(
        f"{len(outcome.failed)} of {len(runner.runs)} runs have no result: {names}. Their logs lie in "
        f"{output / 'runs'}; the same command repeats them and keeps the others.",
        file=sys.stderr,
    )
    return 1


def write_results(suite: Suite, seeds: int, output: Path, outcome: Outcome) -> None:
    """Writes `results.json`, the picture and `report.md` from what is finished so far."""
    order = list(suite.methods)
    finished = sorted(outcome.finished, key=lambda one: (order.index(one.run.method), one.run.seed))
    write_atomic(output / "results.json", text_of(record_json(suite, finished)))
    picture = draw_comparison(output / PICTURE, suite, finished).name if finished else None
    text = report_markdown(suite, seeds, finished, outcome.failed, picture)
    write_report(output / "report.md", text)
