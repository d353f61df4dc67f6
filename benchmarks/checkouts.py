"""Two checkouts of the project, measured in turn by one script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BEFORE, AFTER = "before", "after"


def environment(tree: Path) -> dict[str, str]:
    """Variables of a process that is to use the checkout's package, and of all processes that it starts. Its
    working folder has to be the checkout, too."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def require_package(tree: Path) -> None:
    """Makes sure that a checkout's processes import its own package, whatever is installed here.

    Raises:
        SystemExit: they import another one.
    """
    command = [sys.executable, "-c", "import marsrl_verl; print(marsrl_verl.__file__)"]
    done = subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )
    if done.returncode or not Path(done.stdout.strip()).is_relative_to(tree):
        raise SystemExit(
            f"{tree}: expected its own package, found {done.stdout.strip() or done.stderr[-500:]}"
        )


def in_turn(trees: dict[str, Path], repeat: int, *between: str) -> Iterator[str]:
    """What is measured in a repeat, one after the other: `before`, `between`, `after`, and every other time
    in reverse."""
    order = [name for name in (BEFORE, *between, AFTER) if name in trees or name in between]
    return iter(order if repeat % 2 == 0 else order[::-1])
