"""The commands of the package. The modules of `recipe/marsrl/` and the console scripts call them."""

from __future__ import annotations

import os
import signal
import sys

from omegaconf import DictConfig


def train() -> int:
    """`marsrl-train`, `python -m recipe.marsrl.main_marsrl`."""
    from marsrl_verl.config.application import main

    _see_working_folder()
    return main(sys.argv[1:], _launch)


def evaluate() -> int:
    """`marsrl-eval`, `python -m recipe.marsrl.main_eval`."""
    from marsrl_verl.config.application import main
    from marsrl_verl.config.command_line import EVALUATE

    _see_working_folder()
    return main(sys.argv[1:], _launch, EVALUATE)


def serve() -> int:
    """`marsrl-serve`, `python -m recipe.marsrl.serve`."""
    from marsrl_verl.config.application import main
    from marsrl_verl.config.command_line import SERVE

    _see_working_folder()
    return main(sys.argv[1:], _launch, SERVE)


def export() -> int:
    """`marsrl-export`, `python -m recipe.marsrl.export`."""
    from marsrl_verl.export.application import main

    _see_working_folder()
    return main(sys.argv[1:])


def view() -> int:
    """`marsrl-view`, `python -m recipe.marsrl.view`."""
    from marsrl_verl.view.application import main

    return main(sys.argv[1:])


def rescore() -> int:
    """`marsrl-rescore`, `python -m recipe.marsrl.rescore`."""
    from marsrl_verl.replay.rescore_command import main

    _see_working_folder()
    return main(sys.argv[1:])


def replay() -> int:
    """`marsrl-replay`, `python -m recipe.marsrl.replay`."""
    from marsrl_verl.replay.trace import main

    _see_working_folder()
    return main(sys.argv[1:])


def play() -> int:
    """`marsrl-play`, `python -m recipe.marsrl.play`."""
    from marsrl_verl.replay.play import main

    return main(sys.argv[1:])


def export_rollouts() -> int:
    """`marsrl-export-rollouts`, `python -m recipe.marsrl.export_rollouts`."""
    from marsrl_verl.replay.export import main

    _see_working_folder()
    return main(sys.argv[1:])


def prepare_data() -> int:
    """`marsrl-prepare-data`, `python -m recipe.marsrl.prepare_data`."""
    from marsrl_verl.data_preparation.application import main

    _see_working_folder()
    # Ended by a batch system as by Ctrl-C: what is answered is written down first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return main(sys.argv[1:])


def new_method() -> int:
    """`marsrl-new-method`, `python -m recipe.marsrl.new_method`."""
    from marsrl_verl.config.locations import config_folder, group_options
    from marsrl_verl.testing.new_method import main

    return main(sys.argv[1:], group_options([config_folder()])["algo"])


def doctor() -> int:
    """`marsrl-doctor`, `python -m recipe.marsrl.doctor`."""
    from marsrl_verl.doctor.application import main

    return main(sys.argv[1:])


def _launch(config: DictConfig) -> int:
    # Imported late: verl takes seconds to import, and a wrong configuration never gets here.
    from marsrl_verl.verl_adapter.run.launch import run

    return run(config)


def _see_working_folder() -> None:
    """A reward class that lies in the working folder is found by `python -m`; a console script has to ask."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
