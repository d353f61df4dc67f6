"""The command lines of toy tasks: making a warm-started model, and measuring one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_warm_start(
    description: str,
    train: Callable[[int, int], PreTrainedModel],
    save: Callable[[PreTrainedModel, Path], None],
    table: Callable[[PreTrainedModel, int], str],
    *,
    seed: int,
    steps: int,
    problems: int,
) -> None:
    """Trains a warm-started model as the command line says, saves it, and prints what it can.

    Args:
        train: with a seed, for a number of steps.
        save: in a folder.
        table: of a model, on a number of held-out problems.
        seed: unless asked otherwise; `steps` and `problems` likewise.
    """
    arguments = warm_start_arguments(description, seed=seed, steps=steps, problems=problems)
    model = train(arguments.seed, arguments.steps)
    save(model, arguments.output)
    print(
        f"written to {arguments.output}; measuring on {arguments.problems} held-out problems", file=sys.stderr
    )
    print(table(model, arguments.problems))


def warm_start_arguments(
    description: str, *, seed: int, steps: int, problems: int | None = None
) -> argparse.Namespace:
    """The options of a warm start: `output`, a folder that is made and holds no model yet, `seed`, `steps`,
    and `problems` where it is measured.

    Args:
        seed: unless asked otherwise.
        steps: of training, as the shipped model had.
        problems: held-out ones to measure on; None: nothing is measured.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; must not hold a model yet"
    )
    parser.add_argument("--seed", type=int, default=seed, help="of weights, problems and transcripts")
    parser.add_argument(
        "--steps", type=int, default=steps, help="of training (default: as the shipped model had)"
    )
    if problems is not None:
        parser.add_argument("--problems", type=int, default=problems, help="held-out problems to measure on")
    arguments = parser.parse_args()
    if (arguments.output / "config.json").exists():
        parser.error(f"--output: {arguments.output} already holds a model; name another folder or remove it")
    arguments.output.mkdir(parents=True, exist_ok=True)
    return arguments


def print_sanity_check(
    description: str, task: str, table: Callable[[PreTrainedModel, int, int], str]
) -> None:
    """Measures the model that is asked for and prints the table.

    Args:
        task: whose shipped model is measured unless another is named.
        table: of a model, a number of held-out problems and a seed.
    """
    from transformers import AutoModelForCausalLM

    from studies.assets import model_path

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default=model_path(task), help="a folder (default: the shipped model)")
    parser.add_argument("--problems", type=int, default=400, help="held-out problems")
    parser.add_argument("--seed", type=int, default=0, help="of problems and tokens")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model)
    print(table(model, arguments.problems, arguments.seed))
