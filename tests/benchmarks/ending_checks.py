"""A call whose checks end in every way; `test_gpu_check.py` runs it."""

from __future__ import annotations

import os
import time

from benchmarks.gpu_check.checks import Bench, Call, Check, expect


def passing(bench: Bench) -> None:
    bench.figures["milliseconds"] = 12.345


def needs_cuda(bench: Bench) -> None:
    bench.figures["made"] = 3
    bench.cuda()


def failing(bench: Bench) -> None:
    bench.figures["before"] = 1
    expect(False, "found 2, expected 3")


def dying(bench: Bench) -> None:
    os.kill(os.getpid(), 9)


def hanging(bench: Bench) -> None:
    time.sleep(600)


CALL = Call(
    9,
    "of the tests",
    20,
    "the tests",
    (
        Check("passing", 200, passing),
        Check("needs cuda", 200, needs_cuda),
        Check("failing", 200, failing),
        Check("dying", 200, dying),
        Check("hanging", 5, hanging),
        Check("after all that", 200, passing),
    ),
)
