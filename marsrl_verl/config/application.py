"""The whole way of a command: parse, compose, check, then show the plan or start the run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.config.checks import VALUES, run_checks
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.machine import check_verl_version
from marsrl_verl.config.checks.output import hold_folders
from marsrl_verl.config.checks.resume import record_files
from marsrl_verl.config.command_line import SERVE, TRAIN, evaluating, help_text, parse_arguments, serving
from marsrl_verl.config.compose import Composed, available_groups, compose_config, picked
from marsrl_verl.config.dry_run import report
from marsrl_verl.core.sanitize import printable
from marsrl_verl.reporting.record import python_path, recorded
from marsrl_verl.rollout.external.recorded_answers import make_paths_absolute
from marsrl_verl.settings.issues import EXIT_WRONG_CONFIGURATION, ConfigError

Launch = Callable[[DictConfig], int]


def main(argv: list[str], launch: Launch, program: str = TRAIN) -> int:
    """Runs one command line and returns the exit status.

    Args:
        argv: the arguments without the program's name.
        launch: starts Ray and trains, evaluates or serves; only called with a configuration that passed
            every check.
        program: `TRAIN`, `EVALUATE` or `SERVE`.
    """
    try:
        return _run(argv, launch, program)
    except ConfigError as error:
        print(printable(error), file=sys.stderr)
        return EXIT_WRONG_CONFIGURATION


def check_values(argv: list[str], runs_here: bool = True) -> None:
    """Checks what a command line's settings say by themselves, without files and machine, and raises
    ConfigError. For another machine (`runs_here` False) where no cluster is named, keys alone are checked:
    nobody knows what it would pick."""
    composed = compose_config(parse_arguments(argv))
    if runs_here or not composed.cluster_detected:
        run_checks(_context(composed, dry_run=True), VALUES)


def _context(composed: Composed, dry_run: bool) -> Context:
    return Context(
        config=composed.config,
        raw=composed.raw,
        dry_run=dry_run,
        estimator_named=composed.estimator_named,
        warnings=list(composed.warnings),
    )


def _run(argv: list[str], launch: Launch, program: str) -> int:
    if problems := check_verl_version():
        raise ConfigError(problems)
    arguments = parse_arguments(argv)
    if arguments.show_help:
        print(help_text(available_groups(arguments), program))
        return 0
    if program != TRAIN:
        arguments = serving(arguments) if program == SERVE else evaluating(arguments)
    composed = compose_config(arguments)
    if arguments.show_config:
        print(OmegaConf.to_yaml(recorded(composed.config)))
        return 0
    context = _context(composed, bool(composed.config.marsrl.dry_run))
    run_checks(context)
    if context.dry_run:
        print(printable(report(context, composed)))
        return 0
    if composed.cluster_detected:
        print(picked(composed.choices["cluster"]), flush=True)
    for line in composed.notes:
        print(line, flush=True)
    for warning in context.warnings:
        print(f"warning: {warning}", flush=True)
    record_files(context)
    with open_dict(composed.config):
        composed.config.marsrl.run.command = _command(argv, program)
        make_paths_absolute(composed.config)
    with hold_folders(context):
        return launch(composed.config)


def _command(argv: list[str], program: str) -> list[str]:
    """The whole command line of this process, as it was typed, behind its `PYTHONPATH=…`."""
    started = sys.orig_argv
    own = started[len(started) - len(argv) :] == argv
    words = started if own else [*program.split(), *argv]
    return [*python_path(), *words]
