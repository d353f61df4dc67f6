"""Runs programs of ranks, each in a fork of this process, which has imported what takes most of their time.

Reads lines of JSON, `[output, program, argument…]`, and answers each with the program's exit status.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path

from rank_updates import compose, import_trainer

MAX_SECONDS = 600
"""Less than pytest gives a test: a program that hangs would hold up the next one, too."""


def run(output: str, program: str, *arguments: str) -> None:
    """What the program says goes to a file."""
    with Path(output).open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import_trainer(compose("cluster=cpu"))
    for line in sys.stdin:
        output, *words = json.loads(line)
        child = multiprocessing.get_context("fork").Process(target=run, args=(output, *words))
        child.start()
        child.join(MAX_SECONDS)
        if child.is_alive():  # ranks that wait for one another
            child.kill()
            child.join()
            with Path(output).open("a") as file:
                print(f"it was ended after {MAX_SECONDS} s", file=file)
        print(child.exitcode, file=answers, flush=True)


if __name__ == "__main__":
    main()
