"""Prove the package on one NVIDIA GPU, in six calls of a few minutes.

    python -m benchmarks.gpu_check                     # all calls, in order: 50 minutes at most
    python -m benchmarks.gpu_check 1 3                 # some
    python -m benchmarks.gpu_check 1 --only 'cuda ipc'
    python -m benchmarks.gpu_check --list
    python -m benchmarks.gpu_check 4 5 --on-processor  # their trainings with cluster=cpu: tries the checks
    python -m benchmarks.gpu_check 5 --patience 2 --set actor_rollout_ref.rollout.gpu_memory_utilization=0.1

Each call prints a table and leaves `call_N.json` in the folder, beside the logs. Status 0: every check
passed, but for those of packages that are not installed. Without a GPU each check does what a processor can
do of it and says "no CUDA device"; the status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu_check.calls import NUMBERS, load
from benchmarks.gpu_check.checks import MORE_OVERRIDES, NOT_INSTALLED, ON_PROCESSOR
from benchmarks.gpu_check.child import PASSED
from benchmarks.gpu_check.runner import run_call


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("calls", nargs="*", type=int, metavar="CALL", help=f"of {NUMBERS}; none: all")
    parser.add_argument("--only", help="one check of the calls, by its name")
    parser.add_argument("--folder", type=Path, default=Path("outputs/gpu_check"), help="records and logs")
    parser.add_argument("--on-processor", action="store_true", help="train with cluster=cpu")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override of all runs; may be repeated",
    )
    parser.add_argument("--patience", type=float, default=1.0, help="times as long as a check may take")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    arguments = parser.parse_args(argv)
    if unknown := [one for one in arguments.calls if one not in NUMBERS]:
        parser.error(f"there is no part {unknown[0]}; the parts are {NUMBERS}")
    if arguments.on_processor:
        os.environ[ON_PROCESSOR] = "1"
    if arguments.set:
        os.environ[MORE_OVERRIDES] = "\n".join(arguments.set)
    calls = [load(number) for number in arguments.calls or NUMBERS]
    names = [check.name for call in calls for check in call.checks]
    if arguments.only and arguments.only not in names:
        parser.error(f"there is no check {arguments.only!r}; the checks are {names}")
    if arguments.list:
        for call in calls:
            print(f"part {call.number}, {call.minutes} minutes: {call.title}")
            print("".join(f"  {check.name}, {check.seconds} s\n" for check in call.checks), end="")
        return 0
    folder = arguments.folder.resolve()
    outcomes = [one for call in calls for one in run_call(call, folder, arguments.only, arguments.patience)]
    passed = sum(one.result == PASSED for one in outcomes)
    missing = sum(one.result == NOT_INSTALLED for one in outcomes)
    more = f", {missing} not installed" if missing else ""
    print(f"\n{passed} of {len(outcomes)} checks passed{more}; records in {arguments.folder}")
    return 0 if passed + missing == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
